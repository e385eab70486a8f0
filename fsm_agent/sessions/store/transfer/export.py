"""A session or a turn as lines of JSON, with everything that is needed to show, fork or resume it elsewhere.

A session brings the sessions that it continues and that continue it by compaction, those of its sub-agents, and what a fork was
forked from. A turn brings its session as it was at its end.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.database import Database, as_store_error
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rows import transcript
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.transfer.line_format import KINDS, End, Header, Line
from fsm_agent.support.redaction import MASK, mask

SECRET = re.compile(
    r"(?i)\A(x-)?(api[_-]?key|(access|refresh|auth|bearer)?[_-]?token|(client[_-]?)?secret|passw(or)?d|authorization)\Z"
)
"""Names under which JSON holds a secret."""


@dataclass(slots=True)
class _Chosen:
    """``cuts``: sessions that are shown as they were at the end of a turn: version, and the numbers of its transcript then."""

    sessions: set[str] = field(default_factory=set)
    turns: set[str] = field(default_factory=set)
    cuts: dict[str, tuple[int, int, set[int]]] = field(default_factory=dict)


def export_session(database: Database, session_id: str, *, raw: bool = False, secrets: Collection[str] = ()) -> Iterator[str]:
    """Lines without their ends. ``raw``: with the secrets in them; else everything that looks like a key, and ``secrets``, is
    masked."""
    chosen = _Chosen()
    with database.reading() as c:
        _whole(c, session_id, chosen)
    yield from _lines(database, Header(of="session", id=session_id, masked=not raw), chosen, None if raw else secrets)


def export_turn(database: Database, turn_id: str, *, raw: bool = False, secrets: Collection[str] = ()) -> Iterator[str]:
    """The same of one turn, and of those that it was forked from. Raises ``ConfigError`` for one that is not there."""
    chosen, turns = _Chosen(), Turns(database)
    wanted: str | None = turn_id
    while wanted is not None:
        info, history = turns.info(wanted), turns.snapshot(wanted)["history"]
        with database.reading() as c:
            _until(c, wanted, history, chosen)
        wanted = info.parent
    yield from _lines(database, Header(of="turn", id=turn_id, masked=not raw), chosen, None if raw else secrets)


def _whole(c: sqlite3.Connection, first: str, chosen: _Chosen) -> None:
    waiting = [first]
    while waiting:
        session = waiting.pop()
        if session in chosen.sessions:
            continue
        chosen.sessions.add(session)
        found = c.execute(
            "SELECT parent FROM sessions WHERE id = :id AND kind = 'compression'"
            " UNION SELECT successor FROM sessions WHERE id = :id"
            " UNION SELECT id FROM sessions WHERE parent = :id AND kind = 'child'"
            " UNION SELECT p.session FROM turns t JOIN turns p ON p.id = t.parent WHERE t.session = :id",
            {"id": session},
        )
        waiting += [row[0] for row in found if row[0] is not None]
    among = dumps(sorted(chosen.sessions))
    chosen.turns = {
        row[0] for row in c.execute("SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?))", (among,))
    }


def _until(c: sqlite3.Connection, turn: str, history: list[Any], chosen: _Chosen) -> None:
    session, version, _, newest = history
    chosen.turns.add(turn)
    # what Finalize wrote came after the last move
    last = c.execute("SELECT MAX(number) FROM messages WHERE session = ? AND turn = ?", (session, turn)).fetchone()[0]
    newest = max(newest, last or 0)
    chosen.cuts[session] = (version, newest, {number for number, _ in transcript(c, session, version) if number <= newest})
    while session is not None and session not in chosen.sessions:
        chosen.sessions.add(session)
        row = c.execute("SELECT parent FROM sessions WHERE id = ? AND kind = 'compression'", (session,)).fetchone()
        session = row[0] if row else None


def _lines(database: Database, header: Header, chosen: _Chosen, secrets: Collection[str] | None) -> Iterator[str]:
    yield dumps(header.model_dump())
    written = 1
    ids = chosen.sessions | chosen.turns
    address = f"{database.path.resolve().as_uri()}?mode=ro"
    # a connection of its own: whoever reads the lines may take long, and read other things between them
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)) as c:
            c.execute("BEGIN")  # one picture of it all, whatever a running turn writes meanwhile
            for kind, fields in _all_fields(c, chosen):
                written += 1
                yield dumps({"kind": kind, **(fields if secrets is None else _masked(fields, secrets, ids))})
    except sqlite3.Error as error:
        raise as_store_error(error, database.path) from error
    yield dumps(End(lines=written).model_dump())


def _all_fields(c: sqlite3.Connection, chosen: _Chosen) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, line in KINDS.items():
        for row in _rows(c, line, chosen):
            fields = _cut(_fields(line, row), kind, chosen)
            if fields is not None:
                yield kind, fields


def _rows(c: sqlite3.Connection, line: type[Line], chosen: _Chosen) -> Iterable[tuple[Any, ...]]:
    key, ids = {
        "sessions": ("id", chosen.sessions), "turns": ("id", chosen.turns), "transcripts": ("session", chosen.sessions),
        "messages": ("session", chosen.sessions),
    }.get(line.table, ("turn", chosen.turns))  # fmt: skip
    names = ", ".join(line.columns())
    query = f"SELECT {names} FROM {line.table} WHERE {key} IN (SELECT value FROM json_each(?)) ORDER BY {line.order}"  # noqa: S608
    return c.execute(query, (dumps(sorted(ids)),))


def _fields(line: type[Line], row: tuple[Any, ...]) -> dict[str, Any]:
    names = [name for name in line.model_fields if name != "kind"]
    return {name: _value(line, name, value) for name, value in zip(names, row, strict=True)}


def _value(line: type[Line], name: str, value: Any) -> Any:
    annotation = str(line.model_fields[name].annotation)
    if annotation == str(bool):
        return bool(value)
    return loads(value) if value is not None and ("dict" in annotation or "list" in annotation) else value


def _cut(fields: dict[str, Any], kind: str, chosen: _Chosen) -> dict[str, Any] | None:
    """The fields with references only to what is exported; ``None`` for a row that came after the end of the turn."""
    if kind == "session":
        for name in ("parent", "successor"):
            fields[name] = fields[name] if fields[name] in chosen.sessions else None
        if fields["id"] in chosen.cuts:
            fields |= {"version": chosen.cuts[fields["id"]][0], "successor": None, "ended": None, "end_reason": ""}
    elif kind in ("message", "transcript") and fields["session"] in chosen.cuts:
        version, newest, current = chosen.cuts[fields["session"]]
        if kind == "transcript":
            return fields if fields["version"] <= version else None
        if fields["number"] > newest:
            return None
        fields["active"] = fields["number"] in current
    if kind == "message" and fields["turn"] not in chosen.turns:
        fields["turn"] = None
    return fields


def _masked(value: Any, secrets: Collection[str], ids: Collection[str]) -> Any:
    if isinstance(value, str):
        return value if value in ids else mask(value, secrets)
    if isinstance(value, list):
        return [_masked(one, secrets, ids) for one in value]
    if isinstance(value, dict):
        return {
            name: MASK if isinstance(one, str) and one and SECRET.match(name) else _masked(one, secrets, ids)
            for name, one in value.items()
        }
    return value
