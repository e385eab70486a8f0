"""From the tools that a server lists to tools of a turn: which are offered, under which name and under which
rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.request import Effect
from fsm_agent.support.injection_scan import scan
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent.tools.decorator import Tool
from fsm_agent.tools.signature import Signature
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.names import names_of
from fsm_agent.toolsets.mcp.schema import Listed, Unfit

MOST_TOOLS = 128
"""Tools of one request; providers refuse it when there are more."""
MOST_NOTICES = 5
MAX_DESCRIPTION = 4_000

Caller = Callable[[str, Mapping[str, Any], Effect], Awaitable[Any]]
"""The server's name of a tool, arguments, effect; the result as a handler returns it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server adds to a turn. ``notices`` say to people what was left out, and why."""

    tools: tuple[Tool, ...] = ()
    notices: tuple[str, ...] = ()


class PassedOn(Signature):
    """The arguments of a tool that checks them itself: they reach the handler as one object."""

    __slots__ = ()

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"arguments": dict(arguments)}


class _Anything(BaseModel):
    """The server knows what it takes."""


def offered(
    server: str,
    config: ServerConfig,
    listed: Sequence[Listed],
    call: Caller,
    timeout: float,
    taken: Collection[str] = (),
    most: int = MOST_TOOLS,
) -> Offer:
    """``listed`` with schemas that were looked over. ``timeout`` in seconds for tools that have no limit of
    their own; ``taken``: names that are in use; ``most``: how many."""
    tools: list[Tool] = []
    left_out: list[str] = []
    wanted = {one.name: one for one in reversed(listed) if config.wants(one.name)}
    names = names_of(server, sorted(wanted), taken)
    for own, name in list(names.items())[:most]:
        try:
            tools.append(_tool(name, server, config, wanted[own], call, timeout))
        except Unfit as problem:
            left_out.append(f"the tool {one_line(own, 80)} is left out: {problem}")
    if len(left_out) > MOST_NOTICES:
        left_out[MOST_NOTICES:] = [f"{len(left_out) - MOST_NOTICES} more tools are left out"]
    if len(names) > most:
        left_out.append(
            f"{len(names) - most} of {len(names)} tools are left out; choose with include and exclude"
        )
    return Offer(tuple(tools), tuple(f"MCP server {server}: {line}" for line in left_out))


def _tool(name: str, server: str, config: ServerConfig, one: Listed, call: Caller, timeout: float) -> Tool:
    if one.problem:
        raise Unfit(one.problem)
    rule = config.rule(one.name)
    effect = rule.effect or _effect(config, one)
    spec = ToolSpec(
        name=name,
        description=_description(server, config, one),
        parameters=one.schema,
        concurrency="parallel" if effect == "pure" else "serial",
        effect=effect,
        timeout=rule.timeout or timeout,
        approval=rule.approval
        or ("never" if config.trust and one.reads_only and effect == "pure" else "ask"),
        writes_files=effect != "pure",
    )

    async def handler(arguments: dict[str, Any]) -> Any:
        return await call(one.name, arguments, effect)

    return Tool(
        spec,
        handler,
        is_async=True,
        signature=PassedOn(name, _Anything, {}, frozenset(), False, {}),
        external=True,
    )


def _effect(config: ServerConfig, one: Listed) -> Effect:
    """Hints count only from a server that the user trusts; without them a call may do anything."""
    if not config.trust:
        return "unsafe"
    return "pure" if one.reads_only else "idempotent" if one.repeatable else "unsafe"


def _description(server: str, config: ServerConfig, one: Listed) -> str:
    """It enters every request with the schema, so words of a stranger that try to take the model over are
    kept out of both."""
    text = shorten(clean(one.description).strip(), MAX_DESCRIPTION)
    for what, said in (("description", text), ("schema", "\n".join(_words(one.schema)))):
        if not config.trust and (found := scan(said, strict=True)):
            raise Unfit(
                f"its {what} should not be trusted ({', '.join(found)}); set trust = true if it may be"
            )
    return text or f"{one.name} of {server}"


def _words(schema: Any) -> Iterator[str]:
    """Every text in a fitted schema, the names of its properties too: a model reads them all."""
    if isinstance(schema, str):
        yield clean(schema)
    elif isinstance(schema, Mapping):
        for name, part in schema.items():
            yield clean(str(name))
            yield from _words(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _words(part)
