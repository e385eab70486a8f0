"""Sessions as lists show them."""

from __future__ import annotations

from dataclasses import dataclass
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


_SELECT = (
    "SELECT id, title, kind, parent, successor, source, model, created, touched,"
    " (SELECT COUNT(*) FROM turns t WHERE t.session = s.id) FROM sessions s"
)


def sessions(store: Store, limit: int = 20, everything: bool = False, source: str | None = None) -> list[SessionInfo]:
    """The sessions that were used last, newest first; ``everything`` includes those of sub-agents, and those that went on as
    another one by compaction; ``source``: only those that it began. Raises ``ConfigError`` for one that began none."""
    where = "" if everything or source == "child" else "AND kind != 'child' AND successor IS NULL"
    query = store.database.query
    there = [name for (name,) in query("SELECT DISTINCT source FROM sessions WHERE source != '' ORDER BY source")]
    if source is not None and source not in there:
        raise ConfigError("no session was begun so", source, ", ".join(there) or "nothing yet: there are no sessions")
    order = f"{where} ORDER BY touched DESC, rowid DESC LIMIT ?"
    return [_info(store, row) for row in query(f"{_SELECT} WHERE COALESCE(? = source, 1) {order}", source, limit)]


def session_info(store: Store, session_id: str) -> SessionInfo:
    """One session that is there."""
    return _info(store, store.database.query(f"{_SELECT} WHERE id = ?", session_id)[0])


def spent_by(store: Store, turn_id: str) -> Spent:
    """What one turn cost."""
    return Spent.of(store.database.query(f"SELECT {SUMS} FROM usage u WHERE u.turn = ?", turn_id)[0])  # noqa: S608


def _info(store: Store, row: tuple[Any, ...]) -> SessionInfo:
    last = next(iter(Turns(store.database).recent(1, row[0])), None)
    spent = store.database.query(
        f"SELECT {SUMS} FROM turns t JOIN usage u ON u.turn = t.id WHERE t.session = ?",  # noqa: S608 - ours
        row[0],
    )
    unfinished = last is not None and last.ended is None
    running = store.owners.alive(last.owner) if last is not None and unfinished else None
    values: list[Any] = [*row, last, Spent.of(spent[0]), unfinished and running is None, running]
    return SessionInfo(*values)


def _prefixed(spent: Spent) -> dict[str, Any]:
    tokens = spent.tokens if spent.requests else None
    return {"tokens": tokens, "cost_usd": spent.cost, "cost_status": spent.cost_status}
