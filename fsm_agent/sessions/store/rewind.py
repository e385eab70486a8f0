"""Rewinding: the positions from which a turn can be continued, by itself or by a fork. A position is its
snapshot after some move, the rows of that moment, and the recording of the visit."""

# A fork copies messages into its own session, so that both can be compacted, searched, and deleted
# independently. It reuses results: tools of the visit where it starts are not run again unless `rerun_tools`
# requests it. The model is asked again, because that is the purpose of a fork.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.runtime.events import measure
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Begun, Claim, Store
from fsm_agent.sessions.store import rows as contents
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal import Recording
from fsm_agent.sessions.store.journal.read import Effect, TurnInfo, Turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.rows import (
    ELSEWHERE,
    METER,
    Contents,
    deduplicate,
    inline,
    insert_session,
    json_with_checksum,
    loads,
    message_of,
    store_content,
    transcript,
)
from fsm_agent.sessions.store.stored_sessions import free_title

# Authority is never data: the rights of a turn come from the agent that runs it, and from a person, now or
# while it was suspended in this home.
#
# A journal, an imported file, an edit of a fork, a tool's description and a provider's reply record what was
# said and done. None of them can grant anything, whatever rule, address or approval it contains. Stored data
# can only make a turn more careful: an unsafe call stays unsafe, a refusal stays one. (Why: decision 52.)

AGENT_FIELDS = frozenset({"attended", "auxiliary", "has_engine", "has_memory", "runtime", "tools", "workdir"})
"""Fields that a resumed turn takes from its agent, whatever is stored."""
AGENT_SETTINGS = (
    *("approval", "credential", "delegation", "limits", "mcp", "memory", "prices", "sandbox"),
    *("store", "web"),
)
"""Groups of settings that a resumed turn takes from its agent. The others (budgets, patience) keep their
values from the beginning of the turn."""

ReadRecording = Callable[[Iterable[Effect], Mapping[str, Any] | None], Recording]
"""Builds the recording of a visit from its requests in the journal, and the initial replies of a fork."""


@dataclass(slots=True)
class Position:
    """``snapshot`` as ``Turns.snapshot`` returns it, ``row`` the id of the table row that led there,
    ``transcript`` and ``own`` the messages as (number, message); the number is ``None`` for a message that is
    not stored."""

    turn: TurnInfo
    snapshot: dict[str, Any]
    settings: dict[str, Any]
    row: str | None
    transcript: list[tuple[int | None, Message]]
    own: list[tuple[int | None, Message]]
    recording: Recording = field(default_factory=Recording)

    @property
    def version(self) -> int:
        """Return the version of the transcript at this position."""
        return int(self.snapshot["history"][1])

    @property
    def newest(self) -> int:
        """Return the newest row number at this position."""
        return int(self.snapshot["history"][3])


def position_of(
    store: Store, turn_id: str, seq: int | None = None, recorded: ReadRecording = Recording.of
) -> Position:
    """Return the turn's position after ``seq`` moves, by default the current one; ``recorded`` builds the
    recording of its visit."""
    turns = Turns(store.database)
    info, snapshot = turns.info(turn_id), turns.snapshot(turn_id, seq)
    at = snapshot["seq"]
    last = turns.steps(turn_id, at, at) if at else []
    session, version, length, newest = snapshot["history"]
    with store.database.reading() as c:
        *kept, given, crc = c.execute(_KEPT, (turn_id,)).fetchone()
        settings, answers = inline(c, *kept), None if given is None else loads(given, crc)
        # before its first move a turn has loaded no rows, and continues with all rows that its session had
        # when it began
        stored = transcript(c, session, version, length if at else None)
        rows = [(number, message_of(body)) for number, body in stored if at or number <= newest]
        by_number = dict(rows)
        own: list[tuple[int | None, Message]] = []
        for one in snapshot["rows"]:
            if isinstance(one, dict):
                own.append((None, Message.from_dict(one)))
            else:
                own.append(
                    (one, by_number.get(one) or message_of(*c.execute(_BODY, (session, one)).fetchone()))
                )
    recording = recorded(turns.effects(turn_id, at), answers if at == info.forked_at else None)
    row = last[0].row if last else None
    return Position(info, snapshot, settings, row, list(rows), own, recording)


_KEPT = "SELECT settings, settings_crc, answers, answers_crc FROM turns WHERE id = ?"
_BODY = "SELECT body, body_crc FROM messages WHERE session = ? AND number = ?"


async def take_over(
    store: Store,
    position: Position,
    session: Session,
    claim: Claim | None,
    fence: Fence,
    recorded: ReadRecording = Recording.of,
) -> Begun:
    """Continue the turn itself, in this process: claim first, then read, because the previous owner may have
    written up to that moment. Without a ``claim``, claim it here; this raises ``SessionBusy`` while its owner
    lives, or if it moved since ``position`` was read."""
    await store.take_over(position.turn, session, claim, fence, position.version, position.newest)
    now = position_of(store, position.turn.id, recorded=recorded)
    position.recording, now.recording.resumed = now.recording, True
    waits = PendingItems(lambda: store.database).of_turn(position.turn.id)
    now.recording.waiting = {
        one.call: one.digest
        for one in waits
        if one.turn == position.turn.id and one.kind in ("result", "timer")
    }
    adopt(session, position)
    measure("takeover")
    return Begun(recording=now.recording)


def adopt(session: Session, position: Position) -> None:
    """Make the rows of ``position`` those of the session. Each row is one object, wherever it is held; rows
    of this turn that a compaction set aside keep their numbers."""
    session.rows = [row for _, row in position.transcript]
    session.numbers = {
        row: number for number, row in (*position.own, *position.transcript) if number is not None
    }
    session.next_number = max(session.next_number, position.newest + 1)


def fork_turn(store: Store, position: Position, session: Session, turn_id: str, digest: str) -> Job:
    """Turn ``session`` and ``position`` into those of a new turn that begins here; return the job that writes
    both. The rows are copied, so that both turns are independent."""
    snapshot, at = position.snapshot, store.now()
    session.kind, session.source, session.parent = "fork", "fork", position.turn.session
    parent = store.session(position.turn.session)
    with store.database.reading() as c:
        session.title = free_title(c, parent.title or parent.id, session.id)
    session.prompts, session.usage = dict(parent.prompts), parent.usage
    session.meter = METER.decode(snapshot.get("meter", {}))
    numbers: dict[Message, int] = {}
    for _, row in position.transcript:
        numbers.setdefault(row, len(numbers) + 1)
    kept = len(numbers)
    aside = [row for _, row in position.own if row not in numbers]
    for row in aside:
        numbers[row] = len(numbers) + 1
    snapshot |= {"turn_id": turn_id, "session_id": session.id, "parent_session_id": session.parent}
    snapshot["history"] = [session.id, 0, kept, len(numbers)]
    snapshot["rows"] = [numbers[row] for _, row in position.own]
    values = [
        (
            session.id,
            number,
            0 if number <= kept else -1,
            turn_id,
            at,
            row.role,
            *json_with_checksum(row.to_dict()),
            int(number <= kept),
        )
        for row, number in numbers.items()
    ]
    info, answers = position.turn, position.recording.answers()
    shared: Contents = {}
    turn = (
        turn_id, session.id, info.id, snapshot["seq"], info.asked, snapshot["state"], snapshot["seq"],
        store.owners.me,
        info.table_name, digest,
        *json_with_checksum({ELSEWHERE: [store_content(position.settings, shared)]}),
        *json_with_checksum(deduplicate(snapshot, shared)),
        at, at, *((None, None) if answers is None else json_with_checksum(answers)),
        info.imported,
    )  # fmt: skip

    def write(c: Any) -> None:
        insert_session(c, session, at)
        contents.write(c, shared)
        c.execute(
            "UPDATE sessions SET holder = ?, owner = ?, revision = 1 WHERE id = ?",
            (turn_id, store.owners.me, session.id),
        )
        c.executemany(
            "INSERT INTO messages (session, number, version, turn, at, role, body, body_crc, active)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        c.execute(
            "INSERT INTO turns (id, session, parent, forked_at, asked, state, seq, owner, table_name, digest,"
            " settings, settings_crc, start, start_crc, began, moved, answers, answers_crc, imported, number)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            turn,
        )

    session.rows = [row for _, row in position.transcript]
    session.numbers, session.next_number = numbers, len(numbers) + 1
    session.revision, session.owner = 1, store.owners.me
    return write
