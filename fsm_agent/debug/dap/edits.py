"""From a value that a person changed in the tree to the edit with which the turn is forked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap.scopes import label
from fsm_agent.debug.dap.variables import Key, Place, Rows
from fsm_agent.errors import ConfigError

FIXED = frozenset({"turn_id", "session_id", "seq", "state"})
"""Facts that are what the turn is."""
REPLIES = ("reply", "text")


def settable(place: Place) -> bool:
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


def edit_of(debugger: Debugger, place: Place, said: str) -> tuple[dict[str, Any], Any]:
    """(the edit, the new value) for what a person typed. Raises ``ConfigError`` for a value that cannot be changed, or not so."""
    if not settable(place):
        raise ConfigError("this value cannot be changed", ".".join(map(str, place.path)), "counters, facts, messages, replies")
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
            row = Rows(debugger.record, place.at)[int(index)]
            new = read(said, _at(row, way))
            return {"messages": {int(index): _with(row, way, new)}}, new
    return _reply(debugger, place, said)


def _counter(debugger: Debugger, name: str, said: str) -> tuple[dict[str, Any], int]:
    if name not in debugger.subject.counters or not said.strip().isdecimal():
        raise ConfigError(f"counter {name} cannot be set so", said, "a whole number from 0")
    return {"counters": {name: int(said)}}, int(said)


def _reply(debugger: Debugger, place: Place, said: str) -> tuple[dict[str, Any], str]:
    entry = next((one for one in debugger.visit(place.at) if label(one) == place.path[0]), None)
    if entry is None or not isinstance(entry.get("reply"), Mapping):
        raise ConfigError("there is no reply yet to change", place.path[0], "hold it back with :hold, and :answer it")
    text = read(said, "")
    if entry["kind"] == "RunTool":
        return {"results": {entry["request"]["call_id"]: text}}, text
    return {"reply": {"text": text, "tool_calls": entry["reply"].get("tool_calls") or []}}, text


def read(said: str, old: Any) -> Any:
    """The value that a person typed: JSON, and in place of a text also the text itself. Raises ``ConfigError``."""
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
