"""A turn of the user's own as JSON values, and made again from them.

A dataclass is stored field by field, by its annotations; a field that has no form in JSON, or that says
``metadata={"stored": False}``, is left out. Any other class is only shown, by its ``dump``: it can be looked at, but not gone on
with.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import STORED, Codec, codec_of, dumps
from fsm_agent.fsm.runner import RunnableTurn
from fsm_agent.fsm.table import Row, Table

ENGINES = ("state", "seq", "history", "rows", "limits", "block")
"""Names in a snapshot that mean the same for every kind of turn; a field of such a name is stored with a ``_`` behind it."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    stored: str
    codec: Codec
    given: bool  # by the constructor


class Shape:
    """Of the turns of one class on one table."""

    def __init__(self, table: Table, kind: type) -> None:
        self.table, self.kind = table, kind
        self._counters = tuple(counter.name for counter in table.counters)
        self._limits = {atom.counter: atom.limit for row in table.rows for atom in row.guard.atoms()}
        self._rows = {row.id: row for row in table.rows}
        self._fields = self._read(kind) if dataclasses.is_dataclass(kind) else None

    def _read(self, kind: type) -> tuple[_Field, ...]:
        try:
            hints = get_type_hints(kind)
        except (NameError, TypeError) as error:
            raise ConfigError(
                f"the fields of {kind.__name__} cannot be read ({error})", kind.__module__, "annotations that exist"
            ) from None
        found = []
        for one in dataclasses.fields(kind):
            codec = self._codec(hints[one.name]) if one.metadata.get(STORED, True) is True else None
            if codec is not None and one.name not in ("state", "seq", *self._counters):
                found.append(_Field(one.name, f"{one.name}_" if one.name in ENGINES else one.name, codec, one.init))
        return tuple(found)

    def _codec(self, annotation: Any) -> Codec | None:
        if Row in (annotation, *get_args(annotation)):
            return Codec(lambda row: row and row.id, lambda name: name and self._rows.get(name))
        try:
            return codec_of(annotation)
        except TypeError:
            return None

    def values(self, turn: RunnableTurn) -> dict[str, Any]:
        """The snapshot: where the turn is, its counters and their limits, and what else it knows."""
        known: dict[str, Any] = {name: turn.count(name) for name in self._counters}
        known |= {"state": turn.state, "seq": turn.seq, "limits": self._limits_of(turn), "turn_id": turn.turn_id}
        known |= {"history": [turn.turn_id, 0, 0, 0], "rows": []}
        facts = self._facts(turn)
        return {**known, **{name: value for name, value in facts.items() if name not in known}}

    def _facts(self, turn: RunnableTurn) -> dict[str, Any]:
        if self._fields is None:
            return _json({f"{name}_" if name in ENGINES else name: value for name, value in turn.dump().items()})
        made: dict[str, Any] = {}
        for field in self._fields:
            try:
                made[field.stored] = field.codec.encode(getattr(turn, field.name))
            except (TypeError, KeyError, AttributeError):  # it holds something else than its annotation says
                continue
        return _json(made)

    def _limits_of(self, turn: RunnableTurn) -> dict[str, int]:
        found: dict[str, int] = {}
        for counter, limit in self._limits.items():
            try:
                found[counter] = turn.limit(limit)
            except KeyError:
                continue
        return found

    def turn(self, snapshot: Mapping[str, Any], turn_id: str) -> RunnableTurn:
        """The turn that a snapshot is of, as ``turn_id``. Raises ``ConfigError`` when it cannot be made."""
        if self._fields is None:
            raise ConfigError(f"a {self.kind.__name__} cannot be made again: it is no dataclass", None, "@dataclass")
        if snapshot["state"] not in self.table.states:
            raise ConfigError("the table has no such state any more", snapshot["state"], ", ".join(self.table.states))
        values = {one.name: _decoded(one, snapshot[one.stored]) for one in self._fields if one.stored in snapshot}
        given = {one.name: values[one.name] for one in self._fields if one.given and one.name in values}
        names = {one.name for one in dataclasses.fields(self.kind) if one.init}
        engine = {"turn_id": turn_id, "state": snapshot["state"], "seq": snapshot["seq"]}
        counts = {name: snapshot[name] for name in self._counters if name in snapshot}
        try:
            made: RunnableTurn = self.kind(
                **{**given, **{name: one for name, one in {**engine, **counts}.items() if name in names}}
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"a {self.kind.__name__} cannot be made again ({error})", None, "a default for what is not stored"
            ) from None
        for name, value in {**values, **engine}.items():
            setattr(made, name, value)
        for name, count in counts.items():
            _set_counter(made, name, count)
        return made

    def edited(self, snapshot: Mapping[str, Any], edit: Mapping[str, Any]) -> dict[str, Any]:
        """A snapshot with a person's changes: ``counters`` and ``fields``, by name. Raises ``ConfigError``."""
        made = dict(snapshot)
        stored = [one.stored for one in self._fields or () if one.name != "turn_id"]
        allowed = {"counters": self._counters, "fields": tuple(stored)}
        for name, values in edit.items():
            if name not in allowed or not isinstance(values, Mapping):
                raise ConfigError("a turn of this table cannot be edited so", name, "counters, fields: names and values")
            for key, value in values.items():
                if key not in allowed[name]:
                    raise ConfigError(f"it has no such {name[:-1]}", key, ", ".join(allowed[name]))
                if name == "counters" and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                    raise ConfigError(f"counter {key} cannot be set so", value, "a whole number from 0")
                made[key] = value
        return made


def _decoded(field: _Field, value: Any) -> Any:
    try:
        return field.codec.decode(value)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise ConfigError(f"field {field.name} cannot be set so", value, "JSON of what its annotation says") from None


def _set_counter(turn: RunnableTurn, name: str, count: int) -> None:
    """By what every turn can do."""
    if turn.count(name) != count:
        turn.reset(name)
        for _ in range(count):
            turn.spend(name)


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """Nothing in it is the turn's own any more."""
    copied: dict[str, Any] = json.loads(dumps(value))
    return copied
