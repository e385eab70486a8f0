"""What a person may ask of a position: ``retries``, ``retries >= 2``, ``meter.prompt``, ``messages[-1].content``,
``guards.row``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fsm_agent.debug.dap.scopes import Scopes, asked, facts
from fsm_agent.debug.dap.threads import Lane
from fsm_agent.debug.dap.variables import NAMES, Key, Later, Place, Rows, ScopeName, Typed, is_list
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.condition_parser import condition
from fsm_agent.sessions.store import Store

_FIRST = re.compile(r"\s*([A-Za-z_]\w*)")
_NEXT = re.compile(r'\s*(?:\.([A-Za-z_]\w*)|\[\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*\])')
SCOPES: Mapping[str, ScopeName] = {word: scope for scope, word in NAMES.items()}


class Words:
    """Reads expressions at a position of a turn."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def evaluate(self, lane: Lane, store: Store, at: int, said: str) -> tuple[Place, Any]:
        """(where it is, its value). A comparison has no place of its own. Raises ``ConfigError``."""
        path = path_of(said)
        if path is not None:
            return self._value(lane, store, at, path, said)
        counters = lane.debugger.record.counters(at, lane.debugger.subject.counters)
        return Place(lane.id, at, "Guards", (said,)), condition(said, counters)(counters)

    def names(self, lane: Lane, store: Store, at: int, before: str) -> list[str]:
        """What may come after ``before``, which ends in the middle of a name."""
        whole, _, _ = before.rpartition(".")
        if not whole:
            return [*lane.debugger.subject.counters, *facts(lane.debugger, at), *SCOPES]
        path = path_of(whole)
        if path is None:
            return []
        value = self._value(lane, store, at, path, whole)[1]
        return [key for key in value if key.isidentifier()] if isinstance(value, Mapping) else []

    def _value(self, lane: Lane, store: Store, at: int, path: tuple[Key, ...], said: str) -> tuple[Place, Any]:
        first, names = str(path[0]), lane.debugger.subject.counters
        if first in names:
            place = Place(lane.id, at, "Counters")
            return self._walk(place, lane.debugger.record.counters(at, names), path, said)
        if first in SCOPES:
            place = Place(lane.id, at, SCOPES[first])
            return self._walk(place, self._scope(lane, store, at, place.scope), path[1:], said)
        snapshot = facts(lane.debugger, at)
        if first not in snapshot:
            raise ConfigError("no such name", first, f"counters ({', '.join(names)}), facts, messages, visit, guards")
        return self._walk(Place(lane.id, at, "Facts"), snapshot, path, said)

    def _scope(self, lane: Lane, store: Store, at: int, name: ScopeName) -> Any:
        if name == "Messages":
            return Rows(lane.debugger.record, at)
        return asked(lane.debugger, store, at) if name == "Request" else self._scopes.guards(lane.debugger, at)

    def _walk(self, place: Place, value: Any, path: tuple[Key, ...], said: str) -> tuple[Place, Any]:
        for key in path:
            if isinstance(value, Later):
                value = value.make()
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif is_list(value) and isinstance(key, int) and -len(value) <= key < len(value):
                key %= len(value)
                value = value[key]
            else:
                raise ConfigError(f"there is no {json.dumps(key)} in this value", said, _in(value))
            place = place.to(key)
        return place, value.value if isinstance(value, Typed) else value


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
