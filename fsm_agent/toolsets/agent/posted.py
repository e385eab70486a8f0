"""What the store knows of tasks that nobody waits for: a row for each, written before its child begins.

A report is told once: the row says to which turn, and after how many of its moves. It counts as told when
that turn has moved on since, because then it is in the transcript. So a crash in between tells it again, and
a turn that is taken back gives it back.

Parents and children: a child's turn names its parent's, and has not been forked from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.conversation.result import ChildTurn, TurnUsage
from fsm_agent.runtime.budget import SpentBudget
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.read import Turns


@dataclass(frozen=True, slots=True)
class Posted:
    """A task in the background. ``child`` is the child's session and the handle, ``turn`` the turn that gave
    it."""

    child: str
    session: str
    turn: str
    task: str
    goal: str
    context: str


_OPEN = (
    "WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT s.parent FROM sessions s JOIN line ON s.id = line.id"
    " WHERE s.kind = 'compression' AND s.parent IS NOT NULL)"
    " SELECT d.child, d.session, d.turn, d.task, d.goal, d.context FROM delegations d"
    " JOIN turns gave ON gave.id = d.turn LEFT JOIN turns heard ON heard.id = d.told"
    " WHERE d.session IN (SELECT id FROM line) AND gave.undone IS NULL"
    " AND (d.told IS NULL OR heard.undone IS NOT NULL OR heard.seq <= d.told_seq) ORDER BY d.at, d.child"
)


async def post(store: Store, tasks: Sequence[Posted], fence: Fence) -> None:
    """Write the tasks down, for the turn that gives them; those that are there already stay as they are.
    Raises ``StoreError``, and ``OwnershipLost`` when that turn is somebody else's."""
    rows = [(one.child, one.session, one.turn, one.task, one.goal, one.context, store.now()) for one in tasks]
    insert = (
        "INSERT OR IGNORE INTO delegations (child, session, turn, task, goal, context, at) VALUES (?, ?, ?,"
        " ?, ?, ?, ?)"
    )
    await store.written_for(fence, lambda c: c.executemany(insert, rows) and None)


def untold(store: Store, session: str) -> list[Posted]:
    """The tasks of a session, and of those that it goes on from, whose end its model has not heard of; oldest
    first."""
    with store.database.reading() as c:
        return [Posted(*row) for row in c.execute(_OPEN, (session,)).fetchall()]


async def note_told(store: Store, tasks: Sequence[Posted], fence: Fence) -> None:
    """The next move of the turn brings the reports on these into the transcript. Raises ``OwnershipLost``."""
    rows = [(fence.turn_id, fence.turn_id, one.child) for one in tasks]

    def write(c: SqlConnection) -> None:
        c.executemany(
            "UPDATE delegations SET told = ?, told_seq = (SELECT seq FROM turns WHERE id = ?) WHERE"
            " child = ?",
            rows,
        )

    await store.written_for(fence, write)


def children_of(store: Store, turn_id: str) -> list[ChildTurn]:
    """The children of a turn, in the order in which they began; also those of an earlier process."""
    turns = Turns(store.database)
    return [_child(turns, child) for child in turns.children(turn_id)]


def spent_below(store: Store, turn_id: str) -> SpentBudget:
    """What the children of a turn and theirs have taken so far. A turn that has not ended is asked for what
    its rows have spent, which is at least what it sent."""
    iterations, attempts = 0, 0
    for child in children_of(store, turn_id):
        below = spent_below(store, child.turn_id)
        now = {} if child.outcome else Turns(store.database).snapshot(child.turn_id)["counts"]
        iterations += now.get("iterations", child.api_calls) + below.iterations
        attempts += now.get("attempts", child.attempts) + below.attempts
    return SpentBudget(iterations, attempts)


def _child(turns: Turns, turn_id: str) -> ChildTurn:
    info, said = turns.info(turn_id), turns.result(turn_id) or {}
    return ChildTurn(
        turn_id=turn_id,
        session_id=info.session,
        task_id=said.get("task_id", ""),
        outcome=info.outcome,
        turn_exit_reason=info.exit,
        api_calls=said.get("api_calls", 0),
        attempts=said.get("attempts", 0),
        usage=TurnUsage(**said.get("usage_turn", {})),
        estimated_cost_usd=said.get("estimated_cost_usd"),
        agent=turns.agent(turn_id),
    )
