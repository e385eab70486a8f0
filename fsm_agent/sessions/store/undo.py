"""Taking turns back: the transcript is again what it was before them. No row is lost (SESS-12). (Why:
decision 74.)"""

# Undo restores the snapshot of the turn's start. Removing the last messages would be wrong after a
# compaction.

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import is_next_turn
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions import Session
from fsm_agent.sessions.checkpoints import PutBack
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns, give_up
from fsm_agent.sessions.store.rows import (
    METER,
    compaction_chain,
    count_revision,
    inline,
    json_with_checksum,
    message_of,
    refuse_if_changed,
    transcript,
    write_notes,
)
from fsm_agent.sessions.store.store import Store


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone: ``turns`` that were taken back, the newest first; ``asked``, the first words of the
    oldest of them; ``rows``, the length of the transcript now; ``files``, what was put back, if that was
    asked for and there was a checkpoint."""

    session: str
    turns: tuple[str, ...]
    asked: str
    rows: int
    files: PutBack | None = None


async def undo(store: Store, session_id: str, turns: int = 1) -> Undone:
    """Take back the last turns of a session, including an unfinished one. The effects of tools on the world
    remain.

    Raises ``ConfigError`` when there are fewer turns, ``SessionBusy`` while a turn of the session is
    running anywhere."""
    _last_turns(store, store.newest(session_id), turns)
    async with store.held(session_id, f"undo-{uuid.uuid4().hex[:8]}") as session:
        return await _take_back(store, session, turns)


async def _take_back(store: Store, session: Session, count: int) -> Undone:
    found = _last_turns(store, session, count)
    for turn in found:
        store.refuse_if_run(turn)
    with store.database.reading() as c:
        before, meter = _before(c, found[-1].id, session)
    session.replace(before)
    for part in fields(ContextMeter):
        setattr(session.meter, part.name, getattr(meter, part.name))
    notes, session.unwritten = session.unwritten, []
    at, numbers, ids = store.now(), session.numbered(before), [turn.id for turn in found]
    believed = session.revision

    def write(c: SqlConnection) -> int:
        refuse_if_changed(c, session.id, believed)
        write_notes(c, session, notes, None, at)
        c.executemany(
            "UPDATE messages SET active = 1 WHERE session = ? AND number = ?",
            [(session.id, one) for one in numbers],
        )
        c.executemany("UPDATE turns SET undone = ? WHERE id = ?", [(at, turn_id) for turn_id in ids])
        give_up(c, ids, at)
        meter = json_with_checksum(METER.encode(session.meter))
        values = (*meter, at, session.id)
        c.execute("UPDATE sessions SET meter = ?, meter_crc = ?, touched = ? WHERE id = ?", values)
        return count_revision(c, session.id)

    session.revision = await store.written(write)
    return Undone(session.id, tuple(ids), found[-1].asked, len(before))


def _last_turns(store: Store, session: Session, count: int) -> list[TurnInfo]:
    """The last turns of the session and of those that it continues after compactions, the newest first. Those
    that one message led to, from agent to agent, are one."""
    with store.database.reading() as c:
        line = json.dumps(compaction_chain(c, session.id))
    among = "session IN (SELECT value FROM json_each(?)) AND undone IS NULL"
    found = store.database.select(f"SELECT id FROM turns WHERE {among} ORDER BY number DESC", line)  # noqa: S608 - ours
    if not found:
        raise ConfigError("nothing to undo: the session has no turn that was not taken back", session.id)
    ids = [str(turn_id) for (turn_id,) in found]
    firsts = [
        at for at, one in enumerate(ids) if at + 1 == len(ids) or not is_next_turn(one, ids[at + 1])
    ]  # the others were begun by the turn before them, which handed the conversation over
    if not 0 < count <= len(firsts):
        raise ConfigError("this number of turns cannot be undone", count, f"1 to {len(firsts)}")
    turns = Turns(store.database)
    return [turns.info(turn_id) for turn_id in ids[: firsts[count - 1] + 1]]


def _before(c: SqlConnection, turn_id: str, session: Session) -> tuple[list[Message], ContextMeter]:
    """The transcript and its size before a turn was asked; for a forked turn, before the one that it was
    forked from."""
    while True:
        parent, forked_at, *start = c.execute(
            "SELECT parent, forked_at, start, start_crc FROM turns WHERE id = ?", (turn_id,)
        ).fetchone()
        if parent is None or forked_at is None:
            break
        turn_id = parent
    snapshot = inline(c, *start)
    home, version, _, newest = snapshot["history"]  # the turn had not loaded any row yet
    stored = [(number, body) for number, body in transcript(c, home, version) if number <= newest]
    return _as_rows(stored, session, home == session.id), METER.decode(snapshot.get("meter", {}))


def _as_rows(stored: Sequence[tuple[int, str]], session: Session, own: bool) -> list[Message]:
    """Stored rows as those of the session: the same objects where it has them, by number, or by what they say
    when they are those of another session."""
    if own:
        live = {number: row for row, number in session.numbers.items()}
        rows = [live.get(number) or message_of(body) for number, body in stored]
        session.numbers |= {row: number for row, (number, _) in zip(rows, stored, strict=True)}
        return rows
    alike: dict[str, list[Message]] = {}
    for row in reversed(session.rows):
        alike.setdefault(dumps(row.to_dict()), []).append(row)
    return [alike[body].pop() if alike.get(body) else message_of(body) for _, body in stored]
