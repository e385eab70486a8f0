"""What changed in a turn since the last move, as JSON values: small, however long the turn has become.

A snapshot is an object of fields. ``Tracker.delta`` gives what of it changed; ``patched`` puts deltas on top of each other, so
that the snapshot at any move is the sum of those before. A changed list is written as what was cut and what was added, a changed
object as its changed keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fsm_agent.codec import FieldCodec, fields_of

KEPT, ADDED, SET, GONE = "kept", "added", "set", "gone"
UNSET = object()


def difference(before: Any, after: Any) -> Any:
    """``after`` as a change of ``before``: ``{"to": …}`` for a new value, else what to add to a list or set in an object."""
    if isinstance(before, list) and isinstance(after, list):
        kept = _common(before, after)
        if kept:
            return {KEPT: kept, ADDED: after[kept:]}
    if isinstance(before, dict) and isinstance(after, dict) and before:
        put = {key: value for key, value in after.items() if key not in before or before[key] != value}
        gone = [key for key in before if key not in after]
        if len(put) + len(gone) < len(after):
            return {SET: put, GONE: gone}
    return {"to": after}


def applied(before: Any, change: Mapping[str, Any]) -> Any:
    """The value after a change that ``difference`` made; ``before`` stays as it is."""
    if "to" in change:
        return change["to"]
    if KEPT in change:
        return [*before[: change[KEPT]], *change[ADDED]]
    return {key: value for key, value in before.items() if key not in change[GONE]} | change[SET]


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
    """Remembers a dataclass as it was last seen. Values of frozen types are compared as objects and written only when they
    are others; the rest is written and compared each time, so it should be small."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self._fields = fields_of(type(turn))
        self._seen: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self.start = {field.name: self._note(field) for field in self._fields}

    def _note(self, field: FieldCodec) -> Any:
        value = getattr(self._turn, field.name)
        written = field.codec.encode(value)
        self._seen[field.name], self._written[field.name] = value, written
        return written

    def delta(self) -> dict[str, Any]:
        """What changed since the last call, field by field; empty when nothing did."""
        changed: dict[str, Any] = {}
        for field in self._fields:
            value = getattr(self._turn, field.name)
            if field.codec.frozen and (value is self._seen[field.name] or value == self._seen[field.name]):
                continue
            before = self._written[field.name]
            after = self._note(field)
            if after != before:
                changed[field.name] = difference(before, after)
        return changed


def restored(kind: type, snapshot: Mapping[str, Any], **given: Any) -> Any:
    """A dataclass from its snapshot; ``given`` are the fields that are not stored, or others than stored."""
    codecs = {field.name: field.codec for field in fields_of(kind)}
    values = {name: codecs[name].decode(value) for name, value in snapshot.items() if name in codecs}
    return kind(**(values | given))
