"""Messages queued for a worker: each is stored before any worker hears of it, and becomes a turn with the
same id when a worker begins it.

``rank`` is the highest attempt that has claimed the row; an attempt with a lower rank begins nothing. Once
the turn has begun, its own row holds everything, and the message is removed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.conversation.result import next_turn_id
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Job, SqlConnection, must, take_turns
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns, open_turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.rows import compaction_chain, json_with_checksum, loads


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """``request``: the arguments of ``Agent.start`` as JSON values; empty once the turn has begun.
    ``session``: the first of the conversation; ``digest`` of the turn's table. Times in seconds since the
    epoch: ``at`` (queued), ``begun``, ``withdrawn``. ``problem``: why the last worker that tried could not
    run it."""

    id: str
    session: str
    digest: str
    request: Mapping[str, Any]
    at: float
    begun: float | None
    withdrawn: float | None
    problem: str


ASKED = frozenset((
    "user_message", "system_message", "conversation_history", "task_id", "ephemeral_prompt", "trace",
    "output_schema",
))  # fmt: skip
"""Fields that a queued message may set: none grants anything, whatever the source of the row. ``trace``: the
span in which it was queued. ``output_schema``: the ``name`` and ``schema`` of the answer's ``JsonSchema``."""
ATTENDED = ""
"""The digest of a turn that no worker may take: a person attends the process that queued it, and resumes what
it leaves unfinished."""
_COLUMNS = "id, session, digest, request, request_crc, at, begun, withdrawn, problem"


def arguments_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for starting the turn of a queued message."""
    asked = {name: value for name, value in request.items() if name in ASKED}
    if (schema := asked.pop("output_schema", None)) is not None:
        from fsm_agent.output import JsonSchema

        asked["output_type"] = JsonSchema(schema["schema"], schema["name"])
    return asked


def first_session(store: Store, session_id: str) -> str:
    """Return the first session of a conversation, before all compactions: the turns of all its sessions share
    one queue."""
    with store.database.reading() as c:
        return compaction_chain(c, session_id)[-1]


async def queue(
    store: Store, turn_id: str, session: str, digest: str, request: Mapping[str, Any], waits: bool = True
) -> None:
    """Store a message under the id of its turn; repeated calls store it once. An attended message belongs to
    this process from the start. Raises ``ConfigError`` for fields that a queued message cannot set, and
    unless the message ``waits``, ``SessionBusy`` while another turn of the conversation waits or runs in any
    process."""
    if wrong := sorted(request.keys() - ASKED):
        raise ConfigError("this cannot be queued", wrong[0], ", ".join(sorted(ASKED)))
    owner = store.owners.me if digest == ATTENDED else None
    values = (turn_id, session, digest, *json_with_checksum(dict(request)), store.now(), owner)

    def insert(c: SqlConnection) -> None:
        if not waits:
            take_turns(c, f"queue {session}")
            _refuse_if_taken(store, c, session, turn_id)
        c.execute(
            "INSERT INTO queued (id, session, digest, request, request_crc, at, owner)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            values,
        )

    await store.write(insert)


def _refuse_if_taken(store: Store, c: SqlConnection, session: str, turn_id: str) -> None:
    """Raise ``SessionBusy`` if another turn of the conversation waits or runs. A turn leaves the queue in the
    transaction that begins it, so that it is always in one of the two tables."""
    waiting = c.execute(
        "SELECT id, digest, owner FROM queued WHERE session = ? AND begun IS NULL AND withdrawn IS NULL",
        (session,),
    ).fetchall()
    busy = [turn for turn, digest, owner in waiting if digest != ATTENDED or store.owners.alive(owner)]
    begun = open_turns(c, store.newest_id(c, session))
    busy += [turn for turn, owner in begun if store.owners.alive(owner)]
    if other := [turn for turn in busy if turn != turn_id]:
        raise SessionBusy(f"session {session} is busy: turn {other[0]} waits or runs")


def find_queued(store: Store, turn_id: str) -> QueuedTurn | None:
    """Return the queued turn with this id, even one that has begun."""
    rows = store.database.select(f"SELECT {_COLUMNS} FROM queued WHERE id = ?", turn_id)  # noqa: S608 - ours
    return _read(rows[0]) if rows else None


async def claim_queued(store: Store, turn_id: str, rank: int | None) -> tuple[QueuedTurn, Job] | None:
    """Claim a turn that has not begun: return the row, and a job for the transaction that begins the turn,
    which raises ``OwnershipLost`` if a higher attempt has claimed it by then. Return ``None`` for a turn that
    was withdrawn or has begun, and for a lower rank. If ``rank`` is ``None``, a live owner keeps the turn
    (``SessionBusy``)."""

    def take(c: SqlConnection) -> tuple[QueuedTurn, int] | None:
        row = c.execute(f"SELECT {_COLUMNS}, owner, rank FROM queued WHERE id = ?", (turn_id,)).fetchone()  # noqa: S608 - ours
        if row is None:
            return None
        *asked, owner, before = row
        queued = _read(asked)
        if queued.begun is not None or queued.withdrawn is not None:
            return None
        if rank is None:
            store.owners.refuse_if_alive(queued.session, turn_id, owner)
        mine = before + 1 if rank is None else rank
        done = c.execute(
            "UPDATE queued SET rank = ?, owner = ? WHERE id = ? AND rank < ?",
            (mine, store.owners.me, turn_id, mine),
        )
        return (queued, mine) if done.rowcount == 1 else None

    claimed = await store.write(take)
    if claimed is None:
        return None
    queued, mine = claimed
    return queued, _begins(store, turn_id, mine)


def _begins(store: Store, turn_id: str, rank: int) -> Job:
    at = store.now()

    def begin(c: SqlConnection) -> None:
        must(
            c,
            "UPDATE queued SET begun = ?, request = NULL, request_crc = NULL WHERE id = ? AND rank = ?"
            " AND begun IS NULL AND withdrawn IS NULL",
            (at, turn_id, rank),
            lambda: OwnershipLost(f"turn {turn_id} was withdrawn, or another worker has it; this one stops"),
        )
        c.execute("UPDATE turns SET rank = ? WHERE id = ?", (rank, turn_id))

    return begin


async def withdraw(store: Store, turn_id: str, problem: str = "") -> bool:
    """Withdraw a turn on request, or because of a permanent ``problem``. A turn that has begun is interrupted
    by the process that resumes it. Return false if it was withdrawn before."""
    values = (store.now(), problem, turn_id)
    return bool(
        await store.write(
            lambda c: (
                c.execute(
                    "UPDATE queued SET withdrawn = ?, problem = ? WHERE id = ? AND withdrawn IS NULL", values
                ).rowcount
            )
        )
    )


async def note_problem(store: Store, turn_id: str, problem: str) -> None:
    """Store the reason why a worker could not run a turn that is tried again."""
    values = (problem, turn_id)
    await store.write(lambda c: c.execute("UPDATE queued SET problem = ? WHERE id = ?", values) and None)


def to_be_run(store: Store, before: float) -> list[QueuedTurn]:
    """Return the turns queued ``before`` (seconds since the epoch) that no process runs, oldest first: not
    begun, interrupted, or suspended for something that has arrived. A turn that handed the conversation over
    counts as its successor."""
    columns = ", ".join(f"q.{one}" for one in _COLUMNS.split(", "))
    rows = store.database.select(
        f"SELECT {columns}, t.owner, t.exit FROM queued q LEFT JOIN turns t ON t.id = q.id"  # noqa: S608 - ours
        " WHERE q.at < ? AND q.digest != ? AND CASE WHEN t.id IS NULL THEN q.withdrawn IS NULL"
        " ELSE t.ended IS NULL OR t.exit = 'handed_over' END ORDER BY q.at, q.number",
        before, ATTENDED,
    )  # fmt: skip
    items = PendingItems(lambda: store.database, store.now)

    def is_left(queued: QueuedTurn, owner: str | None, ended_by: str | None) -> bool:
        if queued.begun is None:
            return True
        turn_id = queued.id
        if ended_by is not None:
            last = last_turn(store, turn_id)
            if last.ended is not None:  # a live process begins the next turn right after it ends this one
                return last.ended < before and not _is_over(store, last)
            turn_id, owner = last.id, last.owner
        return not store.owners.alive(owner) and (  # first: nearly all are running
            queued.withdrawn is not None or all(one.is_settled(store.now()) for one in items.of_turn(turn_id))
        )

    return [queued for *row, owner, ended_by in rows if is_left(queued := _read(row), owner, ended_by)]


def last_turn(store: Store, turn_id: str) -> TurnInfo:
    """Return the turn, or its last successor by handoff that has begun. Raises ``ConfigError`` for an unknown
    turn."""
    turns = Turns(store.database)
    info = turns.info(turn_id)
    while info.exit == "handed_over":
        follower = next_turn_id(info.session, info.id)
        if not store.database.select("SELECT 1 FROM turns WHERE id = ?", follower):
            break
        info = turns.info(follower)
    return info


def _is_over(store: Store, last: TurnInfo) -> bool:
    """Return whether no turn follows the result of ``last_turn``. A user who has sent another message since,
    or undone this one, does not wait for the turn of the other agent."""
    if last.exit != "handed_over":
        return last.ended is not None
    return Turns(store.database).newest(store.newest(last.session).id) != last.id


async def forget_ended(store: Store) -> None:
    """Remove the rows of turns that have ended, and of handoff chains that have come to an end: the turns
    themselves hold their outcome. An attended turn that never began has ended with its process: no other
    process may take it, and its sender knows that no answer came."""
    rows = store.database.select(
        "SELECT q.id, t.exit, q.owner, t.id FROM queued q LEFT JOIN turns t ON t.id = q.id"
        " WHERE q.begun IS NOT NULL AND t.ended IS NOT NULL OR t.id IS NULL AND q.digest = ?",
        ATTENDED,
    )

    def is_over(turn: str, how: str | None, owner: str | None, began: str | None) -> bool:
        if began is None:
            return not store.owners.alive(owner)
        return how != "handed_over" or _is_over(store, last_turn(store, turn))

    if ended := [(row[0],) for row in rows if is_over(*row)]:
        await store.write(lambda c: c.executemany("DELETE FROM queued WHERE id = ?", ended) and None)


def must_be(store: Store, turn_id: str) -> QueuedTurn:
    """Return the queued turn with this id. Raises ``ConfigError`` if it does not exist."""
    if (queued := find_queued(store, turn_id)) is None:
        raise ConfigError("no such turn was queued", turn_id)
    return queued


def _read(row: Sequence[Any]) -> QueuedTurn:
    turn_id, session, digest, request, crc, *more = row
    return QueuedTurn(turn_id, session, digest, loads(request, crc) if request else {}, *more)
