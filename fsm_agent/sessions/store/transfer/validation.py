"""Is this a whole and sound export? Every line by itself, then all of them together."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.nesting import checked
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.deltas import patched
from fsm_agent.sessions.store.contents import ELSEWHERE, IN_PARTS
from fsm_agent.sessions.store.rows import GUARD, METER, PROMPTS, USAGE
from fsm_agent.sessions.store.transfer.line_format import FORMAT, KINDS, End, ExportLine, Header

L = TypeVar("L", bound=ExportLine)


MAX_LINE = 100_000_000
"""Characters of one line; no message and no turn is as long. Readers need not read more of one."""


class _BadLine(Exception):
    """Why a line is not taken."""


@dataclass(slots=True)
class ExportedLines:
    """What was read: the header, and by kind each line with its number."""

    header: Header
    of: dict[str, list[tuple[int, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})


def read_lines(lines: Iterable[str], name: str) -> ExportedLines:
    """Return all lines of a file called ``name``. Raises ``ConfigError`` that names the first bad one."""
    file: ExportedLines | None = None
    number, ended = 0, False
    try:
        for number, text in enumerate(lines, 1):
            if ended:
                raise _BadLine("there is nothing behind the end")
            if len(text) > MAX_LINE:
                raise _BadLine(f"it has more than {MAX_LINE:,} characters")
            said = _json(text)
            kind = str(said.get("kind"))
            if file is None:
                file = ExportedLines(_header(said))
            elif kind == "end":
                if (before := _checked(End, said).lines) != number - 1:
                    raise _BadLine(f"{number - 1} lines stand before the end, {before} were written")
                ended = True
            elif kind in KINDS:
                file.of[kind].append((number, _checked(KINDS[kind], said)))
            else:
                raise _BadLine(f"unknown kind {kind[:40]!r}; known: {', '.join(KINDS)}")
        if file is None:
            raise _BadLine("there is nothing in it")
        if not ended:
            raise _BadLine('the file was cut: its last line must be {"kind": "end", …}')
        if (first := next(_problems(file), None)) is not None:
            number = first[0]
            raise _BadLine(first[1])
    except _BadLine as error:
        raise ConfigError(f"{name} cannot be imported: line {max(1, number)}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be imported: line {number + 1}: it is not UTF-8") from None
    return file


def _header(said: Mapping[str, Any]) -> Header:
    if said.get("kind") != "fsm-agent":
        raise _BadLine('the first line must be {"kind": "fsm-agent", "format": 1, …}')
    if said.get("format") != FORMAT:
        raise _BadLine(
            f"format {said.get('format')!r} is of another version of fsm-agent; this one reads format"
            f" {FORMAT}"
        )
    return _checked(Header, said)


def _json(text: str) -> dict[str, Any]:
    try:
        said = checked(json.loads(text))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise _BadLine("this is no JSON object")
    return said


def _checked(kind: type[L], said: Mapping[str, Any]) -> L:
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _BadLine(f"{said.get('kind')}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def _problems(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """What is wrong between the lines, with the number of the line that shows it."""
    sessions = {line.id for _, line in file.of["session"]}
    turns = {line.id: line for _, line in file.of["turn"]}
    yield from _unknown(file, sessions, turns)
    yield from _repeated(file)
    yield from _circles(file)
    yield from _unreadable(file)
    yield from _parts_elsewhere(file)
    yield from _broken_turns(file, sessions)
    if file.header.id not in (sessions if file.header.of == "session" else turns):
        yield 1, f"the {file.header.of} that it names is not in the file"


def _unknown(file: ExportedLines, sessions: set[str], turns: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    named: dict[str, Mapping[str, Container[str]]] = {
        "session": {"parent": sessions, "successor": sessions}, "transcript": {"session": sessions},
        "turn": {"session": sessions, "parent": turns}, "message": {"session": sessions, "turn": turns},
        "move": {"turn": turns}, "effect": {"turn": turns}, "usage": {"turn": turns},
    }  # fmt: skip
    for kind, references in named.items():
        for number, line in file.of[kind]:
            for name, known in references.items():
                if (value := getattr(line, name)) is not None and value not in known:
                    yield number, f"{name} {value} is not in the file"
    numbers = {(line.session, line.number) for _, line in file.of["message"]}
    for number, transcript in file.of["transcript"]:
        if missing := [one for one in transcript.numbers if (transcript.session, one) not in numbers]:
            yield number, f"message {missing[0]} of session {transcript.session} is not in the file"


def _repeated(file: ExportedLines) -> Iterator[tuple[int, str]]:
    keys: dict[str, Sequence[str]] = {
        "session": ("id",), "transcript": ("session", "version"), "turn": ("id",),
        "message": ("session", "number"),
        "move": ("turn", "seq"), "effect": ("turn", "seq", "ordinal", "place"),
    }  # fmt: skip
    for kind, names in keys.items():
        seen: set[tuple[Any, ...]] = set()
        for number, line in file.of[kind]:
            key = tuple(getattr(line, name) for name in names)
            if key in seen:
                yield number, f"the {line.kind} {' '.join(map(str, key))} is in the file twice"
            seen.add(key)


def _circles(file: ExportedLines) -> Iterator[tuple[int, str]]:
    for kind, name in (("session", "parent"), ("session", "successor"), ("turn", "parent")):
        leads = {line.id: getattr(line, name) for _, line in file.of[kind]}
        ends: set[str | None] = {None}
        for number, line in file.of[kind]:
            place, seen = line.id, set[str]()
            while place not in ends and place not in seen:
                seen.add(place)
                place = leads[place]
            if place not in ends:
                yield number, f"{name} leads round in a circle"
            else:
                ends |= seen


def _unreadable(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """Values that only look like what they should be."""
    for number, message in file.of["message"]:
        if (problem := _problem(Message.from_dict, message.body)) or message.body["role"] != message.role:
            yield number, problem or "role is not that of the body"
    for number, session in file.of["session"]:
        for name, codec in (("prompts", PROMPTS), ("meter", METER), ("guard", GUARD), ("usage", USAGE)):
            if problem := _problem(codec.decode, getattr(session, name)):
                yield number, f"{name}: {problem}"


def _parts_elsewhere(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """A file has everything in it: what it said of parts elsewhere would be taken from the store it comes
    into."""
    for kind, names in (("turn", IN_PARTS["turns"]), ("move", IN_PARTS["transitions"])):
        for number, line in file.of[kind]:
            for name in names:
                if ELSEWHERE in (getattr(line, name) or {}):
                    yield number, f"{name}: no field has an empty name"


def _problem(read: Callable[[Any], object], value: object) -> str:
    try:
        read(value)
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _broken_turns(file: ExportedLines, sessions: set[str]) -> Iterator[tuple[int, str]]:
    moves: dict[str, list[tuple[int, Any]]] = {}
    for number, move in file.of["move"]:
        moves.setdefault(move.turn, []).append((number, move))
    for number, turn in file.of["turn"]:
        made = sorted(moves.get(turn.id, ()), key=lambda one: one[1].seq)
        first = (turn.forked_at or 0) + 1
        if (turn.parent is None) != (turn.forked_at is None):
            yield number, "a forked turn names both parent and forked_at"
        elif [move.seq for _, move in made] != list(range(first, turn.seq + 1)):
            yield number, f"its moves are not numbered {first} to {turn.seq}"
        elif made and made[-1][1].dest != turn.state:
            yield number, f"it is in {turn.state}, but its last move leads to {made[-1][1].dest}"
        yield from _broken_snapshots(number, turn, made, sessions)


def _broken_snapshots(
    number: int, turn: Any, made: list[tuple[int, Any]], sessions: set[str]
) -> Iterator[tuple[int, str]]:
    snapshot, changes = (
        turn.start,
        [("start", number, {}), *(("delta", place, move.delta) for place, move in made)],
    )
    for name, place, delta in [*changes, ("delta", number, turn.final or {})]:
        try:
            snapshot = patched(snapshot, [delta])
        except (TypeError, KeyError, AttributeError):
            yield place, "delta does not fit what was before it"
            return
        if problem := _misplaced(snapshot, turn.id, sessions):
            yield place, f"{name}: {problem}"
            return


def _misplaced(snapshot: Mapping[str, Any], turn: str, sessions: set[str]) -> str:
    match snapshot.get("history"), snapshot.get("rows"):
        case [str(session), int(), int(), int()], list():
            if snapshot.get("turn_id") != turn:
                return "turn_id must be the turn's own"
            return "" if session in sessions else f"session {session} is not in the file"
    return "history must be [session, version, length, newest number], rows a list"
