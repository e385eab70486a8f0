"""Reads stored turns: moves, requests, and the whole snapshot at any move, all as plain values."""

# A new message abandons what a dead process left. Refusing the message until someone resumes would look like
# a broken session to the user. The unfinished turn becomes `abandoned`, its open calls are answered with what
# is known (a result, "unknown", "not run"), and the user is informed. To finish it, resume before sending a
# new message; `chat` offers that.

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.messages import AGENT_NAME, IN_DOUBT, Message, unanswered_calls
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step, apply_deltas
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.rows import (
    compaction_chain,
    delta_of,
    inline,
    insert_message,
    loads,
    message_of,
    newest_number,
    transcript,
)


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """One turn as lists show it. Times in seconds since the epoch; ``ended`` is ``None`` for an unfinished
    turn. ``table_name``: the transition table that moves the turn. ``imported``: the turn, or the one it was
    forked from, came from a file."""

    id: str
    session: str
    asked: str
    state: str
    seq: int
    began: float
    moved: float
    ended: float | None
    exit: str | None
    outcome: str | None
    parent: str | None
    forked_at: int | None
    owner: str | None
    epoch: int
    digest: str
    table_name: str
    imported: bool

    def moved_by(self, table: str) -> TurnInfo:
        """Return the turn. Raises ``ConfigError`` if it belongs to another table, whose engine alone can
        continue it."""
        if self.table_name != table:
            raise ConfigError(
                "the turn is of another table", f"{self.id} of {self.table_name}", f"a turn of {table}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Effect:
    """One request of a state in the journal. ``reply`` is ``None`` while it is in flight; ``seconds``: its
    duration. ``origin`` is empty for a reply of the world, ``by hand`` for one of a person, ``taken over``
    for one of the forked turn."""

    seq: int
    ordinal: int
    place: int
    state: str
    kind: str
    name: str
    status: str
    request: dict[str, Any]
    reply: dict[str, Any] | None
    at: float
    seconds: float | None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The usage of a turn so far: ``model``, one of those it asked, tokens, and US dollars, ``None`` while a
    price is unknown. Usage of its children is separate."""

    model: str = ""
    tokens: int = 0
    cost: float | None = 0.0


_INFO = (
    "id, session, asked, state, seq, began, moved, ended, exit, outcome, parent, forked_at, owner, epoch,"
    " digest, table_name, imported"
)

AGENT_TURN = "turn"
"""Name of the table for turns of agents."""


class Turns:
    """The turns of one database. A forked turn begins with the moves of the turn it was forked from. Raises
    ``ConfigError`` for an unknown turn."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def info(self, turn_id: str) -> TurnInfo:
        """Return the record of a turn; raises ``ConfigError`` for an unknown id."""
        with self._database.reading() as c:
            return _info(c, turn_id)

    def recent(
        self, limit: int = 100, session: str | None = None, unfinished: bool = False, table: str | None = None
    ) -> list[TurnInfo]:
        """Return turns, newest first; of one session, of one table, or of all. Turns of one session are
        ordered by their numbers, not by the clock."""
        order = "began DESC, rowid DESC" if session is None else "number DESC"
        where = "WHERE (? IS NULL OR session = ?) AND (? IS NULL OR table_name = ?)"
        where += " AND ended IS NULL" if unfinished else ""
        with self._database.reading() as c:
            rows = c.execute(
                f"SELECT {_INFO} FROM turns {where} ORDER BY {order} LIMIT ?",  # noqa: S608 - all are ours
                (session, session, table, table, limit),
            ).fetchall()
        return [_read(row) for row in rows]

    def newest(self, session: str) -> str | None:
        """Return the id of the last turn of a conversation that was not undone: in this session, or in those
        that it was compacted from."""
        with self._database.reading() as c:
            line = json.dumps(compaction_chain(c, session))
            row = c.execute(
                "SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?)) AND undone IS NULL"
                " ORDER BY number DESC LIMIT 1",
                (line,),
            ).fetchone()
        return None if row is None else str(row[0])

    def children(self, turn_id: str) -> list[str]:
        """Return the ids of the turns that a turn's tools began, in order of beginning."""
        prefix = f"c-{turn_id}."
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT id FROM turns WHERE session >= ? AND session < ? AND parent = ? AND forked_at IS NULL"
                " ORDER BY began, rowid",
                (prefix, prefix[:-1] + "/", turn_id),
            ).fetchall()
        return [str(child) for (child,) in rows]

    def inner(self, turn_id: str) -> list[str]:
        """Return the ids of the turns of nested tables that a turn's states began, in order of beginning."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT t.id FROM sessions s JOIN turns t ON t.session = s.id WHERE s.kind = 'child'"
                " AND s.parent = (SELECT session FROM turns WHERE id = ?) AND t.parent = ?"
                " AND t.forked_at IS NULL AND t.table_name != ? ORDER BY t.began, t.rowid",
                (turn_id, turn_id, AGENT_TURN),
            ).fetchall()
        return [str(one) for (one,) in rows]

    def agent(self, turn_id: str) -> str:
        """Return the name of the turn's agent; empty for a turn of another table."""
        if self.info(turn_id).table_name != AGENT_TURN:
            return ""
        values = self.result(turn_id) or self.snapshot(turn_id, 0)
        return str(values.get("agent", AGENT_NAME))

    def usage(self) -> dict[str, ModelUse]:
        """Return the usage of each turn that asked a model, by its id."""
        sql = (
            "SELECT turn, MAX(provider || ':' || model), SUM(input + output + cache_read + cache_write),"
            " SUM(cost), MAX(CASE WHEN cost_status = 'unknown' THEN 1 ELSE 0 END) FROM usage GROUP BY turn"
        )
        with self._database.reading() as c:
            rows = c.execute(sql).fetchall()
        return {
            turn: ModelUse(model, tokens, None if unknown else cost or 0.0)
            for turn, model, tokens, cost, unknown in rows
        }

    def steps(self, turn_id: str, first: int = 1, last: int | None = None) -> list[Step]:
        """Return the moves numbered ``first`` to ``last``, inclusive."""
        with self._database.reading() as c:
            return [_step(row[:-1]) for row in self._moves(c, turn_id, first, last)]

    def all_steps(self) -> list[Step]:
        """Return the moves of all turns, turn by turn; those of a fork begin at its fork point."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT seq, source, event, dest, row, seconds, exit, guards, guards_crc, changes,"
                " changes_crc FROM transitions ORDER"
                " BY turn, seq"
            ).fetchall()
        return [_step(row) for row in rows]

    def times(self, turn_id: str) -> list[float]:
        """Return the time of each move."""
        with self._database.reading() as c:
            return [row[-1] for row in self._moves(c, turn_id, 1, None)]

    def changes(self, turn_id: str) -> list[dict[str, Any]]:
        """Return the changes that each move made to the turn, as ``fsm_agent.fsm.journal`` writes them; only
        the fork's own moves for a fork."""
        sql = "SELECT delta, delta_crc FROM transitions WHERE turn = ? ORDER BY seq"
        with self._database.reading() as c:
            return [delta_of(c, *delta) for delta in c.execute(sql, (turn_id,)).fetchall()]

    def effects(self, turn_id: str, seq: int) -> list[Effect]:
        """Return the requests of the visit after ``seq`` moves."""
        with self._database.reading() as c:
            return [_effect(row) for row in c.execute(_EFFECTS, (_owner_of(c, turn_id, seq), seq))]

    def visits(self, turn_id: str) -> dict[int, list[Effect]]:
        """Return the requests of each visit of a turn, by the number of moves before it; only the fork's own
        visits for a fork."""
        found: dict[int, list[Effect]] = {}
        with self._database.reading() as c:
            for row in c.execute(_ALL_EFFECTS, (turn_id,)):
                found.setdefault(row[0], []).append(_effect(row))
        return found

    def snapshot(self, turn_id: str, seq: int | None = None) -> dict[str, Any]:
        """Return every stored field of the turn after ``seq`` moves (default: now, including the end of an
        ended turn); ``history`` is [session, version, length, newest number] and ``rows`` the numbers of the
        turn's own rows."""
        with self._database.reading() as c:
            return self._snapshot(c, turn_id, seq)

    def messages(self, turn_id: str, seq: int | None = None) -> list[dict[str, Any]]:
        """Return the transcript after ``seq`` moves, oldest first; by default the current one."""
        with self._database.reading() as c:
            session, version, length, _ = self._snapshot(c, turn_id, seq)["history"]
            return [json.loads(body) for _, body in transcript(c, session, version, length)]

    def result(self, turn_id: str) -> dict[str, Any] | None:
        """Return the result without messages and states; ``None`` until the turn has ended."""
        with self._database.reading() as c:
            row = c.execute("SELECT result, result_crc FROM turns WHERE id = ?", (turn_id,)).fetchone()
            return inline(c, *row) if row and row[0] else None

    def _snapshot(self, c: SqlConnection, turn_id: str, seq: int | None) -> dict[str, Any]:
        info, at_end = _info(c, turn_id), seq is None
        seq = info.seq if seq is None else seq
        if not isinstance(seq, int) or isinstance(seq, bool):
            raise ConfigError("the number of a move has the wrong type", seq, f"a number, 0 to {info.seq}")
        if not 0 <= seq <= info.seq:
            raise ConfigError(f"turn {turn_id} has no move of that number", seq, f"0 to {info.seq}")
        if info.forked_at is not None and seq < info.forked_at and info.parent is not None:
            return self._snapshot(c, info.parent, seq)
        ends = "SELECT start, start_crc, final, final_crc FROM turns WHERE id = ?"
        *start, final, final_crc = c.execute(ends, (turn_id,)).fetchone()
        rows = c.execute(
            "SELECT delta, delta_crc FROM transitions WHERE turn = ? AND seq <= ? ORDER BY seq",
            (turn_id, seq),
        ).fetchall()
        first = "SELECT history, history_crc FROM given WHERE turn = ?"
        given = c.execute(first, (turn_id,)).fetchone() if seq == 0 else None
        deltas = [*rows, (final, final_crc)] if final and at_end else rows
        snapshot = apply_deltas(inline(c, *start), [delta_of(c, *delta) for delta in deltas]) | {"seq": seq}
        return snapshot | {"supplied_history": loads(*given)} if given else snapshot

    def _moves(self, c: SqlConnection, turn_id: str, first: int, last: int | None) -> list[tuple[Any, ...]]:
        info = _info(c, turn_id)
        before: list[tuple[Any, ...]] = []
        if info.parent is not None and info.forked_at is not None and first <= info.forked_at:
            before = self._moves(c, info.parent, first, min(info.forked_at, last or info.forked_at))
        return (
            before
            + c.execute(
                "SELECT seq, source, event, dest, row, seconds, exit, guards, guards_crc, changes,"
                " changes_crc, at FROM transitions WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq <= ?)"
                " ORDER BY seq",
                (turn_id, first, last, last),
            ).fetchall()
        )


def _info(c: SqlConnection, turn_id: str) -> TurnInfo:
    row = c.execute(f"SELECT {_INFO} FROM turns WHERE id = ?", (turn_id,)).fetchone()  # noqa: S608 - the names are ours
    if row is None:
        raise ConfigError("no such turn", turn_id, "an id that `fsm-agent sessions show` lists")
    return _read(row)


def _read(row: tuple[Any, ...]) -> TurnInfo:
    return replace(TurnInfo(*row), imported=bool(row[-1]))


def _owner_of(c: SqlConnection, turn_id: str, seq: int) -> str:
    """Return the turn in a chain of forks that made the visit after ``seq`` moves."""
    info = _info(c, turn_id)
    while info.parent is not None and info.forked_at is not None and seq < info.forked_at:
        info = _info(c, info.parent)
    return info.id


_EFFECT = (
    "SELECT seq, ordinal, place, state, kind, name, status, at, seconds, origin, request, request_crc, reply,"
    " reply_crc FROM effects WHERE turn = ?"
)
_EFFECTS = f"{_EFFECT} AND seq = ? ORDER BY ordinal, place"
_ALL_EFFECTS = f"{_EFFECT} ORDER BY seq, ordinal, place"


def _effect(row: tuple[Any, ...]) -> Effect:
    seq, ordinal, place, state, kind, name, status, at, seconds, origin, asked, crc, *stored = row
    reply = None if stored[0] is None else loads(*stored)
    return Effect(
        seq, ordinal, place, state, kind, name, status, loads(asked, crc), reply, at, seconds, origin
    )


def _step(row: tuple[Any, ...]) -> Step:
    seq, source, event, dest, name, seconds, exit_reason, guards, guards_crc, changes, changes_crc = row
    pairs = [(label, value) for label, value in loads(guards, guards_crc)]
    moved = [(counter, before, after) for counter, before, after in loads(changes, changes_crc)]
    return Step(seq, source, event, dest, name, pairs, moved, seconds, exit_reason)


# ----------------------------------------------------------------------------------------------------
# Turns without a running process, and their end when their session continues. (Why: decision 31.)


ABANDONED = "abandoned"
"""Exit reason of a turn whose process died, when the session continued without it."""
NOT_STARTED = "not run: the process ended before it started"
NOT_WAITED = "no result: it was to come later, and the conversation went on without it"


def open_turns(
    connection: SqlConnection, session_id: str, to_write: bool = False
) -> list[tuple[str, str | None]]:
    """Return (turn, owner) of the session's unfinished turns, oldest first. ``to_write``: lock them for a
    transaction that changes them."""
    sql = "SELECT id, owner FROM turns WHERE session = ? AND ended IS NULL ORDER BY number"
    return connection.execute(f"{sql} /* FOR UPDATE */" if to_write else sql, (session_id,)).fetchall()


def refuse_all(connection: SqlConnection, turn_ids: Sequence[str]) -> None:
    """Revoke the epochs of these turns: a process that still runs one stops; each turn can be resumed."""
    connection.executemany(
        "UPDATE turns SET epoch = epoch + 1, owner = NULL WHERE id = ?", [(one,) for one in turn_ids]
    )


def give_up(connection: SqlConnection, turn_ids: Sequence[str], at: float) -> None:
    """End these turns, and their delegated turns, which will not be requested again; background turns end
    separately. A process that still runs one of them finds another epoch, and stops."""
    connection.execute(
        "WITH RECURSIVE down(id) AS (SELECT value FROM json_each(?) UNION"
        " SELECT t.id FROM turns t JOIN down ON t.parent = down.id WHERE t.forked_at IS NULL"
        " AND t.session NOT IN (SELECT child FROM delegations))"
        " UPDATE turns SET ended = ?, exit = ?, outcome = 'failed', epoch = epoch + 1, owner = NULL"
        " WHERE id IN (SELECT id FROM down) AND ended IS NULL",
        (json.dumps(turn_ids), at, ABANDONED),
    )
    connection.execute(
        "UPDATE sessions SET exit = ? WHERE id IN (SELECT session FROM turns WHERE exit = ? AND ended = ?)",
        (ABANDONED, ABANDONED, at),
    )


def close_out(connection: SqlConnection, session_id: str, turn_ids: Sequence[str], at: float) -> None:
    """Write a result for every unanswered call of the turns, as far as it is known, so that the transcript
    stays valid."""
    (version,) = connection.execute("SELECT version FROM sessions WHERE id = ?", (session_id,)).fetchone()
    open_calls = unanswered_calls(
        [message_of(body) for _, body in transcript(connection, session_id, version)]
    )
    if not open_calls:
        return
    effects = connection.execute(
        "SELECT request, request_crc, status, class, reply, reply_crc FROM effects"
        " WHERE turn IN (SELECT value FROM json_each(?))"
        " AND kind IN ('RunTool', 'AnswerProgram') ORDER BY seq, ordinal, place",
        (json.dumps(turn_ids),),
    ).fetchall()
    waited = {
        call
        for (call,) in connection.execute(
            "SELECT call FROM pending WHERE turn IN (SELECT value FROM json_each(?))"
            " AND kind IN ('result',"
            " 'timer')",
            (json.dumps(turn_ids),),
        )
    }
    known = {loads(*row[:2])["call_id"]: row[2:] for row in effects}
    for number, call in enumerate(open_calls, newest_number(connection, session_id) + 1):
        status, kind, *reply = known.get(call.id, ("", "", None, None))
        text = NOT_STARTED if not status or kind == "pure" else IN_DOUBT
        text = NOT_WAITED if call.id in waited else text
        text = loads(*reply).get("text", IN_DOUBT) if reply[0] else text  # no reply: a program that waited
        row = Message("tool", text, tool_call_id=call.id, name=call.name)
        insert_message(connection, session_id, number, version, None, at, row)
