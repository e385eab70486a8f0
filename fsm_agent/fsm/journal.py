"""What happened, in order: every request and reply, and every move. Everything that looks at a turn reads
this.

A running turn writes through ``Journal``: ``asked`` before requests are performed, ``got`` for each reply,
``moved`` for each transition. A request that is large and follows from something else says with a method
``recorded()`` what is kept of it.
"""

# Write a change inside an object as that change. Otherwise each tool round would rewrite everything that the
# guardrails remember.

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsm_agent.errors import ConfigError, near
from fsm_agent.fsm import values
from fsm_agent.fsm.codec import Codec, dumps, fields_of, restore, values_of
from fsm_agent.request import NotYet, answerable, effect_of, refuse_effect, without_doubt

__all__ = [
    "ExactTracker",
    "Tracker",
    "apply_change",
    "apply_deltas",
    "difference",
    "restore",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One move. ``guards``: (label, value) of every budget looked at, in order; ``changes``: (counter,
    before, after); ``seconds``: time spent in the state that was left."""

    seq: int
    source: str
    event: str
    dest: str
    row: str
    guards: list[tuple[str, bool]]
    changes: list[tuple[str, int, int]]
    seconds: float
    exit: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a state and its reply; lists for requests that ran at the same time. ``ordinal`` counts
    within the visit of the state."""

    seq: int
    state: str
    ordinal: int
    request: Any
    reply: Any = None

    @property
    def requests(self) -> list[Any]:
        """As a list, also when there is one."""
        return self.request if isinstance(self.request, list) else [self.request]


class Unknown:
    """In place of a reply: not known, so the request has to be performed."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


class Journal(Protocol):
    """Where one running turn writes. ``JournalError`` means that the turn belongs to another process now and
    must stop."""

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """Before requests are performed: for each of them ``UNKNOWN``, or the reply that is already known.
        Returns when what must be known after a crash is safe."""
        ...

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        """One request of ``exchange``, the one at ``place``, was performed."""
        ...

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        """The reply to one request comes later; returns when that is safe, and the turn may be suspended, or
        false when it cannot be written down."""
        ...

    async def moved(self, step: Step) -> None:
        """The turn has moved; returns when the move is safe, or sure to be before anything that needs it.
        Called again with the same ``step`` when that failed, or who waited was cancelled."""
        ...


@dataclass(slots=True)
class MemoryJournal:
    """Keeps the record of one turn for as long as the process lives: for turns of other tables, and for
    tests."""

    steps: list[Step] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """In memory nothing outlives a crash, so the intent alone is worth nothing; ``got`` records both."""
        return [UNKNOWN] * len(exchange.requests)

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        kept = request.recorded() if hasattr(request, "recorded") else request
        self.exchanges.append(Exchange(exchange.seq, exchange.state, exchange.ordinal, kept, reply))

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        return True

    async def moved(self, step: Step) -> None:
        self.steps.append(step)


# ----------------------------------------------------------------------------------------------------
# Requests and replies of any table as JSON: to be shown, kept, and read back. What a request declares about
# itself is in ``request``.


DEEP = 12
"""Values within values that are shown; deeper ones as their text."""


def plain(value: Any, depth: int = 0) -> Any:
    """A dataclass becomes an object that says under ``"is"`` what it is; what JSON has no word for, its
    ``repr``."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if depth >= DEEP:
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: plain(getattr(value, one.name), depth + 1) for one in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in value]
    return repr(value)


def request_json(value: Any) -> dict[str, Any]:
    """As ``plain``, but always an object: how requests are kept."""
    made = plain(value)
    return made if isinstance(made, dict) else {"is": type(value).__name__, "value": made}


def refuse_unstorable(kind: type) -> None:
    """Raise ``ConfigError`` for a class of requests that cannot be stored, or whose reply cannot be, and for
    one that says nonsense of its effect."""
    types = {f"request {kind.__name__}": kind}
    if hasattr(kind, "reply"):
        types[f"the reply to {kind.__name__}"] = kind.reply
    for what, annotation in types.items():
        try:
            values.codec_of(annotation)
        except values.NoCodec as error:
            raise ConfigError(f"{what} cannot be stored", str(error), values.STORABLE) from None
    refuse_effect(kind)


def _reply_codec(request: Any) -> Codec:
    return values.codec_of(type(request).reply)


def _to_json(annotation: Any, value: Any) -> dict[str, Any]:
    """A value with the name of its type; fields of a dataclass are beside it."""
    name, encoded = values.name_of(annotation), values.codec_of(annotation).encode(value)
    return {"is": name, **encoded} if values.is_flat(annotation) else {"is": name, "value": encoded}


def read_kept(annotation: Any, kept: Mapping[str, Any]) -> Any:
    """A value of this type as a request or a reply is kept."""
    decode = values.codec_of(annotation).decode
    if values.is_flat(annotation):
        return decode({key: one for key, one in kept.items() if key != "is"})
    return decode(kept.get("value"))


def request_record(request: Any) -> dict[str, Any]:
    """A request as it is kept, which is how it is known again. Raises ``ConfigError`` for one that cannot be
    stored."""
    kind = type(request)
    try:
        kept = _to_json(kind, request)
    except values.NoCodec as error:
        raise ConfigError(f"request {kind.__name__} cannot be stored", str(error), values.STORABLE) from None
    except values.Unstorable as error:
        what = f"request {kind.__name__}{error.path} cannot be stored"
        raise ConfigError(what, error.given, error.allowed) from None
    if effect_of(request) == "unsafe":  # after the crash it would be too late
        try:
            _reply_codec(request).encode(request.in_doubt())
        except values.Unstorable:
            raise without_doubt(kind) from None
    return kept


def is_kept_as(request: Any, kept: Any) -> bool:
    """Is this the request that was kept? Older versions kept requests as they are ``shown``."""
    return any(kept == json.loads(dumps(form(request))) for form in (request_record, request_json))


def reply_record(request: Any, reply: Any) -> dict[str, Any]:
    """A reply as it is kept, every field of it; ``read_reply`` reads it. Raises ``ConfigError`` for one of
    another type than the request names."""
    if not answerable(request):
        return request_json(reply)
    try:
        return _to_json(type(request).reply, reply)
    except values.Unstorable as error:
        what = f"the reply to {type(request).__name__}{error.path} cannot be stored"
        raise ConfigError(what, error.given, error.allowed) from None


def read_reply(request: Any, kept: Mapping[str, Any]) -> Any:
    """The reply that ``reply_record`` kept. Only of a request that is ``answerable``."""
    return read_kept(type(request).reply, kept)


def answered(request: Any, said: Any) -> Any:
    """The reply that a person's words mean. Raises ``ConfigError``."""
    name = type(request).__name__
    if not answerable(request):
        raise ConfigError(
            f"the reply type of {name} is unknown",
            None,
            f"in class {name}: reply: ClassVar[type] = TheReply; or let it be done",
        )
    kind: Any = type(request).reply
    if kind is type(None):
        return None
    fields = [one.name for one in dataclasses.fields(kind)] if values.is_flat(kind) else []
    allowed = ", ".join(fields) or values.name_of(kind)
    if fields:
        said = said if isinstance(said, Mapping) else {fields[0]: said}
        if unknown := sorted(set(said) - {*fields, "is"}):
            raise ConfigError(f"{name} cannot be answered so", unknown[0], allowed)
    try:
        reply = read_kept(kind, said if fields else {"value": said})
        values.codec_of(kind).encode(reply)
    except values.UNREADABLE as error:
        raise ConfigError(f"{name} cannot be answered so ({error})", said, allowed) from None
    return reply


# ----------------------------------------------------------------------------------------------------
# What changed in a turn since the last move, as JSON values: small, however long the turn has become.
#
# A snapshot is an object of fields. ``Tracker.delta`` gives what of it changed; ``apply_deltas`` puts deltas
# on top of each other, so that the snapshot at any move is the sum of those before. A changed list is written
# as what was cut and what was added, a changed object as its changed keys.


KEPT, ADDED, SET, GONE, IN = "kept", "added", "set", "gone", "in"


def difference(before: Any, after: Any) -> Any:
    """``after`` as a change of ``before``: ``{"to": …}`` for a new value, else what to add to a list, or what
    to set, drop and change in an object."""
    if not before or type(before) is not type(after):
        return {"to": after}
    if isinstance(after, list):
        alike = _common(before, after)
        return {KEPT: alike, ADDED: after[alike:]} if alike else {"to": after}
    if isinstance(after, dict):
        put, inner = {}, {}
        for key, value in after.items():
            if key in before and before[key] == value:
                continue
            nested = key in before and isinstance(value, list | dict)
            if nested and "to" not in (change := difference(before[key], value)):
                inner[key] = change
            else:
                put[key] = value
        kept = [key for key in before if key in after]
        gone = [key for key in before if key not in after]
        smaller = inner or len(put) + len(gone) < len(after)
        if smaller and list(after)[: len(kept)] == kept:  # order counts
            return {SET: put, GONE: gone, **({IN: inner} if inner else {})}
    return {"to": after}


def apply_change(before: Any, change: Mapping[str, Any]) -> Any:
    """The value after a change that ``difference`` made; ``before`` stays as it is."""
    if "to" in change:
        return change["to"]
    if KEPT in change:
        return [*before[: change[KEPT]], *change[ADDED]]
    after = (
        before
        | change[SET]
        | {key: apply_change(before[key], one) for key, one in change.get(IN, {}).items()}
    )
    for key in change[GONE]:
        del after[key]
    return after


def apply_deltas(start: Mapping[str, Any], deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshot after all deltas, in order."""
    found = dict(start)
    for delta in deltas:
        for name, change in delta.items():
            found[name] = apply_change(found.get(name), change)
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
            self._held[place], self._written[name] = value if codec.frozen else codec.held(value), after
            if after != before:
                nested = isinstance(after, list | dict)
                changed[name] = difference(before, after) if nested else {"to": after}
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
        for part, value in values.fields_in(self._turn, self._fields):
            if part.codec.frozen and part.name in self._held and value is self._held[part.name]:
                continue
            after = values.field_to_json(self._turn, part, value)
            held[part.name], text = value, dumps(after)
            if text != self._texts.get(part.name):
                written[part.name], texts[part.name] = after, text
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
        return change if dumps(apply_change(before, change)) == text else {"to": after}
