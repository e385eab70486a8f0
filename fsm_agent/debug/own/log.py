"""The journal of a turn of the user's own table, in a store: the same rows as those of this agent's turns, without a transcript.

Such turns have a home of their own: the sessions, costs and exit reasons of an agent's home mean nothing to them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.debug.own.plain import name_of, shown
from fsm_agent.debug.own.shape import Shape
from fsm_agent.errors import ConfigError, JournalError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.deltas import difference
from fsm_agent.fsm.journal import Exchange, Journal, Step
from fsm_agent.fsm.runner import RunnableTurn
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.rows import asked_words

OUTCOMES = ("completed", "failed", "partial", "interrupted")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a turn comes from that does not begin at the beginning: ``parent`` forked after ``at`` moves, or itself resumed."""

    parent: str
    at: int
    resumed: bool = False


class TableLog:
    """Writes ``turn`` into ``store``, and tells ``journal`` too, which answers first. ``asked`` are the words that name the turn
    in lists. Raises ``JournalError`` when another process took the turn over, ``StoreError`` when the file cannot be written."""

    def __init__(
        self, store: Store, shape: Shape, turn: RunnableTurn, journal: Journal, asked: str, origin: Origin | None
    ) -> None:
        self._store, self._shape, self._turn, self._journal = store, shape, turn, journal
        self._asked, self._origin = asked, origin
        self._epoch = 1
        self._seen: dict[str, Any] = {}
        self._entered = False

    async def enter(self) -> None:
        """Write the turn down, or take it over. Raises ``ConfigError`` for an id that another turn has."""
        if self._entered:
            return
        self._seen = self._shape.values(self._turn)
        resumed = self._origin is not None and self._origin.resumed
        self._epoch = await self._store.written(self._resume if resumed else self._begin)
        self._entered = True

    def _begin(self, c: sqlite3.Connection) -> int:
        turn, at, origin = self._turn, self._store.now(), self._origin
        if c.execute("SELECT 1 FROM turns WHERE id = ?", (turn.turn_id,)).fetchone():
            raise ConfigError("a turn of this id is stored already", turn.turn_id, "another turn_id for each turn")
        c.execute(
            "INSERT INTO sessions (id, source, created, touched) VALUES (?, ?, ?, ?)",
            (turn.turn_id, self._shape.table.name, at, at),
        )
        c.execute(
            "INSERT INTO turns (id, session, parent, forked_at, asked, state, seq, owner, digest, settings, start, began, moved)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '{}', ?, ?, ?)",
            (
                turn.turn_id, turn.turn_id, origin and origin.parent, origin and origin.at, asked_words(self._asked), turn.state,
                turn.seq, self._store.owners.me, self._shape.table.digest, dumps(self._seen), at, at,
            ),
        )  # fmt: skip
        return 1

    def _resume(self, c: sqlite3.Connection) -> int:
        turn = self._turn
        owner, seq, ended = c.execute("SELECT owner, seq, ended FROM turns WHERE id = ?", (turn.turn_id,)).fetchone()
        if owner != self._store.owners.me and self._store.owners.alive(owner) is not None:
            raise ConfigError("another process runs this turn", turn.turn_id, "attach to it")
        if seq != turn.seq or ended is not None:
            raise JournalError(f"turn {turn.turn_id} has moved since it was read; resume it again")
        c.execute("DELETE FROM effects WHERE turn = ? AND seq = ?", (turn.turn_id, seq))  # this visit is made again
        c.execute("UPDATE turns SET owner = ?, epoch = epoch + 1 WHERE id = ?", (self._store.owners.me, turn.turn_id))
        return int(c.execute("SELECT epoch FROM turns WHERE id = ?", (turn.turn_id,)).fetchone()[0])

    # The journal

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        at = self._store.now()
        rows = [
            (*self._place(exchange, place), "in_flight", dumps(shown(one)), at) for place, one in enumerate(exchange.requests)
        ]
        await self._store.written(
            lambda c: (
                c.executemany(
                    "INSERT OR REPLACE INTO effects (turn, seq, ordinal, place, state, kind, name, status, request, at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
                and None
            )
        )
        return await self._journal.asked(exchange)

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        values = (dumps(shown(reply)), seconds, *self._place(exchange, place)[:4])
        self._store.database.submit(
            lambda c: (
                c.execute(
                    "UPDATE effects SET status = 'done', reply = ?, seconds = ?"
                    " WHERE turn = ? AND seq = ? AND ordinal = ? AND place = ?",
                    values,
                )
                and None
            )
        )
        await self._journal.got(exchange, place, reply, seconds)

    async def moved(self, step: Step) -> None:
        await self._store.written(self._move(step, self._delta()))
        await self._journal.moved(step)

    async def ended(self, exit_reason: str) -> None:
        """The turn is over. Its ``outcome`` says how well, if it has one."""
        outcome = getattr(self._turn, "outcome", None)
        outcome = outcome if outcome in OUTCOMES else None
        values = (
            self._store.now(), exit_reason, outcome, dumps({"turn_exit_reason": exit_reason}), dumps(self._delta()),
            self._turn.turn_id, self._epoch,
        )  # fmt: skip

        def end(c: sqlite3.Connection) -> None:
            done = c.execute(
                "UPDATE turns SET ended = ?, exit = ?, outcome = ?, result = ?, final = ?, owner = NULL"
                " WHERE id = ? AND epoch = ? AND ended IS NULL",
                values,
            )
            self._refuse_unless(done.rowcount == 1)

        await self._store.written(end)

    def _place(self, exchange: Exchange, place: int) -> tuple[Any, ...]:
        request = exchange.requests[place]
        where = (self._turn.turn_id, exchange.seq, exchange.ordinal, place, exchange.state)
        return (*where, type(request).__name__, name_of(request))

    def _delta(self) -> dict[str, Any]:
        before, self._seen = self._seen, self._shape.values(self._turn)
        changed = {name: value for name, value in self._seen.items() if name not in before or before[name] != value}
        return {name: difference(before.get(name), value) for name, value in changed.items() if name not in ("seq",)}

    def _move(self, step: Step, delta: dict[str, Any]) -> Job:
        at, turn_id = self._store.now(), self._turn.turn_id
        moved = (step.seq, step.dest, at, step.exit, turn_id, step.seq - 1, self._epoch)
        values = (
            turn_id, step.seq, step.source, step.event, step.dest, step.row, step.exit, dumps(step.guards), dumps(step.changes),
            step.seconds, at, dumps(delta),
        )  # fmt: skip

        def move(c: sqlite3.Connection) -> None:
            done = c.execute(
                "UPDATE turns SET seq = ?, state = ?, moved = ?, exit = ? WHERE id = ? AND seq = ? AND epoch = ?", moved
            )
            self._refuse_unless(done.rowcount == 1)
            c.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        return move

    def _refuse_unless(self, mine: bool) -> None:
        if not mine:
            raise JournalError(f"turn {self._turn.turn_id} was taken over by another process; this one stops here")
