"""A session or a turn as lines of JSON, with everything that is needed to show, fork or resume it elsewhere.

A session brings the sessions that it continues and that continue it by compaction, those of its sub-agents,
and what a fork was forked from. A turn brings its session as it was at its end."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.contents import DELTAS, IN_PARTS, delta_of, whole
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.journal.small_talk import effects_of
from fsm_agent.sessions.store.lineage import compacted_line
from fsm_agent.sessions.store.rows import newest_number, transcript
from fsm_agent.sessions.store.schema import checksum_of
from fsm_agent.sessions.store.transfer.line_format import KINDS, End, ExportLine, Header
from fsm_agent.support.redaction import MASK, mask

SECRET = re.compile(
    r"(?i)\A(x-)?(api[_-]?key|(access|refresh|auth|bearer)?[_-]?token|(client[_-]?)?secret|passw(or)?d|authorization)\Z"
)
"""Names under which JSON holds a secret."""


@dataclass(slots=True)
class _Chosen:
    """``cuts``: sessions that are shown as they were at the end of a turn: version, and the numbers of its
    transcript then."""

    sessions: set[str] = field(default_factory=set)
    turns: set[str] = field(default_factory=set)
    cuts: dict[str, tuple[int, int, set[int]]] = field(default_factory=dict)


def export_session(
    database: Database, session_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of a session, without their ends. With ``raw`` secrets stand in them; else all that
    looks like a key, and ``secrets``, is masked."""
    chosen = _Chosen()
    with database.reading() as c:
        _whole(c, session_id, chosen)
    yield from _lines(
        database, Header(of="session", id=session_id, masked=not raw), chosen, None if raw else secrets
    )


def export_sessions(database: Database, ids: Sequence[str]) -> Iterator[str]:
    """Yield the lines of sessions that hang together with no others, secrets and all. The first gives the
    file its name."""
    chosen = _Chosen(set(ids))
    with database.reading() as c:
        turns = "SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?))"
        chosen.turns = {turn for (turn,) in c.execute(turns, (dumps(ids),))}
    yield from _lines(database, Header(of="session", id=ids[0], masked=False), chosen, None)


def export_turn(
    database: Database, turn_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of one turn, and of those that it was forked from. Raises ``ConfigError`` for one
    that is not there."""
    chosen, turns = _Chosen(), Turns(database)
    wanted: str | None = turn_id
    while wanted is not None:
        info, history = turns.info(wanted), turns.snapshot(wanted)["history"]
        with database.reading() as c:
            _until(c, wanted, history, chosen)
        wanted = info.parent
    yield from _lines(
        database, Header(of="turn", id=turn_id, masked=not raw), chosen, None if raw else secrets
    )


def _whole(c: SqlConnection, first: str, chosen: _Chosen) -> None:
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
    turns = "SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?))"
    chosen.turns = {turn for (turn,) in c.execute(turns, (dumps(sorted(chosen.sessions)),))}


def _until(c: SqlConnection, turn: str, history: list[Any], chosen: _Chosen) -> None:
    session, version, _, newest = history
    chosen.turns.add(turn)
    newest = max(newest, newest_number(c, session, turn))  # what Finalize wrote came after the last move
    chosen.cuts[session] = (
        version,
        newest,
        {number for number, _ in transcript(c, session, version) if number <= newest},
    )
    chosen.sessions |= set(compacted_line(c, session))


def _lines(
    database: Database, header: Header, chosen: _Chosen, secrets: Collection[str] | None
) -> Iterator[str]:
    yield dumps(header.model_dump())
    written = 1
    ids = chosen.sessions | chosen.turns
    with database.snapshot() as c:  # one picture of it all, whatever a running turn writes meanwhile
        for kind, fields in _all_fields(c, chosen):
            written += 1
            yield dumps({"kind": kind, **(fields if secrets is None else _masked(fields, secrets, ids))})
    yield dumps(End(lines=written).model_dump())


def _all_fields(c: SqlConnection, chosen: _Chosen) -> Iterator[tuple[str, dict[str, Any]]]:
    sessions, turns = dumps(sorted(chosen.sessions)), dumps(sorted(chosen.turns))
    chosen_by = {
        "session": ("id", sessions), "turn": ("id", turns), "transcript": ("session", sessions),
        "message": ("session", sessions),
    }  # fmt: skip
    for kind, line in KINDS.items():
        key, ids = chosen_by.get(kind, ("turn", turns))
        query = (
            f"SELECT {', '.join(line.stored_columns())} FROM {line.table}"  # noqa: S608 - ours
            f" WHERE {key} IN (SELECT value FROM json_each(?)) ORDER BY {line.order}"
        )
        rows = _effects(c, line, chosen) if kind == "effect" else _rows(c, line, query, ids)
        for columns in rows:
            if (fields := _cut(_fields(line, columns), kind, chosen)) is not None:
                yield kind, fields


def _effects(c: SqlConnection, line: type[ExportLine], chosen: _Chosen) -> Iterator[dict[str, Any]]:
    """Each request by itself, however it is stored."""
    for turn in sorted(chosen.turns):
        for row in effects_of(c, turn):
            yield dict(zip(line.columns(), row, strict=True))


def _rows(c: SqlConnection, line: type[ExportLine], query: str, ids: str) -> Iterator[dict[str, Any]]:
    """The columns of each row by name, with JSON as what it is, and whole."""
    for row in c.execute(query, (ids,)):
        read = dict(zip(line.stored_columns(), row, strict=True))
        for column in line.json_columns():
            text, crc = read[column], read.pop(checksum_of(column))
            if text is not None and column in IN_PARTS.get(line.table, ()):
                read[column] = (delta_of if column in DELTAS else whole)(c, text, crc)
            elif text is not None:
                read[column] = loads(text, crc)
        yield read


def _fields(line: type[ExportLine], columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row as the fields of a line, with flags as what they are."""
    return {
        field: bool(columns[column]) if field == "active" else columns[column]
        for column, field in line.columns().items()
    }


def _cut(fields: dict[str, Any], kind: str, chosen: _Chosen) -> dict[str, Any] | None:
    """The fields with references only to what is exported; ``None`` for a row that came after the end of the
    turn."""
    if kind == "session":
        for name in ("parent", "successor"):
            fields[name] = fields[name] if fields[name] in chosen.sessions else None
        if fields["id"] in chosen.cuts:
            fields |= {
                "version": chosen.cuts[fields["id"]][0],
                "successor": None,
                "ended": None,
                "end_reason": "",
            }
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
