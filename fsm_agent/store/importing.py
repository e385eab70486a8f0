"""Reading back what ``export`` wrote: every line is checked before any is stored, and all are stored or none."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from fsm_agent.deltas import patched
from fsm_agent.errors import ConfigError
from fsm_agent.messages import Message
from fsm_agent.store.lines import FORMAT, KINDS, EffectLine, Header, Line, MessageLine, MoveLine, SessionLine, TranscriptLine, TurnLine, UsageLine
from fsm_agent.store.rows import GUARD, METER, PROMPTS, USAGE
from fsm_agent.store.store import ABANDONED, Store
from fsm_agent.store.titles import free_title

L = TypeVar("L", bound=Line)


@dataclass(frozen=True, slots=True)
class Imported:
    """``id`` is the session or turn that was exported, as it is called here; ``copied``: it was there already, so everything got new
    ids. ``unfinished``: turns that can be resumed here."""

    of: str
    id: str
    sessions: tuple[str, ...]
    turns: int
    messages: int
    copied: bool
    unfinished: tuple[str, ...]


class _BadLine(Exception):
    """Why a line is not taken."""


@dataclass(slots=True)
class _File:
    """What was read, with the numbers of the lines."""

    header: Header
    lines: dict[type[Line], list[tuple[int, Any]]] = field(default_factory=lambda: {line: [] for line in KINDS.values()})

    def of(self, kind: type[L]) -> list[tuple[int, L]]:
        return self.lines[kind]


def import_lines(store: Store, lines: Iterable[str], name: str = "the file") -> Imported:
    """Store what the lines describe. Sessions and turns whose ids are here already get new ones, all of the file together; an
    unfinished turn among them is given up then, because the one that is here may still be resumed, and nothing must be done
    twice. Raises ``ConfigError`` that names the first bad line."""
    file = _read(lines, name)

    def write(c: sqlite3.Connection) -> Imported:
        return _write(c, file, _new_ids(c, file))

    imported: Imported = store.database.write(write)
    return imported


# Reading


def _read(lines: Iterable[str], name: str) -> _File:
    file: _File | None = None
    number = 0
    try:
        for number, text in enumerate(lines, 1):
            if file is None:
                file = _File(_header(text))
            else:
                line = _line(text)
                file.lines[type(line)].append((number, line))
        if file is None:
            raise _BadLine("there is nothing in it")
        for number, problem in _problems(file):
            raise _BadLine(problem)
    except _BadLine as error:
        raise ConfigError(f"{name} cannot be imported: line {max(1, number)}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be imported: line {number + 1}: it is not UTF-8") from None
    return file


def _header(text: str) -> Header:
    said = _json(text)
    if said.get("kind") != "fsm-agent":
        raise _BadLine('the first line must be {"kind": "fsm-agent", "format": 1, …}')
    if said.get("format") != FORMAT:
        raise _BadLine(f"format {said.get('format')!r} is of another version of fsm-agent; this one reads format {FORMAT}")
    header: Header = _checked(Header, said)
    return header


def _line(text: str) -> Line:
    said = _json(text)
    kind = KINDS.get(str(said.get("kind")))
    if kind is None:
        raise _BadLine(f"unknown kind {str(said.get('kind'))[:40]!r}; known: {', '.join(KINDS)}")
    return _checked(kind, said)


def _json(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
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


# Checking


def _problems(file: _File) -> Iterator[tuple[int, str]]:
    """What is wrong between the lines, with the number of the line that shows it."""
    sessions = {line.id for _, line in file.of(SessionLine)}
    turns = {line.id: line for _, line in file.of(TurnLine)}
    yield from _unknown(file, sessions, turns)
    yield from _repeated(file)
    yield from _circles(file)
    yield from _unreadable(file)
    yield from _broken_turns(file, sessions)
    if file.header.id not in (sessions if file.header.of == "session" else turns):
        yield 1, f"the {file.header.of} that it names is not in the file"


def _unknown(file: _File, sessions: set[str], turns: Mapping[str, TurnLine]) -> Iterator[tuple[int, str]]:
    named: dict[type[Line], tuple[tuple[str, Iterable[str]], ...]] = {
        SessionLine: (("parent", sessions), ("successor", sessions)),
        TranscriptLine: (("session", sessions),),
        TurnLine: (("session", sessions), ("parent", turns)),
        MessageLine: (("session", sessions), ("turn", turns)),
        MoveLine: (("turn", turns),),
        EffectLine: (("turn", turns),),
        UsageLine: (("turn", turns),),
    }
    for kind, references in named.items():
        for number, line in file.of(kind):
            for name, known in references:
                if (value := getattr(line, name)) is not None and value not in known:
                    yield number, f"{name} {value} is not in the file"
    numbers = {(line.session, line.number) for _, line in file.of(MessageLine)}
    for number, transcript in file.of(TranscriptLine):
        if missing := [one for one in transcript.numbers if (transcript.session, one) not in numbers]:
            yield number, f"message {missing[0]} of session {transcript.session} is not in the file"


def _repeated(file: _File) -> Iterator[tuple[int, str]]:
    keys: dict[type[Line], Sequence[str]] = {
        SessionLine: ("id",), TranscriptLine: ("session", "version"), TurnLine: ("id",), MessageLine: ("session", "number"),
        MoveLine: ("turn", "seq"), EffectLine: ("turn", "seq", "ordinal", "place"),
    }  # fmt: skip
    for kind, names in keys.items():
        seen: set[tuple[Any, ...]] = set()
        for number, line in file.of(kind):
            key = tuple(getattr(line, name) for name in names)
            if key in seen:
                yield number, f"the {line.kind} {' '.join(map(str, key))} is in the file twice"
            seen.add(key)


def _circles(file: _File) -> Iterator[tuple[int, str]]:
    for kind, name in ((SessionLine, "parent"), (SessionLine, "successor"), (TurnLine, "parent")):
        leads = {line.id: getattr(line, name) for _, line in file.of(kind)}
        for number, line in file.of(kind):
            place, seen = line.id, set[str]()
            while place is not None and place not in seen:
                seen.add(place)
                place = leads[place]
            if place is not None:
                yield number, f"{name} leads round in a circle"


def _unreadable(file: _File) -> Iterator[tuple[int, str]]:
    """Values that only look like what they should be."""
    for number, message in file.of(MessageLine):
        if (problem := _problem(lambda body=message.body: Message.from_dict(body))) or message.body["role"] != message.role:
            yield number, problem or "role is not that of the body"
    for number, session in file.of(SessionLine):
        for name, codec in (("prompts", PROMPTS), ("meter", METER), ("guard", GUARD), ("usage", USAGE)):
            if problem := _problem(lambda value=getattr(session, name), codec=codec: codec.decode(value)):
                yield number, f"{name}: {problem}"


def _problem(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _broken_turns(file: _File, sessions: set[str]) -> Iterator[tuple[int, str]]:
    moves: dict[str, list[tuple[int, MoveLine]]] = {}
    for number, move in file.of(MoveLine):
        moves.setdefault(move.turn, []).append((number, move))
    for number, turn in file.of(TurnLine):
        made = sorted(moves.get(turn.id, ()), key=lambda one: one[1].seq)
        first = (turn.forked_at or 0) + 1
        if (turn.parent is None) != (turn.forked_at is None):
            yield number, "a forked turn names both parent and forked_at"
        elif [move.seq for _, move in made] != list(range(first, turn.seq + 1)):
            yield number, f"its moves are not numbered {first} to {turn.seq}"
        elif made and made[-1][1].dest != turn.state:
            yield number, f"it is in {turn.state}, but its last move leads to {made[-1][1].dest}"
        yield from _broken_snapshots(number, turn, made, sessions)


def _broken_snapshots(number: int, turn: TurnLine, made: list[tuple[int, MoveLine]], sessions: set[str]) -> Iterator[tuple[int, str]]:
    snapshot = turn.start
    if problem := _misplaced(snapshot, sessions):
        yield number, f"start: {problem}"
        return
    for place, move in made:
        try:
            snapshot = patched(snapshot, [move.delta])
        except (TypeError, KeyError, AttributeError):
            yield place, "delta does not fit what was before it"
            return
        if problem := _misplaced(snapshot, sessions):
            yield place, f"delta: {problem}"
            return


def _misplaced(snapshot: Mapping[str, Any], sessions: set[str]) -> str:
    match snapshot.get("history"), snapshot.get("rows"):
        case [str(session), int(), int(), int()], list():
            return "" if session in sessions else f"session {session} is not in the file"
    return "history must be [session, version, length, newest number], rows a list"


# Writing


def _new_ids(c: sqlite3.Connection, file: _File) -> dict[str, str]:
    """New ids for all when one of them is here already; else none."""
    sessions, turns = [line.id for _, line in file.of(SessionLine)], [line for _, line in file.of(TurnLine)]
    among = "id IN (SELECT value FROM json_each(?))"
    here = c.execute(
        f"SELECT 1 FROM sessions WHERE {among} UNION SELECT 1 FROM turns WHERE {among}",  # noqa: S608 - ours
        (json.dumps(sessions), json.dumps([turn.id for turn in turns])),
    ).fetchone()
    if here is None:
        return {}
    ids = {session: f"s-{uuid.uuid4().hex[:12]}" for session in sessions}
    return ids | {turn.id: f"{ids[turn.session]}-{uuid.uuid4().hex[:8]}" for turn in turns}


def _write(c: sqlite3.Connection, file: _File, ids: Mapping[str, str]) -> Imported:
    c.execute("PRAGMA defer_foreign_keys = ON")
    for kind in KINDS.values():
        names = kind.columns()
        insert = f"INSERT INTO {kind.table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - ours
        c.executemany(insert, (tuple(_renamed(line, ids).values()) for _, line in file.of(kind)))
    sessions = [ids.get(line.id, line.id) for _, line in file.of(SessionLine)]
    for (_, line), session in zip(file.of(SessionLine), sessions, strict=True):
        if line.title:
            c.execute("UPDATE sessions SET title = '' WHERE id = ?", (session,))
            c.execute("UPDATE sessions SET title = ? WHERE id = ?", (free_title(c, line.title, session), session))
    open_turns = [turn.id for _, turn in file.of(TurnLine) if turn.ended is None]
    if ids:
        given_up = [(ABANDONED, ids[turn]) for turn in open_turns]
        c.executemany("UPDATE turns SET ended = moved, exit = ?, outcome = 'failed' WHERE id = ?", given_up)
    header = file.header
    return Imported(
        header.of, ids.get(header.id, header.id), tuple(sessions), len(file.of(TurnLine)), len(file.of(MessageLine)), bool(ids),
        () if ids else tuple(open_turns),
    )  # fmt: skip


def _renamed(line: L, ids: Mapping[str, str]) -> L:
    return line if not ids else line.model_copy(update={name: _renamed_value(value, ids) for name, value in line if name != "kind"})


def _renamed_value(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return ids.get(value, value)
    if isinstance(value, list):
        return [_renamed_value(one, ids) for one in value]
    if isinstance(value, dict):
        return {name: _renamed_value(one, ids) for name, one in value.items()}
    return value
