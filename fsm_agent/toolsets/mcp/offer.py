"""From the tools that a server lists to tools of a turn: which are offered, under which names and rules."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.request import Effect
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent.support.untrusted import scan
from fsm_agent.tools.decorator import Tool
from fsm_agent.tools.signature import Signature
from fsm_agent.toolsets.mcp.config import ServerConfig

# ----------------------------------------------------------------------------------------------------
# The names under which models see the tools of MCP servers.


MOST = 64
"""Maximum characters of a function name with every provider."""
SEPARATOR = "__"
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGITS = 8


def names_of(server: str, tools: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return a name for each tool of a server, valid for every provider, distinct from each other and from
    ``taken``.

    It is ``server__tool`` if possible. Otherwise (too long, taken, or shared by several tools after
    characters were replaced) it ends with a digest of the real name, so it is the same in every run and on
    every machine."""
    plain = {tool: f"{server}{SEPARATOR}{_REFUSED.sub('_', tool)}" for tool in tools}
    claims = Counter(plain.values())
    return {
        tool: name if _usable(server, tool, name, claims, taken) else _digest(server, tool, name)
        for tool, name in plain.items()
    }


def _usable(server: str, tool: str, name: str, claims: Mapping[str, int], taken: Collection[str]) -> bool:
    """Return whether the name can be used. If several tools claim it, the one with this exact name gets
    it."""
    unchanged = name == f"{server}{SEPARATOR}{tool}"
    return len(name) <= MOST and name not in taken and (unchanged or claims[name] == 1)


def _digest(server: str, tool: str, name: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGITS]
    return f"{name[: MOST - _DIGITS - 1]}_{digest}"


def server_of(name: str) -> str:
    """Return the server that a name belongs to; server names do not contain the separator."""
    return name.partition(SEPARATOR)[0]


# ----------------------------------------------------------------------------------------------------
# Checking a server's schema: one that a provider refuses would make every request of the session fail.


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool that a server lists. ``name`` is the server's own. The hints are the server's claims; ``None``
    for none. ``problem``: why a model cannot use its schema, empty if it can. ``reads``: the method called by
    a tool of ours that reads a resource or a prompt."""

    name: str
    description: str
    schema: Mapping[str, Any]
    reads_only: bool | None = None
    repeatable: bool | None = None
    problem: str = ""
    reads: str = ""


@dataclass(frozen=True, slots=True)
class ServerPrompt:
    """A prompt of a server, which a person requests as ``/server:name``. ``arguments``: their names, in
    order, and whether each is required."""

    server: str
    name: str
    description: str
    arguments: Mapping[str, bool]

    @property
    def command(self) -> str:
        """The command after the slash."""
        return f"{self.server}:{self.name}"

    @property
    def words(self) -> str:
        """The arguments as shown in help."""
        return " ".join(
            name.upper() if needed else f"[{name.upper()}]" for name, needed in self.arguments.items()
        )

    def fill(self, words: str) -> dict[str, str]:
        """Parse the arguments from a person's words: in order, or as ``name=value``; the last one takes the
        rest. Raises ``ConfigError``."""
        try:
            parts = shlex.split(words)
        except ValueError as error:
            raise ConfigError(f"these arguments cannot be read ({error})", words, self.words) from None
        given: dict[str, str] = {}
        for part in parts:
            name, sign, value = part.partition("=")
            left = [one for one in self.arguments if one not in given]
            if sign and name in left:
                given[name] = value
            elif left:
                given[left[0]] = part
            elif self.arguments:
                given[[*self.arguments][-1]] += f" {part}"
            else:
                raise ConfigError(f"the prompt {self.command} takes no arguments", words)
        if missing := [name for name, needed in self.arguments.items() if needed and name not in given]:
            raise ConfigError(f"the prompt {self.command} lacks {missing[0]}", words or None, self.words)
        return given


def _reader(name: str, reads: str, description: str, properties: Mapping[str, Any], *required: str) -> Listed:
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return Listed(name, description, schema, reads_only=True, reads=reads)


_TEXT: Mapping[str, Any] = {"type": "string"}
_TEXTS: Mapping[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_PAGE: Mapping[str, Any] = {"cursor": {"type": "string", "description": "Of the list before, for its rest"}}
RESOURCES = _reader("list_resources", "resources/list", "List the resources here.", _PAGE)
RESOURCE = _reader("read_resource", "resources/read", "Read a resource listed here.", {"uri": _TEXT}, "uri")
PROMPTS = _reader("list_prompts", "prompts/list", "List the prompts here.", _PAGE)
PROMPT = _reader(
    "get_prompt",
    "prompts/get",
    "Get a prompt listed here, filled in.",
    {"name": _TEXT, "arguments": _TEXTS},
    "name",
)
"""Our own tools for a server's resources and prompts."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA = 40_000
"""Maximum characters of one tool's schema as JSON; it is sent with every request."""
MAX_DEPTH = 40
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VERBATIM = ("default", "const", "enum", "examples")


class Unfit(Exception):
    """A tool that cannot be offered; the text gives the reason."""


def fit_schema(schema: object) -> dict[str, Any]:
    """Return an equivalent JSON schema object of the 2020-12 dialect. Nothing is left out: each wire drops
    what its providers refuse. Raises ``Unfit``."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise Unfit("its arguments are not an object")
    fitted: dict[str, Any] = {**_modern(schema, 0), "type": "object"}
    if "$schema" in fitted:
        fitted["$schema"] = DIALECT
    fitted.setdefault("properties", {})
    size = len(json.dumps(fitted, ensure_ascii=False))
    if size > MAX_SCHEMA:
        raise Unfit(f"its schema has {size:,} characters, more than {MAX_SCHEMA:,}")
    if (problem := next(iter(_validator().iter_errors(fitted)), None)) is not None:
        raise Unfit(f"its schema is not valid: {problem.message[:200]}")
    return fitted


def check_schemas(listed: Iterable[Listed]) -> list[Listed]:
    """Return the tools with fitted schemas, or with their problem. Takes milliseconds each: do not call it on
    an event loop."""
    return [_one(tool) for tool in listed]


def _one(tool: Listed) -> Listed:
    try:
        return replace(tool, schema=fit_schema(tool.schema))
    except Unfit as problem:
        return replace(tool, problem=str(problem))


def _modern(schema: Any, depth: int) -> Any:
    """Convert tuples of older drafts to the newest form."""
    if depth > MAX_DEPTH:
        raise Unfit("its schema is nested too deeply")
    if isinstance(schema, list):
        return [_modern(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _MAPS and isinstance(part, Mapping):
            result[key] = {name: _modern(inner, depth + 1) for name, inner in part.items()}
        else:
            result[key] = part if key in _VERBATIM else _modern(part, depth + 1)
    if isinstance(result.get("items"), list):
        result["prefixItems"] = result.pop("items")
        if "additionalItems" in result:
            result["items"] = result.pop("additionalItems")
    return result


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(Draft202012Validator.META_SCHEMA)


MOST_TOOLS = 128
"""Maximum tools in one request; providers refuse more."""
MOST_NOTICES = 5
MAX_DESCRIPTION = 4_000

Caller = Callable[[Listed, Mapping[str, Any], Effect], Awaitable[Any]]
"""Calls a tool with arguments and an effect; returns the result as a handler does."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that a server adds to a turn. ``notices`` tell people what was left out, and why."""

    tools: tuple[Tool, ...] = ()
    notices: tuple[str, ...] = ()


class RawSignature(Signature):
    """Arguments of a tool that checks them itself: they reach the handler as one object."""

    __slots__ = ()

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"arguments": dict(arguments)}


class _Anything(BaseModel):
    """Accepts any arguments: the server checks them."""


def make_offer(
    server: str,
    config: ServerConfig,
    listed: Sequence[Listed],
    call: Caller,
    timeout: float,
    taken: Collection[str] = (),
    most: int = MOST_TOOLS,
) -> Offer:
    """Build the offer from ``listed`` tools with checked schemas. ``timeout`` in seconds for tools without a
    limit of their own; ``taken``: names in use; ``most``: the maximum number of tools."""
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
        return await call(one, arguments, effect)

    return Tool(
        spec,
        handler,
        is_async=True,
        signature=RawSignature(name, _Anything, {}, frozenset(), False, {}),
        external=True,
    )


def _effect(config: ServerConfig, one: Listed) -> Effect:
    """Return the effect. Hints count only from a trusted server; without them a call may do anything."""
    if not config.trust:
        return "unsafe"
    return "pure" if one.reads_only else "idempotent" if one.repeatable else "unsafe"


def _description(server: str, config: ServerConfig, one: Listed) -> str:
    """Return the description. It enters every request with the schema, so text of an untrusted server that
    tries to take over the model is refused in both."""
    text = shorten(clean(one.description).strip(), MAX_DESCRIPTION)
    for what, said in (("description", text), ("schema", "\n".join(_words(one.schema)))):
        if not config.trust and (found := scan(said, strict=True)):
            raise Unfit(
                f"its {what} should not be trusted ({', '.join(found)}); set trust = true if it may be"
            )
    return text or f"{one.name} of {server}"


def _words(schema: Any) -> Iterator[str]:
    """Yield every text in a fitted schema, including property names: a model reads them all."""
    if isinstance(schema, str):
        yield clean(schema)
    elif isinstance(schema, Mapping):
        for name, part in schema.items():
            yield clean(str(name))
            yield from _words(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _words(part)
