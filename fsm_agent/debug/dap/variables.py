"""Values as an editor's tree of variables: paged, cut where they are long, without secrets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from fsm_agent.debug.core.masking import masked
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError

ScopeName = Literal["Counters", "Facts", "Messages", "Request", "Guards"]
Key = str | int
NAMES: Mapping[ScopeName, str] = {"Messages": "messages", "Request": "visit", "Guards": "guards"}
"""What scopes are called in expressions; counters and facts are named directly."""
LONGEST = 1_000
"""Characters of a text in the tree; the clipboard gets all of it."""
_PREVIEW = 80


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is: the turn's thread, the position, the scope, and the way from there."""

    lane: int
    at: int
    scope: ScopeName
    path: tuple[Key, ...] = ()

    def to(self, key: Key) -> Place:
        return Place(self.lane, self.at, self.scope, (*self.path, key))


class Rows(Sequence[Any]):
    """The transcript at a position, read by ranges."""

    def __init__(self, record: Record, at: int) -> None:
        self._record, self._at = record, at
        self._count = record.message_count(at)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int):
            if not -self._count <= index < self._count:
                raise IndexError(index)
            return self._record.messages(self._at, index % self._count, index % self._count)[0]
        first, last, _ = index.indices(self._count)
        found: list[Any] = []
        while first + len(found) < last:  # the record gives so many at once at most
            found += self._record.messages(self._at, first + len(found), last - 1)
        return found


@dataclass(frozen=True, slots=True)
class Later:
    """A value that is made when somebody looks at it."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Typed:
    """A value whose type says more than its JSON does."""

    value: Any
    type: str


@dataclass(slots=True)
class References:
    """Numbers of the values that an editor may open, until the turn goes on. ``settable``: may the value at a place be
    changed?"""

    settable: Callable[[Place], bool]
    secrets: Sequence[str] = ()
    _open: dict[int, tuple[Place, Any]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, place: Place, value: Any) -> int:
        number = next(self._numbers)
        self._open[number] = (place, value)
        return number

    def forget(self, lane: int) -> None:
        """A turn goes on: what was shown of it is old."""
        self._open = {number: one for number, one in self._open.items() if one[0].lane != lane}

    def get(self, number: Any) -> tuple[Place, Any]:
        """Raises ``ConfigError`` for one that is not open."""
        if number not in self._open:
            raise ConfigError("this value is no longer shown", number, "one of the scopes of a turn that stands still")
        place, value = self._open[number]
        if isinstance(value, Later):
            value = value.make()
            self._open[number] = (place, value)
        return place, value

    def children(self, number: Any, kind: str | None = None, start: int = 0, count: int = 0) -> list[dict[str, Any]]:
        """Variables in a value; ``kind`` is indexed, named or both; ``count`` 0 are all from ``start`` on."""
        place, value = self.get(number)
        last = start + count if count else None
        pairs: list[tuple[Key, Any]] = []
        if isinstance(value, Mapping) and kind != "indexed":
            pairs = list(value.items())[start:last]
        elif is_list(value) and kind != "named":
            pairs = list(enumerate(value[start:last], start))
        return [self.variable(key, one, place.to(key)) for key, one in pairs]

    def variable(self, key: Key, value: Any, place: Place) -> dict[str, Any]:
        """One variable, as the protocol has it."""
        said = self.said(value, place, name=key if isinstance(key, str) else "")
        made = {"name": f"[{key}]" if isinstance(key, int) else key, **said, "evaluateName": expression(place)}
        if not self.settable(place):
            made["presentationHint"] = {"attributes": ["readOnly"]}
        return made

    def said(self, value: Any, place: Place, *, name: str = "", whole: bool = False) -> dict[str, Any]:
        """``value``, ``type`` and what opens it. ``name`` tells a secret; ``whole``: not cut."""
        kind = type_of(value)
        if isinstance(value, Typed):
            value = value.value
        hidden = masked({name: value}, self.secrets)[name] if isinstance(value, str) else value
        made: dict[str, Any] = {"value": masked(_shown(hidden, whole), self.secrets), "type": kind, "variablesReference": 0}
        if isinstance(value, Mapping | Later) or is_list(value):
            if isinstance(value, Later) or len(value):
                made["variablesReference"] = self.add(place, value)
            if isinstance(value, Mapping):
                made["namedVariables"] = len(value)
            elif not isinstance(value, Later):
                made["indexedVariables"] = len(value)
        return made


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | Rows)


def type_of(value: Any) -> str:
    """In JSON's words."""
    match value:
        case Typed(type=name):
            return name
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping() | Later():
            return "object"
    return "array"


def expression(place: Place) -> str:
    """What ``evaluate`` takes for the value at a place; see ``NAMES``."""
    path: tuple[Key, ...] = place.path
    if place.scope in NAMES:
        path = (NAMES[place.scope], *path)
    words = str(path[0]) if path else ""
    for key in path[1:]:
        plain = isinstance(key, str) and key.isidentifier()
        words += f".{key}" if plain else f"[{json.dumps(key, ensure_ascii=False)}]"
    return words


def _shown(value: Any, whole: bool) -> str:
    if isinstance(value, Later):
        return "…"
    if whole and not isinstance(value, Rows):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if isinstance(value, Mapping):
        return _object(value)
    if is_list(value):
        return f"{len(value)} item" + ("" if len(value) == 1 else "s")
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _object(value: Mapping[str, Any]) -> str:
    """A message by its role and words, anything else by its first few plain parts."""
    if "role" in value:
        calls = ", ".join(str((call.get("function") or call).get("name")) for call in value.get("tool_calls") or ())
        return _cut(f"{value['role']}: {value.get('content') or ''}" + (f" → {calls}" if calls else ""))
    plain = [
        f"{name}: {json.dumps(masked({name: one})[name], ensure_ascii=False)}"
        for name, one in itertools.islice(value.items(), 12)
        if isinstance(one, str | int | float | bool)
    ]
    return _cut("{" + ", ".join([*plain, *(["…"] if len(plain) < len(value) else [])]) + "}")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW else f"{line[: _PREVIEW - 1]}…"
