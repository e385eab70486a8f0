"""Judging the calls of one reply before anything runs: names, arguments, identity, order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from fsm_agent.conversation.arguments import coerce, parse, paths_conflict, repair_name, signature
from fsm_agent.conversation.effects import ToolOutcome, ToolSpec
from fsm_agent.conversation.history import fallback_id
from fsm_agent.conversation.messages import ToolCall

Verdict = Literal["run", "bad_json", "unknown", "answered"]
MAX_ECHOED = 200
"""Characters of a wrong name that the model reads back."""
MAX_REPAIRED = 8
"""Different wrong names of one reply that are repaired."""
BRIDGE = "tool_call"
"""The tool whose calls are calls of tools that no request names (EXEC-34)."""
HOUSEKEEPING = frozenset({"memory", "todo", "skill_manage", "session_search"})
"""Tools that put things in order: text beside them can be the answer."""
PROGRAMMATIC = frozenset({"execute_code"})
"""Cheap calls made by programs: an iteration with only these is not charged."""


@dataclass(slots=True)
class Checked:
    """One call and what was found. ``outcome`` is set for a call that is answered without being run."""

    call: ToolCall
    verdict: Verdict
    spec: ToolSpec | None = None
    arguments: Mapping[str, Any] | None = None
    outcome: ToolOutcome | None = None

    def answer(self, text: str, status: Literal["error", "ok", "denied", "not_started"] = "error") -> None:
        """Give the call this result instead of running it."""
        self.outcome = ToolOutcome(self.call.id, status, text)


def check_calls(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], cutoff: float) -> list[Checked]:
    """Repair names and ids, read and coerce arguments, answer what cannot run. A call that was made twice
    runs once, unless something was changed in between."""
    by_name = {tool.name: tool for tool in tools}
    meant = _resolve_names(calls, tuple(by_name), cutoff)
    checked = [_check(call, meant[call.name], by_name, cutoff) for call in _with_unique_ids(calls)]
    first: dict[str, Checked] = {}
    for item in checked:
        if item.verdict != "run" or item.spec is None or item.arguments is None:
            continue
        key = signature(item.spec.name, item.arguments)
        if item.spec.effect == "unsafe" or (item.spec.effect == "idempotent" and key not in first):
            first.clear()
        twin = first.setdefault(key, item)
        if twin is not item and item.spec.effect in ("pure", "idempotent"):
            item.verdict = "answered"
            item.answer(f"(the same call as {twin.call.id}: see its result)", "ok")
    return checked


def limit_delegation(calls: Sequence[Checked], most: int) -> None:
    """Answer the delegations beyond ``most`` child turns of one reply (EXEC-13)."""
    children = 0
    for item in calls:
        if item.verdict != "run" or not (item.spec and item.spec.delegates) or item.arguments is None:
            continue
        tasks = item.arguments.get("tasks")
        children += max(1, len(tasks)) if isinstance(tasks, list) else 1
        if children > most:
            item.verdict = "answered"
            item.answer(
                f"over the limit of {most} child turns at a time; not run. Delegate the rest when these are"
                " done."
            )


def _resolve_names(calls: Sequence[ToolCall], known: Sequence[str], cutoff: float) -> dict[str, str | None]:
    """Map the name in each call to the tool that it means. A repair takes milliseconds, so only the first
    ``MAX_REPAIRED`` wrong names are tried."""
    wrong = dict.fromkeys(call.name for call in calls if call.name not in known)
    found = {name: repair_name(name, known, cutoff) for name in islice(wrong, MAX_REPAIRED)}
    return {call.name: call.name if call.name in known else found.get(call.name) for call in calls}


def _check(call: ToolCall, name: str | None, tools: Mapping[str, ToolSpec], cutoff: float) -> Checked:
    parsed = parse(call.arguments)
    if parsed.kind in ("bad", "cut"):
        item = Checked(call, "bad_json")
        item.answer(
            f"the arguments are not valid JSON ({parsed.error}); nothing was run; make the call again"
        )
        return item
    if name is None:
        item = Checked(call, "unknown")
        listed = ", ".join(name for name, tool in tools.items() if not tool.deferred) or "none"
        named = _clip(call.name.strip())
        item.answer(
            f"there is no tool {named!r}; tools: {listed}"
            if named
            else "a tool call needs the name of a tool"
        )
        return item
    arguments = _arguments_text(call, parsed.repaired, parsed.value)
    if (name, arguments) != (call.name, call.arguments):
        call = replace(call, name=name, arguments=arguments)
    if parsed.kind == "not_object":
        item = Checked(call, "answered", tools[name])
        item.answer("the arguments must be a JSON object with the parameters by name; nothing was run")
        return item
    if name == BRIDGE:
        return _unwrap(call, parsed.value or {}, tools, cutoff)
    return Checked(call, "run", tools[name], coerce(parsed.value or {}, tools[name].parameters))


def _clip(name: str) -> str:
    return name if len(name) <= MAX_ECHOED else f"{name[:MAX_ECHOED]}…"


def _unwrap(
    call: ToolCall, given: Mapping[str, Any], tools: Mapping[str, ToolSpec], cutoff: float
) -> Checked:
    """The call that is meant, before anything looks at it: rules, approvals, limits and callbacks see the
    tool itself."""
    behind = tuple(name for name, tool in tools.items() if tool.deferred)
    named, wanted = str(given.get("name", "")), given.get("arguments") or {}
    inner = parse(wanted) if isinstance(wanted, str) else None
    arguments = inner.value if inner is not None else wanted
    name = named if named in behind else repair_name(named, behind, cutoff)
    if name is None or not isinstance(arguments, Mapping):
        item = Checked(call, "answered", tools[BRIDGE])
        missing = f"there is no tool {_clip(named)!r} to be called this way; find its name with tool_search"
        item.answer(
            missing
            if name is None
            else "arguments must be a JSON object with the parameters by name; nothing was run"
        )
        return item
    return Checked(call, "run", tools[name], coerce(dict(arguments), tools[name].parameters))


def _arguments_text(call: ToolCall, repaired: bool, value: Mapping[str, Any] | None) -> str:

    return json.dumps(value, ensure_ascii=False) if repaired or not call.arguments.strip() else call.arguments


def _with_unique_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    taken: set[str] = set()
    unique = []
    for number, call in enumerate(calls):
        call_id = call.id or fallback_id(call, number)
        if call_id in taken:
            call_id = f"{call_id}_{number}"
        taken.add(call_id)
        unique.append(call if call_id == call.id else replace(call, id=call_id))
    return unique


def contended_paths(calls: Sequence[Checked]) -> tuple[str, ...]:
    """The paths of the calls that could go at the same time, when it depends on where they lead; else
    none."""
    together = [item for item in calls if item.outcome is None and _parallel(item) and _paths(item)]
    if len(together) < 2 or all(item.spec and item.spec.effect == "pure" for item in together):
        return ()
    return tuple(dict.fromkeys(path for item in together for path in _paths(item)))


def segments(
    calls: Sequence[Checked], most: int, workdir: str, real: Mapping[str, str]
) -> Iterator[list[Checked]]:
    """Runs of calls that may go at the same time, in order; every other call is a barrier of its own. At most
    ``most`` calls run together. Relative paths begin at ``workdir``; ``real``: where paths lead."""
    run: list[Checked] = []
    for item in calls:
        alone = item.outcome is None and not _parallel(item)
        if run and (alone or len(run) >= most or any(_conflict(item, other, workdir, real) for other in run)):
            yield run
            run = []
        run.append(item)
        if alone:
            yield run
            run = []
    if run:
        yield run


def _parallel(item: Checked) -> bool:
    """Calls of a run are admitted one after the other before it begins, so those that work on paths may be
    asked about; every other question is a barrier."""
    spec = item.spec
    return (
        spec is not None
        and spec.concurrency == "parallel"
        and (spec.approval == "never" or bool(spec.path_arguments))
    )


def _conflict(one: Checked, other: Checked, workdir: str, real: Mapping[str, str]) -> bool:
    """Two path tools conflict when one path contains the other, unless both only read."""
    if not (one.spec and other.spec) or one.spec.effect == other.spec.effect == "pure":
        return False
    return any(
        paths_conflict(real.get(a, a), real.get(b, b), workdir) for a in _paths(one) for b in _paths(other)
    )


def _paths(item: Checked) -> list[str]:
    """The paths of a call; one that was left out is the working directory."""
    if item.spec is None or item.arguments is None:
        return []
    return [str(item.arguments.get(name) or "") for name in item.spec.path_arguments]
