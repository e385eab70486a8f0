"""Going back: where a turn can be resumed or forked from, what may be changed of it then, and taking turns
back.
"""

# Undo restores the snapshot of the turn's start. Removing the last messages would be wrong after a
# compaction.

# A fork copies messages and reuses results. A fork copies messages into its own session, so that both can be
# compacted, searched, and deleted independently. Tools of the visit where it starts are not run again unless
# `rerun_tools` asks for it. The model is asked again, because that is the purpose of a fork.

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fsm_agent.conversation.handover import is_next_turn
from fsm_agent.conversation.messages import Message, ModelReply, ToolCall
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.base_turn import with_counters
from fsm_agent.fsm.codec import dumps
from fsm_agent.runtime import authority
from fsm_agent.runtime.events import measure
from fsm_agent.sessions.checkpoints import PutBack
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import rows as contents
from fsm_agent.sessions.store.claims import Claim
from fsm_agent.sessions.store.database import Job, SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.conversation_journal import ConversationRecording
from fsm_agent.sessions.store.journal.log import Recording
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns, give_up
from fsm_agent.sessions.store.names import free_title
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.rows import (
    ELSEWHERE,
    METER,
    Contents,
    compaction_chain,
    count_revision,
    deduplicate,
    inline,
    insert_session,
    json_with_checksum,
    loads,
    message_of,
    refuse_if_changed,
    store_content,
    transcript,
    write_notes,
)
from fsm_agent.sessions.store.store import Begun, Store

# ----------------------------------------------------------------------------------------------------
# Where a turn can be continued from: its snapshot after some move, the rows of that moment, and what is
# known of the visit.


@dataclass(slots=True)
class Position:
    """``snapshot`` as ``Turns.snapshot`` gives it, ``row`` the id of the row that led there, ``transcript``
    and ``own`` the rows as (number, row); the number is ``None`` for a row that is not stored."""

    turn: TurnInfo
    snapshot: dict[str, Any]
    settings: dict[str, Any]
    row: str | None
    transcript: list[tuple[int | None, Message]]
    own: list[tuple[int | None, Message]]
    recording: Recording = field(default_factory=ConversationRecording)

    @property
    def version(self) -> int:
        """Return the version of the transcript at this position."""
        return int(self.snapshot["history"][1])

    @property
    def newest(self) -> int:
        """The newest number that was given to a row by then."""
        return int(self.snapshot["history"][3])


def position_of(store: Store, turn_id: str, seq: int | None = None, *, talks: bool = True) -> Position:
    """The turn after ``seq`` moves, by default where it is now, with what is recorded of the visit it is in.
    ``talks``: it has a transcript, requests to a model, and tools (``TurnKind``)."""
    turns = Turns(store.database)
    info, snapshot = turns.info(turn_id), turns.snapshot(turn_id, seq)
    at = snapshot["seq"]
    last = turns.steps(turn_id, at, at) if at else []
    session, version, length, newest = snapshot["history"]
    with store.database.reading() as c:
        *kept, given, crc = c.execute(_KEPT, (turn_id,)).fetchone()
        settings, answers = inline(c, *kept), None if given is None else loads(given, crc)
        # before its first move a turn has loaded no row yet, and continues with all rows that its session
        # had when it began
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
    effects = turns.effects(turn_id, at)
    recording = (
        ConversationRecording.of(effects, answers if at == info.forked_at else None)
        if talks
        else Recording.of(effects)
    )
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
    *,
    talks: bool = True,
) -> Begun:
    """Continue the turn itself, in this process: claim first, then read, because the previous owner may
    have written up to that moment. Without a ``claim`` it is claimed here; this raises ``SessionBusy``
    while its owner lives, and when it moved since ``position`` was read."""
    await store.take_over(position.turn, session, claim, fence, position.version, position.newest)
    now = position_of(store, position.turn.id, talks=talks)
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
    """The rows of ``position`` become the live ones of the session. One object for each row, wherever it is
    held; rows of this turn that a compaction put aside keep their numbers."""
    session.rows = [row for _, row in position.transcript]
    session.numbers = {
        row: number for number, row in (*position.own, *position.transcript) if number is not None
    }
    session.next_number = max(session.next_number, position.newest + 1)


def fork_turn(store: Store, position: Position, session: Session, turn_id: str, digest: str) -> Job:
    """Make ``session`` and ``position`` those of a new turn that begins here; the job writes both. The rows
    are copied, so that both turns are independent."""
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


# ----------------------------------------------------------------------------------------------------
# The changes that a person may make to a turn before it continues as a fork.


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What reading a value of another form raises."""


def edit_position(position: Position, edit: Mapping[str, Any]) -> Position:
    """Change ``position`` as a person asks, and return it. Raises ``ConfigError`` for a change that cannot
    be made, with those that can.

    ``counters``: {name: value}. ``fields``: {name of a stored field: JSON value}. ``messages``: the whole
    transcript as rows, or {index: row, or None to take it out}. ``results``: {call id: text}, of calls
    that are still to run or that are in the transcript. ``reply``: what the model says, as text or
    {"text", "tool_calls": [{"name", "arguments"}]}; the turn must be in CallLLM. ``user_message``: other
    words of the user. ``rerun_tools``: run the tools of this visit again instead of taking their recorded
    results. ``recorded_replies``: take the recorded reply of the model in this visit, too, and all others.
    What a turn has from its agent (``fsm_agent.runtime.authority``) is in none of them.
    """
    whole = bool(edit.get("recorded_replies"))
    position.recording = (
        ConversationRecording() if edit.get("rerun_tools") else position.recording.taken_over(whole=whole)
    )
    for name, value in edit.items():
        editor = _EDITORS.get(name)
        if editor is None:
            raise ConfigError("a turn cannot be edited so", name, ", ".join(_EDITORS))
        try:
            editor(position, value)
        except UNREADABLE as error:
            why = f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
            raise ConfigError(f"the change of {name} cannot be read ({why})") from None
    return position


def _edit_counters(position: Position, value: Any) -> None:
    counts = position.snapshot["counts"]
    position.snapshot["counts"] = with_counters(counts, _mapping("counters", value))


def _edit_fields(position: Position, value: Any) -> None:
    place = {"turn_id", "session_id", "seq", "history", "rows", "state", "counts"}
    fixed = place | authority.FIELDS
    for name, new in _mapping("fields", value).items():
        if name not in position.snapshot or name in fixed:
            raise ConfigError(
                "no such field to edit", name, ", ".join(sorted(set(position.snapshot) - fixed))
            )
        position.snapshot[name] = new


def _edit_messages(position: Position, value: Any) -> None:
    if isinstance(value, Mapping):
        rows: list[tuple[int | None, Message | None]] = list(position.transcript)
        for index, row in value.items():
            number = int(index)
            if not 0 <= number < len(rows):
                raise ConfigError("no message of that index", index, f"0 to {len(rows) - 1}")
            _replace(position, rows, number, None if row is None else _row(row))
        position.transcript = [(number, row) for number, row in rows if row is not None]
    elif isinstance(value, list):
        position.transcript = [(None, _row(row)) for row in value]
        position.own = [(None, row) for _, row in position.transcript[-1:]]
    else:
        raise ConfigError(
            "messages cannot be set so", type(value).__name__, "a list of rows, or {index: row}"
        )


def _row(value: Any) -> Message:
    row = Message.from_dict(value)
    parts = row.content if isinstance(row.content, list | tuple) else ()
    if not (row.content is None or isinstance(row.content, str | list | tuple)) or not all(
        isinstance(part, Mapping) for part in parts
    ):
        raise ConfigError("content of a message cannot be set so", row.content, "a text, or content parts")
    return row


def _replace(
    position: Position, rows: list[tuple[int | None, Message | None]], index: int, row: Message | None
) -> None:
    old = rows[index][1]
    rows[index] = (None, row)
    own = [(n, r) if r is not old else (None, row) for n, r in position.own]
    position.own = [(n, r) for n, r in own if r is not None]


def _edit_results(position: Position, value: Any) -> None:
    """A call that is still to run is answered by hand; one that ran has its row changed."""
    places = {
        row.tool_call_id: index for index, (_, row) in enumerate(position.transcript) if row.role == "tool"
    }
    reply = position.snapshot.get("reply") or {}
    waiting = (
        {call["id"] for call in reply.get("tool_calls", ())}
        if position.snapshot["state"] == "ExecuteTools"
        else set()
    )
    for call_id, text in _mapping("results", value).items():
        if call_id in waiting:
            _recording(position).results[call_id] = str(text)
        elif call_id in places:
            row = {**position.transcript[places[call_id]][1].to_dict(), "content": str(text)}
            row.pop("sent", None)
            _edit_messages(position, {places[call_id]: row})
        else:
            raise ConfigError(
                "no such tool call here", call_id, ", ".join(sorted(map(str, {*waiting, *places}))) or "none"
            )


def _edit_reply(position: Position, value: Any) -> None:
    if position.snapshot["state"] != "CallLLM":
        raise ConfigError(
            "a reply can be given only before the model is asked",
            position.snapshot["state"],
            "a move into CallLLM",
        )
    said = {"text": value} if isinstance(value, str) else dict(_mapping("reply", value))
    calls = tuple(
        ToolCall(
            str(call.get("id") or f"call_{index}"), str(call["name"]), _arguments(call.get("arguments", {}))
        )
        for index, call in enumerate(said.get("tool_calls", ()))
    )
    text = str(said.get("text", ""))
    _recording(position).reply_of_model = ModelReply(
        text, tool_calls=calls, finish="tool_calls" if calls else "stop"
    )


def _recording(position: Position) -> ConversationRecording:
    assert isinstance(position.recording, ConversationRecording)
    return position.recording


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _edit_settings(position: Position, value: Any) -> None:
    changes = _mapping("settings", value)
    if position.turn.imported:
        raise ConfigError("a turn that came in a file has no settings of its own", ", ".join(changes), "none")
    for name in changes:
        if name in authority.SETTINGS:
            others = f"all but {', '.join(authority.SETTINGS)}"
            raise ConfigError("these settings are the agent's, not the turn's", name, others)
    position.settings = _merge(position.settings, changes)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        key: _merge(old[key], value)
        for key, value in new.items()
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping)
    }
    return {**old, **new, **nested}


def _edit_user(position: Position, value: Any) -> None:
    position.snapshot["user_content"] = _row({"role": "user", "content": value}).content
    for index in range(len(position.transcript) - 1, -1, -1):
        row = position.transcript[index][1]
        if position.own and row is position.own[0][1]:
            _edit_messages(position, {index: {**row.to_dict(), "content": value}})
            return


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} cannot be set so", type(value).__name__, "names and values")
    return value


_EDITORS: Mapping[str, Callable[[Position, Any], None]] = {
    "counters": _edit_counters, "fields": _edit_fields, "messages": _edit_messages, "reply": _edit_reply,
    "results": _edit_results, "settings": _edit_settings,
    "system_prompt": lambda position, value: position.snapshot.update(system_prompt=str(value)),
    "user_message": _edit_user, "rerun_tools": lambda position, value: None,
    "recorded_replies": lambda position, value: None,
}  # fmt: skip
"""``rerun_tools`` and ``recorded_replies`` are taken care of before the others."""


# ----------------------------------------------------------------------------------------------------
# Taking turns back: the transcript is again what it was before them. No row is lost (SESS-12). (Why:
# decision 74.)


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
