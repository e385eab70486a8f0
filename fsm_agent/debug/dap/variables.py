"""The contents of a frame as an editor's tree of variables: scopes and their values, paged, truncated if
long, with secrets redacted.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never, get_args, overload

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.record import Record
from fsm_agent.debug.dap.threads import TurnThread
from fsm_agent.debug.dap.threads import variables as waiting
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.condition_parser import condition
from fsm_agent.support.redaction import Exact, mask_json

ScopeName = Literal["Counters", "Facts", "Messages", "Request", "Guards"]
Key = str | int
NAMES: Mapping[ScopeName, str] = {"Messages": "messages", "Request": "visit", "Guards": "guards"}
"""Names of the scopes in expressions; counters and facts are named directly."""
LONGEST = 1_000
"""Maximum characters of a text in the tree; the clipboard gets the whole text."""
_PREVIEW = 80


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Location of a value: the turn's thread, the position, the scope, and the path within it."""

    thread: int
    at: int
    scope: ScopeName
    path: tuple[Key, ...] = ()

    def to(self, key: Key) -> ValuePlace:
        """Return the location of a child."""
        return ValuePlace(self.thread, self.at, self.scope, (*self.path, key))


class Transcript(Sequence[Any]):
    """The transcript at a position, read in ranges."""

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
        while first + len(found) < last:  # the record limits the size of one page
            found += self._record.messages(self._at, first + len(found), last - 1)
        return found


@dataclass(frozen=True, slots=True)
class Lazy:
    """A value computed when it is first shown."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value with a more specific type than its JSON type."""

    value: Any
    type: str


@dataclass(slots=True)
class References:
    """Numbers of the values that an editor may expand until the turn continues. ``settable``: whether the
    value at a path can be changed."""

    settable: Callable[[ValuePlace], bool]
    secrets: Sequence[str] = ()
    _open: dict[int, tuple[ValuePlace, Any]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, place: ValuePlace, value: Any) -> int:
        """Register a value and return the number with which the editor requests its children."""
        number = next(self._numbers)
        self._open[number] = (place, value)
        return number

    def forget(self, thread: int) -> None:
        """Drop all references of a thread: its turn continues, so the values shown are stale."""
        self._open = {number: one for number, one in self._open.items() if one[0].thread != thread}

    def get(self, number: Any) -> tuple[ValuePlace, Any]:
        """Return a value and its location. Raises ``ConfigError`` for an unknown number."""
        if number not in self._open:
            raise ConfigError("this value is no longer shown", number, "one of the scopes of a paused turn")
        place, value = self._open[number]
        if isinstance(value, Lazy):
            value = value.make()
            self._open[number] = (place, value)
        return place, value

    def children(
        self, number: Any, kind: str | None = None, start: int = 0, count: int = 0
    ) -> list[dict[str, Any]]:
        """Return a value's children; ``kind``: indexed, named or both; ``count`` 0: all from ``start``."""
        place, value = self.get(number)
        last = start + count if count else None
        pairs: list[tuple[Key, Any]] = []
        if isinstance(value, Mapping) and kind != "indexed":
            pairs = list(value.items())[start:last]
        elif is_list(value) and kind != "named":
            pairs = list(enumerate(value[start:last], start))
        return [self.variable(key, one, place.to(key)) for key, one in pairs]

    def variable(self, key: Key, value: Any, place: ValuePlace) -> dict[str, Any]:
        """Return one variable in the protocol's format."""
        shown = self.show(value, place, name=key if isinstance(key, str) else "")
        body = {
            "name": f"[{key}]" if isinstance(key, int) else key,
            **shown,
            "evaluateName": expression(place),
        }
        if not self.settable(place):
            body["presentationHint"] = {"attributes": ["readOnly"]}
        return body

    def show(self, value: Any, place: ValuePlace, *, name: str = "", whole: bool = False) -> dict[str, Any]:
        """Return ``value``, ``type``, and reference. ``name`` identifies secrets; ``whole``: do not
        truncate."""
        kind = type_of(value)
        if isinstance(value, TypedValue):
            value = value.value
        hidden = mask_json({name: value}, self.secrets)[name] if isinstance(value, str) else value
        body: dict[str, Any] = {
            "value": mask_json(_format_value(hidden, whole), self.secrets),
            "type": kind,
            "variablesReference": 0,
        }
        if isinstance(value, Mapping | Lazy) or is_list(value):
            if isinstance(value, Lazy) or len(value):
                body["variablesReference"] = self.add(place, value)
            if isinstance(value, Mapping):
                body["namedVariables"] = len(value)
            elif not isinstance(value, Lazy):
                body["indexedVariables"] = len(value)
        return body


def is_list(value: Any) -> bool:
    """Return whether a value is shown as a list."""
    return isinstance(value, list | tuple | Transcript)


def type_of(value: Any) -> str:
    """Return the JSON type of a value."""
    match value:
        case TypedValue(type=name):
            return name
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping() | Lazy():
            return "object"
    return "array"


def expression(place: ValuePlace) -> str:
    """Return the expression with which ``evaluate`` finds the value at a place; see ``NAMES``."""
    path: tuple[Key, ...] = place.path
    if place.scope in NAMES:
        path = (NAMES[place.scope], *path)
    words = str(path[0]) if path else ""
    for key in path[1:]:
        plain = isinstance(key, str) and key.isidentifier()
        words += f".{key}" if plain else f"[{json.dumps(key, ensure_ascii=False)}]"
    return words


def _format_value(value: Any, whole: bool) -> str:
    if isinstance(value, Exact):
        return value
    if isinstance(value, Lazy):
        return "…"
    if whole and is_list(value) and value and all(isinstance(one, Exact) for one in value):
        return Exact("\n".join(value))
    if whole and not isinstance(value, Transcript):
        return (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
        )
    if isinstance(value, Mapping):
        return _object(value)
    if is_list(value):
        return f"{len(value)} item" + ("" if len(value) == 1 else "s")
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _object(value: Mapping[str, Any]) -> str:
    """Summarize a message by its role and text, any other object by its first few plain values."""
    if "role" in value:
        calls = ", ".join(
            str((call.get("function") or call).get("name")) for call in value.get("tool_calls") or ()
        )
        return _cut(f"{value['role']}: {value.get('content') or ''}" + (f" → {calls}" if calls else ""))
    plain = [
        f"{name}: {json.dumps(mask_json({name: one})[name], ensure_ascii=False)}"
        for name, one in itertools.islice(value.items(), 12)
        if isinstance(one, str | int | float | bool)
    ]
    return _cut("{" + ", ".join([*plain, *(["…"] if len(plain) < len(value) else [])]) + "}")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW else f"{line[: _PREVIEW - 1]}…"


ELSEWHERE = frozenset({"history", "rows"})
"""Parts of a snapshot that have their own scope, besides counters."""


def scopes_of(thread: TurnThread, at: int, references: References) -> list[dict[str, Any]]:
    """Return the body of ``scopes`` at a position."""
    debugger, scopes = thread.debugger, list[dict[str, Any]]()
    for name in get_args(ScopeName):
        if name != "Messages" or debugger.kind.talks:
            value = (
                Lazy(lambda: request_variables(debugger, at))
                if name == "Request"
                else scope_value(debugger, at, name)
            )
            scopes.append(_scope(name, value, references.add(ValuePlace(thread.id, at, name), value)))
    return scopes


def scope_value(debugger: Debugger, at: int, name: ScopeName) -> Any:
    """Return the contents of a scope at a position."""
    match name:
        case "Counters":
            return counters(debugger.record.snapshot(at), debugger.kind.counters)
        case "Facts":
            return facts(debugger, at)
        case "Messages":
            return Transcript(debugger.record, at)
        case "Request":
            return request_variables(debugger, at)
        case "Guards":
            return guards(debugger, at)
        case _:
            assert_never(name)


def _scope(name: ScopeName, value: Any, reference: int) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name, "variablesReference": reference, "expensive": name == "Request"}
    if isinstance(value, Transcript):
        body["indexedVariables"] = len(value)
    elif isinstance(value, Mapping):
        body["namedVariables"] = len(value)
    if name == "Counters":
        body["presentationHint"] = "locals"
    return body


def guards(debugger: Debugger, at: int) -> dict[str, Any]:
    """Return every budget that was checked for the move to a position, also the exhausted ones, and the row
    that was taken."""
    step = next(iter(debugger.record.steps(at, at)), None) if at else None
    if step is None:
        return {}
    row = next((row for row in debugger.table.rows if row.id == step.row), None)
    about = {"why": row.why, "rung": row.rung, "guard": row.guard.label} if row is not None else {}
    changes = {name: f"{before} → {after}" for name, before, after in step.changes}
    exit_reason = {"exit": step.exit} if step.exit else {}
    return {**dict(step.guards), "row": step.row, **about, "changes": changes, **exit_reason}


def facts(debugger: Debugger, at: int) -> dict[str, Any]:
    """Return the stored turn without the parts that have their own scope."""
    names = ELSEWHERE.union(debugger.kind.counters)
    return {name: value for name, value in debugger.record.snapshot(at).items() if name not in names}


def counters(snapshot: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the counters, each with its limit as its type."""
    limits = snapshot.get("limits", {})
    values = {name: snapshot.get(name, 0) for name in names}
    return {
        name: TypedValue(value, f"number, limit {limits[name]}") if name in limits else value
        for name, value in values.items()
    }


def request_variables(debugger: Debugger, at: int) -> dict[str, Any]:
    """Return the requests of the state, each with its reply; the pending requests; and the request on the
    wire, if there is one."""
    status, found = debugger.status, dict[str, Any]()
    for entry in debugger.visit(at):
        shown = {
            name: entry[name]
            for name in ("status", "request", "reply", "seconds")
            if entry.get(name) is not None
        }
        found[label(entry)] = shown
    if at == status.seq and status.held:
        found["waits for a person"] = waiting(status.held)
    if debugger.kind.talks and debugger.record.path()[at] == debugger.kind.over:
        found["on the wire"] = Lazy(lambda: debugger.wire(at))
    return found


def label(entry: Mapping[str, Any]) -> str:
    """Return a request's name in the tree; unique within a visit."""
    name = f" {entry['name']}" if entry["name"] else ""
    return f"{entry['ordinal']}.{entry['place']} {entry['kind']}{name}"


# ----------------------------------------------------------------------------------------------------
# What a person types at a position: expressions such as ``retries``, ``retries >= 2``, ``meter.prompt``,
# ``messages[-1].content``, ``guards.row``; and new values for entries of the tree, which become edits for a
# fork of the turn.


_FIRST = re.compile(r"\s*([A-Za-z_]\w*)")
_NEXT = re.compile(r'\s*(?:\.([A-Za-z_]\w*)|\[\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*\])')
SCOPES: Mapping[str, ScopeName] = {word: scope for scope, word in NAMES.items()}


def evaluate(thread: TurnThread, at: int, text: str) -> tuple[ValuePlace, Any]:
    """Return (location, value) of an expression. A comparison has no location. Raises ``ConfigError``."""
    path = path_of(text)
    if path is not None:
        return _value(thread, at, path, text)
    counters = thread.debugger.record.counters(at, thread.debugger.kind.counters)
    return ValuePlace(thread.id, at, "Guards", (text,)), condition(text, counters)(counters)


def names_after(thread: TurnThread, at: int, before: str) -> list[str]:
    """Return the possible completions of ``before``, which ends in the middle of a name."""
    whole, _, _ = before.rpartition(".")
    if not whole:
        return [*thread.debugger.kind.counters, *facts(thread.debugger, at), *SCOPES]
    path = path_of(whole)
    if path is None:
        return []
    value = _value(thread, at, path, whole)[1]
    return [key for key in value if key.isidentifier()] if isinstance(value, Mapping) else []


def _value(thread: TurnThread, at: int, path: tuple[Key, ...], text: str) -> tuple[ValuePlace, Any]:
    first, names = str(path[0]), thread.debugger.kind.counters
    scope = "Counters" if first in names else SCOPES.get(first, "Facts")
    value = scope_value(thread.debugger, at, scope)
    if first not in SCOPES and first not in value:
        raise ConfigError(
            "no such name", first, f"counters ({', '.join(names)}), facts, messages, visit, guards"
        )
    return _walk(ValuePlace(thread.id, at, scope), value, path[1:] if first in SCOPES else path, text)


def _walk(place: ValuePlace, value: Any, path: tuple[Key, ...], text: str) -> tuple[ValuePlace, Any]:
    for key in path:
        if isinstance(value, Lazy):
            value = value.make()
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif is_list(value) and isinstance(key, int) and -len(value) <= key < len(value):
            key %= len(value)
            value = value[key]
        else:
            raise ConfigError(f"there is no {json.dumps(key)} in this value", text, _in(value))
        place = place.to(key)
    return place, value.value if isinstance(value, TypedValue) else value


def path_of(text: str) -> tuple[Key, ...] | None:
    """Parse a path into steps; ``None`` for anything else."""
    first = _FIRST.match(text)
    if first is None or first[1] in ("not", "and", "or", "True", "False"):
        return None
    path: list[Key] = [first[1]]
    end = first.end()
    while found := _NEXT.match(text, end):
        path.append(found[1] if found[1] is not None else json.loads(found[2]))
        end = found.end()
    return tuple(path) if not text[end:].strip() else None


def _in(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(map(str, value)) or "nothing, it is empty"
    return f"0 to {len(value) - 1}" if is_list(value) and len(value) else "nothing, it has no parts"


FIXED = frozenset({"turn_id", "session_id", "seq", "state"})
"""Facts that define the turn."""
REPLIES = ("reply", "text")


def settable(place: ValuePlace) -> bool:
    """Return whether a person may change the value there."""
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


def edit_of(debugger: Debugger, place: ValuePlace, text: str) -> tuple[dict[str, Any], Any]:
    """Return (edit, new value) for a person's input. Raises ``ConfigError`` if the value cannot be changed,
    or not to this value."""
    if not settable(place):
        raise ConfigError(
            "this value cannot be changed",
            ".".join(map(str, place.path)),
            "counters, facts, messages, replies",
        )
    match place.scope:
        case "Counters":
            return _counter(debugger, str(place.path[0]), text)
        case "Facts":
            field, *way = place.path
            snapshot = debugger.record.snapshot(place.at)
            new = read(text, _at(snapshot, place.path))
            return {"fields": {field: _with(snapshot[str(field)], way, new)}}, new
        case "Messages":
            index, *way = place.path
            row = Transcript(debugger.record, place.at)[int(index)]
            new = read(text, _at(row, way))
            return {"messages": {int(index): _with(row, way, new)}}, new
    return _reply(debugger, place, text)


def _counter(debugger: Debugger, name: str, text: str) -> tuple[dict[str, Any], int]:
    if name not in debugger.kind.counters or not text.strip().isdecimal():
        raise ConfigError(f"counter {name} cannot be set so", text, "a whole number from 0")
    return {"counters": {name: int(text)}}, int(text)


def _reply(debugger: Debugger, place: ValuePlace, new_text: str) -> tuple[dict[str, Any], str]:
    entry = next((one for one in debugger.visit(place.at) if label(one) == place.path[0]), None)
    if entry is None or not isinstance(entry.get("reply"), Mapping):
        raise ConfigError(
            "there is no reply yet to change", place.path[0], "hold it back with :hold, and :answer it"
        )
    text = read(new_text, "")
    if entry["kind"] == "RunTool":
        return {"results": {entry["request"]["call_id"]: text}}, text
    return {"reply": {"text": text, "tool_calls": entry["reply"].get("tool_calls") or []}}, text


def read(text: str, old: Any) -> Any:
    """Parse a person's input: JSON, or plain text where a text is expected. Raises ``ConfigError``."""
    if isinstance(old, str) and not text.lstrip().startswith('"'):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if old is None or isinstance(old, str):
            return text
        raise ConfigError(
            "this value cannot be read", text, f"JSON, such as {json.dumps(old, ensure_ascii=False)[:80]}"
        ) from None


def _at(value: Any, way: Sequence[Key]) -> Any:
    for key in way:
        value = value[key]
    return value


def _with(value: Any, way: Sequence[Key], new: Any) -> Any:
    """Return a copy of ``value`` with ``new`` at the end of the path."""
    if not way:
        return new
    key, *rest = way
    if isinstance(value, Mapping):
        return {**value, key: _with(value[str(key)], rest, new)}
    return [_with(one, rest, new) if index == key else one for index, one in enumerate(value)]
