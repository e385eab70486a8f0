"""Sessions as lists show them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, replace
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.reports.usage_totals import NOTHING, SUMS, Spent
from fsm_agent.sessions.store.store import Store


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session. ``kind``: root, compression (it goes on another one, ``parent``), fork, or child (of a delegating turn);
    ``successor`` is what it went on as, ``source`` what began it, such as cli, chat or python. Times in seconds since the epoch.
    ``turns`` counts all, also undone ones; ``last`` is the newest. ``unfinished``: the last turn was left in the middle;
    ``running``: who runs it (pid, host, since)."""

    id: str
    title: str
    kind: str
    parent: str | None
    successor: str | None
    source: str
    model: str
    created: float
    touched: float
    turns: int
    last: TurnInfo | None
    spent: Spent = NOTHING
    unfinished: bool = False
    running: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        last = self.last
        return {
            "id": self.id, "title": self.title, "kind": self.kind, "parent": self.parent, "successor": self.successor,
            "source": self.source, "model": self.model, "created": self.created, "touched": self.touched, "turns": self.turns,
            "last_turn": last and last.id, "last_exit": last and last.exit, "last_outcome": last and last.outcome,
            "asked": last and last.asked, "unfinished": self.unfinished, "running": self.running, **_prefixed(self.spent),
        }  # fmt: skip


def sessions(store: Store, limit: int = 20, everything: bool = False, source: str | None = None) -> list[SessionInfo]:
    """The sessions that were used last, newest first; ``everything`` includes those of sub-agents, and those that went on as
    another one by compaction; ``source``: only those that it began. Raises ``ConfigError`` for one that began none."""
    where = "" if everything or source == "child" else "AND kind != 'child' AND successor IS NULL"
    with store.database.reading() as c:
        there = [name for (name,) in c.execute("SELECT DISTINCT source FROM sessions WHERE source != '' ORDER BY source")]
        if source is not None and source not in there:
            raise ConfigError("no session was begun so", source, ", ".join(there) or "nothing yet: there are no sessions")
        rows = c.execute(
            f"{_SELECT} WHERE COALESCE(? = source, 1) {where} ORDER BY touched DESC, rowid DESC LIMIT ?", (source, limit)
        ).fetchall()
    return _infos(store, rows)


def session_info(store: Store, session_id: str) -> SessionInfo:
    """One session that is there."""
    with store.database.reading() as c:
        rows = c.execute(f"{_SELECT} WHERE id = ?", (session_id,)).fetchall()
    return _infos(store, rows)[0]


def spent_by(store: Store, turn_id: str) -> Spent:
    """What one turn cost."""
    with store.database.reading() as c:
        return Spent.of(c.execute(f"SELECT {SUMS} FROM usage u WHERE u.turn = ?", (turn_id,)).fetchone())  # noqa: S608


_SELECT = "SELECT id, title, kind, parent, successor, source, model, created, touched FROM sessions"


def _infos(store: Store, rows: list[tuple[Any, ...]]) -> list[SessionInfo]:
    turns = Turns(store.database)
    ids = [row[0] for row in rows]
    with store.database.reading() as c:
        each = f"SELECT session, COUNT(*) FROM turns WHERE {_AMONG} GROUP BY session"  # noqa: S608 - ours
        counts = dict(c.execute(each, (json.dumps(ids),)).fetchall())
        spent = _spent(c, ids)
    found = []
    for row in rows:
        last = next(iter(turns.recent(1, row[0])), None)
        values: list[Any] = [*row, counts.get(row[0], 0), last, spent.get(row[0], NOTHING)]
        info = SessionInfo(*values)
        if last is not None and last.ended is None:
            running = store.owners.alive(last.owner)
            info = replace(info, unfinished=running is None, running=running)
        found.append(info)
    return found


_AMONG = "session IN (SELECT value FROM json_each(?))"


def _spent(c: sqlite3.Connection, ids: list[str]) -> dict[str, Spent]:
    rows = c.execute(
        f"SELECT t.session, {SUMS} FROM turns t JOIN usage u ON u.turn = t.id WHERE t.{_AMONG} GROUP BY t.session",  # noqa: S608
        (json.dumps(ids),),
    )
    return {row[0]: Spent.of(row[1:]) for row in rows}


def _prefixed(spent: Spent) -> dict[str, Any]:
    told = asdict(spent)
    return {"tokens": spent.tokens if spent.requests else None, "cost_usd": told["cost"], "cost_status": told["cost_status"]}
