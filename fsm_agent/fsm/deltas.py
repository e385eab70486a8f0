"""What changed in a turn since the last move, as JSON values: small, however long the turn has become.

A snapshot is an object of fields. ``Tracker.delta`` gives what of it changed; ``patched`` puts deltas on top
of each other, so that the snapshot at any move is the sum of those before. A changed list is written as what
was cut and what was added, a changed object as its changed keys. (Why: decision 63.)
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from fsm_agent.errors import ConfigError, near
from fsm_agent.fsm import values
from fsm_agent.fsm.codec import dumps, fields_of, restored, values_of

__all__ = ["ExactTracker", "Tracker", "applied", "difference", "patched", "restored"]

KEPT, ADDED, SET, GONE, IN = "kept", "added", "set", "gone", "in"


def difference(before: Any, after: Any) -> Any:
    """``after`` as a change of ``before``: ``{"to": …}`` for a new value, else what to add to a list, or what
    to set, drop and change in an object."""
    if isinstance(before, list) and isinstance(after, list):
        kept = _common(before, after)
        if kept:
            return {KEPT: kept, ADDED: after[kept:]}
    if isinstance(before, dict) and isinstance(after, dict) and before:
        put = {key: value for key, value in after.items() if key not in before or before[key] != value}
        gone = [key for key in before if key not in after]
        inner = {
            key: change
            for key in put
            if key in before and "to" not in (change := difference(before[key], put[key]))
        }
        found: dict[str, Any] = {
            SET: {key: value for key, value in put.items() if key not in inner},
            GONE: gone,
        }
        if inner:
            found[IN] = inner
        if (inner or len(put) + len(gone) < len(after)) and list(applied(before, found)) == list(after):
            # order counts
            return found
    return {"to": after}


def applied(before: Any, change: Mapping[str, Any]) -> Any:
    """The value after a change that ``difference`` made; ``before`` stays as it is."""
    if "to" in change:
        return change["to"]
    if KEPT in change:
        return [*before[: change[KEPT]], *change[ADDED]]
    after = before | change[SET] | {key: applied(before[key], one) for key, one in change.get(IN, {}).items()}
    for key in change[GONE]:
        del after[key]
    return after


def patched(start: Mapping[str, Any], deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshot after all deltas, in order."""
    found = dict(start)
    for delta in deltas:
        for name, change in delta.items():
            found[name] = applied(found.get(name), change)
    return found


def _common(before: list[Any], after: list[Any]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


class Tracker:
    """Remembers a dataclass as it was last seen, and says what of it is different now. Only what changed is
    written; the rest costs a comparison."""

    def __init__(self, turn: Any) -> None:
        kind: type = type(turn)
        self._turn, self._fields, self._values = turn, fields_of(kind), values_of(kind)
        values, self._places = self._values(turn), range(len(self._fields))
        self._held = [field.codec.held(value) for field, value in zip(self._fields, values, strict=True)]
        self.start = {
            field.name: field.codec.encode(value) for field, value in zip(self._fields, values, strict=True)
        }
        self._written = dict(self.start)

    def delta(self) -> dict[str, Any]:
        """What changed since the last call, field by field; empty when nothing did."""
        changed: dict[str, Any] = {}
        values = self._values(self._turn)
        for place in itertools.compress(self._places, map(operator.is_not, values, self._held)):
            value = values[place]
            if value == self._held[place]:
                continue
            name, codec = self._fields[place].name, self._fields[place].codec
            before, after = self._written[name], codec.encode(value)
            self._held[place], self._written[name] = codec.held(value), after
            if after != before:
                changed[name] = difference(before, after)
        return changed


class ExactTracker:
    """The same for a turn in types of the user's own (``fsm_agent.fsm.values``). It compares what is written
    and not the values, because ``==`` calls 1 and True the same, and two objects that differ in a field which
    is not compared. Raises ``ConfigError`` for a value that cannot be stored; then nothing counts as
    written."""

    def __init__(self, turn: Any) -> None:
        self._turn, self._fields = turn, values.fields_of(type(turn))
        self._known = set(getattr(turn, "__dict__", ()))
        self._held: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._written: dict[str, Any] = {}
        self.delta()
        self.start = dict(self._written)

    def delta(self) -> dict[str, Any]:
        """What changed since the last call, field by field; empty when nothing did."""
        held, written, texts = {}, {}, {}
        self._refuse_unknown()
        for field, value in values.fields_in(self._turn, self._fields):
            if field.codec.frozen and field.name in self._held and value is self._held[field.name]:
                continue
            after = values.stored_field(self._turn, field, value)
            held[field.name], text = value, dumps(after)
            if text != self._texts.get(field.name):
                written[field.name], texts[field.name] = after, text
        changed = {
            name: self._change(name, after, texts[name]) if name in self._written else {"to": after}
            for name, after in written.items()
        }
        self._held |= held
        self._texts |= texts
        self._written |= written
        return changed

    def _refuse_unknown(self) -> None:
        """A name without a field would be forgotten, and is misspelt more often than not."""
        kind = type(self._turn)
        for name in getattr(self._turn, "__dict__", {}).keys() - self._known:
            if not hasattr(kind, name):  # else it is a property that was computed once
                fields = [field.name for field in self._fields]
                raise ConfigError(f"{kind.__name__} has no such field", name, near(name, fields))

    def _change(self, name: str, after: Any, text: str) -> Any:
        before = self._written[name]
        change = difference(before, after)
        return change if dumps(applied(before, change)) == text else {"to": after}
