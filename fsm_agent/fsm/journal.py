"""The record of a turn, in order: every request and reply, and every move. All views of a turn read it.

A running turn writes through ``Journal``: ``asked`` before requests are performed, ``got`` for each reply,
``moved`` for each transition. A large request that can be derived from other data defines ``recorded()``,
which returns what to keep of it.
"""

# Record a change inside an object as a delta. Otherwise each tool round would rewrite the guardrails' whole
# memory.

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
from fsm_agent.fsm.codec import AS_IT_IS, Codec, dumps, fields_of, restore, values_of
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
    """One move. ``guards``: (label, value) of every budget evaluated, in order; ``changes``: (counter,
    before, after); ``seconds``: time spent in the state just left."""

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
    """One request of a state and its reply; lists for concurrent requests. ``ordinal`` counts within the
    visit of the state."""

    seq: int
    state: str
    ordinal: int
    request: Any
    reply: Any = None

    @property
    def requests(self) -> list[Any]:
        """The requests as a list, even if there is only one."""
        return self.request if isinstance(self.request, list) else [self.request]


class Unknown:
    """Placeholder for a reply that is not known: the request has to be performed."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


class Journal(Protocol):
    """The port through which one running turn is recorded. ``JournalError`` means that another process now
    owns the turn, and this one must stop."""

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """Record requests before they are performed. For each, return its known reply or ``UNKNOWN``. Returns
        once everything that must be known after a crash is durable."""
        ...

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        """Record the reply to the request at ``place`` of ``exchange``."""
        ...

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        """Record that the reply to one request comes later. Return true once that is durable and the turn may
        be suspended, or false when it cannot be stored."""
        ...

    async def moved(self, step: Step) -> None:
        """Record a move. Returns once the move is durable, or certain to be before anything that depends on
        it. Called again with the same ``step`` after a failure, or if the waiting caller was cancelled."""
        ...


@dataclass(slots=True)
class MemoryJournal:
    """Keeps the record of one turn in memory: for turns of other tables, and for tests."""

    steps: list[Step] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """Record nothing: no intent in memory outlives a crash, and ``got`` records request and reply."""
        return [UNKNOWN] * len(exchange.requests)

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        kept = request.recorded() if hasattr(request, "recorded") else request
        self.exchanges.append(Exchange(exchange.seq, exchange.state, exchange.ordinal, kept, reply))

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        return True

    async def moved(self, step: Step) -> None:
        self.steps.append(step)


# ----------------------------------------------------------------------------------------------------
# Requests and replies of any table as JSON: to be displayed, stored, and read back. The declarations of a
# request about itself are in ``request``.


DEEP = 12
"""Maximum depth of nested values that are displayed; deeper ones appear as their ``repr``."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON for display. A dataclass becomes an object that names its class under
    ``"is"``; a value without a JSON form becomes its ``repr``."""
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
    """Return ``plain(value)``, always as an object."""
    values = plain(value)
    return values if isinstance(values, dict) else {"is": type(value).__name__, "value": values}


def refuse_unstorable(kind: type) -> None:
    """Raise ``ConfigError`` for a request class that cannot be stored, whose reply cannot be stored, or whose
    declared effect is inconsistent."""
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
    """Encode a value with the name of its type; the fields of a dataclass are stored beside the name."""
    name, encoded = values.name_of(annotation), values.codec_of(annotation).encode(value)
    return {"is": name, **encoded} if values.is_flat(annotation) else {"is": name, "value": encoded}


def read_kept(annotation: Any, kept: Mapping[str, Any]) -> Any:
    """Decode a value of this type from the stored form of a request or reply."""
    decode = values.codec_of(annotation).decode
    if values.is_flat(annotation):
        return decode({key: one for key, one in kept.items() if key != "is"})
    return decode(kept.get("value"))


def request_record(request: Any) -> dict[str, Any]:
    """Return the stored form of a request, by which it is recognized later. Raises ``ConfigError`` if it
    cannot be stored."""
    kind = type(request)
    try:
        kept = _to_json(kind, request)
    except values.NoCodec as error:
        raise ConfigError(f"request {kind.__name__} cannot be stored", str(error), values.STORABLE) from None
    except values.Unstorable as error:
        problem = f"request {kind.__name__}{error.path} cannot be stored"
        raise ConfigError(problem, error.given, error.allowed) from None
    if effect_of(request) == "unsafe":  # after the crash it would be too late
        try:
            _reply_codec(request).encode(request.in_doubt())
        except values.Unstorable:
            raise without_doubt(kind) from None
    return kept


def is_kept_as(request: Any, kept: Any) -> bool:
    """Return whether ``kept`` is the stored form of this request. Older versions stored the form of
    ``request_json``."""
    return any(kept == json.loads(dumps(form(request))) for form in (request_record, request_json))


def reply_record(request: Any, reply: Any) -> dict[str, Any]:
    """Return the stored form of a reply, with every field; ``read_reply`` reads it. Raises ``ConfigError``
    for a reply that is not of the type the request declares."""
    if not answerable(request):
        return request_json(reply)
    try:
        return _to_json(type(request).reply, reply)
    except values.Unstorable as error:
        problem = f"the reply to {type(request).__name__}{error.path} cannot be stored"
        raise ConfigError(problem, error.given, error.allowed) from None


def read_reply(request: Any, kept: Mapping[str, Any]) -> Any:
    """Read the reply that ``reply_record`` stored. The request must be ``answerable``."""
    return read_kept(type(request).reply, kept)


def convert_answer(request: Any, answer: Any) -> Any:
    """Convert a person's answer to the reply of a request. Raises ``ConfigError``."""
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
        answer = answer if isinstance(answer, Mapping) else {fields[0]: answer}
        if unknown := sorted(set(answer) - {*fields, "is"}):
            raise ConfigError(f"{name} cannot be answered so", unknown[0], allowed)
    try:
        reply = read_kept(kind, answer if fields else {"value": answer})
        values.codec_of(kind).encode(reply)
    except values.UNREADABLE as error:
        raise ConfigError(f"{name} cannot be answered so ({error})", answer, allowed) from None
    return reply


# ----------------------------------------------------------------------------------------------------
# Deltas between moves, as JSON values: small, however long the turn has become.
#
# A snapshot is an object of fields. ``Tracker.delta`` returns what changed in it; ``apply_deltas`` applies
# deltas in sequence, so that the snapshot at any move is the sum of the deltas before it. The delta of a list
# is the length of the common prefix and the items added after it; that of an object is its changed keys.


KEPT, ADDED, SET, GONE, IN = "kept", "added", "set", "gone", "in"


def difference(before: Any, after: Any) -> Any:
    """Return ``after`` as a change of ``before``: ``{"to": …}`` for a new value, else what to append to a
    list, or what to set, drop and change in an object."""
    kind = type(after)
    if not before or type(before) is not kind:
        return {"to": after}
    if kind is list:
        alike = _common(before, after)
        return {KEPT: alike, ADDED: after[alike:]} if alike else {"to": after}
    if kind is dict:
        put, inner = {}, {}
        for key, value in after.items():
            if key in before and before[key] == value:
                continue
            if type(value) in (list, dict) and "to" not in (change := difference(before.get(key), value)):
                inner[key] = change
            else:
                put[key] = value
        kept = [*filter(after.__contains__, before)]
        removed = [*itertools.filterfalse(after.__contains__, before)]
        smaller = inner or len(put) + len(removed) < len(after)
        if smaller and list(after)[: len(kept)] == kept:  # order counts
            return {SET: put, GONE: removed, **({IN: inner} if inner else {})}
    return {"to": after}


def apply_change(before: Any, change: Mapping[str, Any]) -> Any:
    """Apply a change made by ``difference``; ``before`` is not modified."""
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
    """Return the snapshot after all deltas, in order."""
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
    """Remembers the last seen state of a dataclass and returns what differs from it. Only changed fields are
    encoded; each other field costs one comparison."""

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
        """Return the changes since the last call by field; empty when nothing changed."""
        changed: dict[str, Any] = {}
        values = self._values(self._turn)
        for place in itertools.compress(self._places, map(operator.is_not, values, self._held)):
            value = values[place]
            if value == self._held[place]:
                continue
            name, codec = self._fields[place].name, self._fields[place].codec
            if codec is AS_IT_IS:
                self._held[place] = self._written[name] = value
                changed[name] = {"to": value}
                continue
            before, after = self._written[name], codec.encode(value)
            self._held[place], self._written[name] = value if codec.frozen else codec.held(value), after
            if after != before:
                changed[name] = difference(before, after)
        return changed


class ExactTracker:
    """A ``Tracker`` for a turn with the user's own types (``fsm_agent.fsm.values``). It compares encoded
    forms rather than values, because ``==`` equates 1 with True, and two objects that differ only in a field
    with ``compare=False``. Raises ``ConfigError`` for a value that cannot be stored; then nothing counts as
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
        """Return the changes since the last call by field; empty when nothing changed."""
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
        """Refuse a new attribute that is not a field: it would be lost, and is usually a misspelling."""
        kind = type(self._turn)
        for name in getattr(self._turn, "__dict__", {}).keys() - self._known:
            if not hasattr(kind, name):  # otherwise it is a cached property
                fields = [field.name for field in self._fields]
                raise ConfigError(f"{kind.__name__} has no such field", name, near(name, fields))

    def _change(self, name: str, after: Any, text: str) -> Any:
        before = self._written[name]
        change = difference(before, after)
        return change if dumps(apply_change(before, change)) == text else {"to": after}
