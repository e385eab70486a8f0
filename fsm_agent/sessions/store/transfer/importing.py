"""Reading back what ``export`` wrote: every line is checked before any is stored, and all are stored or
none. (Why: decision 75.)"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.journal.abandoned import ABANDONED
from fsm_agent.sessions.store.names import free_title
from fsm_agent.sessions.store.store import Store
from fsm_agent.sessions.store.transfer.line_format import KINDS, ExportLine
from fsm_agent.sessions.store.transfer.validation import ExportedLines, read_lines


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported. ``id`` is the session or turn that was exported, as it is called here;
    ``copied``: it was there already, so everything got new ids. ``unfinished``: turns that can be resumed
    here."""

    of: str
    id: str
    sessions: tuple[str, ...]
    turns: int
    messages: int
    copied: bool
    unfinished: tuple[str, ...]


def import_lines(store: Store, lines: Iterable[str], name: str = "the file") -> Imported:
    """Store what the lines describe. Sessions and turns whose ids are here already get new ones, all of the
    file together; an unfinished turn among them is given up then, because the one that is here may still be
    resumed, and nothing must be done twice. All turns are marked as imported, for good: see
    ``fsm_agent.runtime.authority``. Raises ``ConfigError`` that names the first bad line."""
    file = read_lines(lines, name)

    def write(c: SqlConnection) -> Imported:
        return _write(c, file, _new_ids(c, file))

    imported: Imported = store.database.write(write)
    return imported


def _new_ids(c: SqlConnection, file: ExportedLines) -> dict[str, str]:
    """New ids for all when one of them is here already; else none."""
    sessions, turns = [line.id for _, line in file.of["session"]], [line for _, line in file.of["turn"]]
    here = c.execute(
        "SELECT 1 FROM json_each(?) WHERE value IN (SELECT id FROM sessions) OR value IN (SELECT id FROM"
        " turns)",
        (json.dumps([*sessions, *(turn.id for turn in turns)]),),
    ).fetchone()
    if here is None:
        return {}
    ids = {session: f"s-{uuid.uuid4().hex[:12]}" for session in sessions}
    return ids | {turn.id: f"{ids[turn.session]}-{uuid.uuid4().hex[:8]}" for turn in turns}


def _write(c: SqlConnection, file: ExportedLines, ids: Mapping[str, str]) -> Imported:
    c.execute("PRAGMA defer_foreign_keys = ON")
    sessions = {ids.get(line.id, line.id): line.title for _, line in file.of["session"]}
    titles = [(free_title(c, title, session), session) for session, title in sessions.items() if title]
    for kind, line in KINDS.items():
        names = line.stored_columns()
        insert = f"INSERT INTO {line.table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - ours
        c.executemany(insert, (tuple(_renamed(row, ids).values()) for _, row in file.of[kind]))
    c.executemany("UPDATE sessions SET title = ? WHERE id = ?", titles)
    turns = {ids.get(turn.id, turn.id): turn.ended is None for _, turn in file.of["turn"]}
    c.executemany("UPDATE turns SET imported = 1, number = ? WHERE id = ?", list(enumerate(turns, 1)))
    unfinished = tuple(turn for turn, is_open in turns.items() if is_open)
    if ids:
        given_up = "UPDATE turns SET ended = moved, exit = ?, outcome = 'failed' WHERE id = ?"
        c.executemany(given_up, [(ABANDONED, turn) for turn in unfinished])
        unfinished = ()
    of, exported = file.header.of, ids.get(file.header.id, file.header.id)
    return Imported(of, exported, tuple(sessions), len(turns), len(file.of["message"]), bool(ids), unfinished)


def _renamed(line: ExportLine, ids: Mapping[str, str]) -> ExportLine:
    if not ids:
        return line
    return line.model_copy(
        update={name: _renamed_value(value, ids) for name, value in line if name != "kind"}
    )


def _renamed_value(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return ids.get(value, value)
    if isinstance(value, list):
        return [_renamed_value(one, ids) for one in value]
    if isinstance(value, dict):
        return {name: _renamed_value(one, ids) for name, one in value.items()}
    return value
