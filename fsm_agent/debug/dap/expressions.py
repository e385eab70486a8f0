"""What a person types at a position: expressions such as ``retries``, ``retries >= 2``, ``meter.prompt``,
``messages[-1].content``, ``guards.row``; and new values for what the tree shows, as the edits with which the
turn is forked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap.threads import TurnThread
from fsm_agent.debug.dap.variables import (
    NAMES,
    Key,
    Lazy,
    ScopeName,
    Transcript,
    TypedValue,
    ValuePlace,
    facts,
    is_list,
    label,
    scope_value,
)  # fmt: skip
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.condition_parser import condition

_FIRST = re.compile(r"\s*([A-Za-z_]\w*)")
_NEXT = re.compile(r'\s*(?:\.([A-Za-z_]\w*)|\[\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*\])')
SCOPES: Mapping[str, ScopeName] = {word: scope for scope, word in NAMES.items()}


def evaluate(thread: TurnThread, at: int, said: str) -> tuple[ValuePlace, Any]:
    """(where it is, its value). A comparison has no place of its own. Raises ``ConfigError``."""
    path = path_of(said)
    if path is not None:
        return _value(thread, at, path, said)
    counters = thread.debugger.record.counters(at, thread.debugger.kind.counters)
    return ValuePlace(thread.id, at, "Guards", (said,)), condition(said, counters)(counters)


def names_after(thread: TurnThread, at: int, before: str) -> list[str]:
    """What may come after ``before``, which ends in the middle of a name."""
    whole, _, _ = before.rpartition(".")
    if not whole:
        return [*thread.debugger.kind.counters, *facts(thread.debugger, at), *SCOPES]
    path = path_of(whole)
    if path is None:
        return []
    value = _value(thread, at, path, whole)[1]
    return [key for key in value if key.isidentifier()] if isinstance(value, Mapping) else []


def _value(thread: TurnThread, at: int, path: tuple[Key, ...], said: str) -> tuple[ValuePlace, Any]:
    first, names = str(path[0]), thread.debugger.kind.counters
    scope = "Counters" if first in names else SCOPES.get(first, "Facts")
    value = scope_value(thread.debugger, at, scope)
    if first not in SCOPES and first not in value:
        raise ConfigError(
            "no such name", first, f"counters ({', '.join(names)}), facts, messages, visit, guards"
        )
    return _walk(ValuePlace(thread.id, at, scope), value, path[1:] if first in SCOPES else path, said)


def _walk(place: ValuePlace, value: Any, path: tuple[Key, ...], said: str) -> tuple[ValuePlace, Any]:
    for key in path:
        if isinstance(value, Lazy):
            value = value.make()
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif is_list(value) and isinstance(key, int) and -len(value) <= key < len(value):
            key %= len(value)
            value = value[key]
        else:
            raise ConfigError(f"there is no {json.dumps(key)} in this value", said, _in(value))
        place = place.to(key)
    return place, value.value if isinstance(value, TypedValue) else value


def path_of(said: str) -> tuple[Key, ...] | None:
    """The steps of a path; ``None`` for anything else."""
    first = _FIRST.match(said)
    if first is None or first[1] in ("not", "and", "or", "True", "False"):
        return None
    path: list[Key] = [first[1]]
    end = first.end()
    while found := _NEXT.match(said, end):
        path.append(found[1] if found[1] is not None else json.loads(found[2]))
        end = found.end()
    return tuple(path) if not said[end:].strip() else None


def _in(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(map(str, value)) or "nothing, it is empty"
    return f"0 to {len(value) - 1}" if is_list(value) and len(value) else "nothing, it has no parts"


FIXED = frozenset({"turn_id", "session_id", "seq", "state"})
"""Facts that are what the turn is."""
REPLIES = ("reply", "text")


def settable(place: ValuePlace) -> bool:
    """May a person change the value there?"""
    match place.scope:
        case "Counters":
            return len(place.path) == 1
        case "Facts":
            return bool(place.path) and place.path[0] not in FIXED
        case "Messages":
            return bool(place.path)
        case "Request":
            answered = " CallModel" in str(place.path[:1]) or " RunTool" in str(place.path[:1])
            return answered and tuple(place.path[1:]) == REPLIES
    return False


def edit_of(debugger: Debugger, place: ValuePlace, said: str) -> tuple[dict[str, Any], Any]:
    """(the edit, the new value) for what a person typed. Raises ``ConfigError`` for a value that cannot be
    changed, or not so."""
    if not settable(place):
        raise ConfigError(
            "this value cannot be changed",
            ".".join(map(str, place.path)),
            "counters, facts, messages, replies",
        )
    match place.scope:
        case "Counters":
            return _counter(debugger, str(place.path[0]), said)
        case "Facts":
            field, *way = place.path
            snapshot = debugger.record.snapshot(place.at)
            new = read(said, _at(snapshot, place.path))
            return {"fields": {field: _with(snapshot[str(field)], way, new)}}, new
        case "Messages":
            index, *way = place.path
            row = Transcript(debugger.record, place.at)[int(index)]
            new = read(said, _at(row, way))
            return {"messages": {int(index): _with(row, way, new)}}, new
    return _reply(debugger, place, said)


def _counter(debugger: Debugger, name: str, said: str) -> tuple[dict[str, Any], int]:
    if name not in debugger.kind.counters or not said.strip().isdecimal():
        raise ConfigError(f"counter {name} cannot be set so", said, "a whole number from 0")
    return {"counters": {name: int(said)}}, int(said)


def _reply(debugger: Debugger, place: ValuePlace, said: str) -> tuple[dict[str, Any], str]:
    entry = next((one for one in debugger.visit(place.at) if label(one) == place.path[0]), None)
    if entry is None or not isinstance(entry.get("reply"), Mapping):
        raise ConfigError(
            "there is no reply yet to change", place.path[0], "hold it back with :hold, and :answer it"
        )
    text = read(said, "")
    if entry["kind"] == "RunTool":
        return {"results": {entry["request"]["call_id"]: text}}, text
    return {"reply": {"text": text, "tool_calls": entry["reply"].get("tool_calls") or []}}, text


def read(said: str, old: Any) -> Any:
    """The value that a person typed: JSON, and in place of a text also the text itself. Raises
    ``ConfigError``."""
    if isinstance(old, str) and not said.lstrip().startswith('"'):
        return said
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        if old is None or isinstance(old, str):
            return said
        raise ConfigError(
            "this value cannot be read", said, f"JSON, such as {json.dumps(old, ensure_ascii=False)[:80]}"
        ) from None


def _at(value: Any, way: Sequence[Key]) -> Any:
    for key in way:
        value = value[key]
    return value


def _with(value: Any, way: Sequence[Key], new: Any) -> Any:
    """``value`` with something else at the end of the way; the original stays as it is."""
    if not way:
        return new
    key, *rest = way
    if isinstance(value, Mapping):
        return {**value, key: _with(value[str(key)], rest, new)}
    return [_with(one, rest, new) if index == key else one for index, one in enumerate(value)]
