"""Changes that a person makes to a conversation: undo turns, or edit a turn before it continues as a fork. No
row is lost (SESS-12)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fsm_agent.conversation.messages import Message, ModelReply, ToolCall
from fsm_agent.conversation.result import is_next_turn
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.errors import ConfigError, expect
from fsm_agent.fsm.base_turn import with_counters
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions import Session
from fsm_agent.sessions.checkpoints import PutBack
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.journal.conversation_journal import ConversationRecording
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns, give_up
from fsm_agent.sessions.store.rewind import AGENT_FIELDS, AGENT_SETTINGS, Position
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

# Undo: the transcript becomes what it was before the turns. (Why: decision 74.) It restores the snapshot of
# the turn's start, because removing the last messages would be wrong after a compaction.


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of an undo: ``turns``, those undone, newest first; ``asked``, the first words of the oldest
    one; ``rows``, the length of the transcript now; ``files``, the restored files, if that was requested and
    there was a checkpoint."""

    session: str
    turns: tuple[str, ...]
    asked: str
    rows: int
    files: PutBack | None = None


async def undo(store: Store, session_id: str, turns: int = 1) -> Undone:
    """Undo the last turns of a session, including an unfinished one. The effects of tools on the world
    remain.

    Raises ``ConfigError`` when there are fewer turns, ``SessionBusy`` while a turn of the session is running
    anywhere."""
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
    at, numbers, ids = store.now(), session.numbers_of(before), [turn.id for turn in found]
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

    session.revision = await store.write(write)
    return Undone(session.id, tuple(ids), found[-1].asked, len(before))


def _last_turns(store: Store, session: Session, count: int) -> list[TurnInfo]:
    """Return the last turns of the session and its compaction chain, newest first. Turns linked by handoffs
    of one message count as one."""
    with store.database.reading() as c:
        line = json.dumps(compaction_chain(c, session.id))
    among = "session IN (SELECT value FROM json_each(?)) AND undone IS NULL"
    found = store.database.select(f"SELECT id FROM turns WHERE {among} ORDER BY number DESC", line)  # noqa: S608 - ours
    if not found:
        raise ConfigError("nothing to undo: the session has no turns left", session.id)
    ids = [str(turn_id) for (turn_id,) in found]
    firsts = [
        at for at, one in enumerate(ids) if at + 1 == len(ids) or not is_next_turn(one, ids[at + 1])
    ]  # the others are continuations of a handoff
    expect("the number of turns to undo", count, int, f"1 to {len(firsts)}")
    if not 0 < count <= len(firsts):
        raise ConfigError(
            "this number of turns cannot be undone", count, f"1 to {len(firsts)}" if len(firsts) > 1 else "1"
        )
    turns = Turns(store.database)
    return [turns.info(turn_id) for turn_id in ids[: firsts[count - 1] + 1]]


def _before(c: SqlConnection, turn_id: str, session: Session) -> tuple[list[Message], ContextMeter]:
    """Return the transcript and its size before a turn was asked; for a forked turn, before its original."""
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
    """Convert stored rows to rows of the session: reuse the session's objects, matched by number, or by
    content if the rows belong to another session."""
    if own:
        live = {number: row for row, number in session.numbers.items()}
        rows = [live.get(number) or message_of(body) for number, body in stored]
        session.numbers |= {row: number for row, (number, _) in zip(rows, stored, strict=True)}
        return rows
    alike: dict[str, list[Message]] = {}
    for row in reversed(session.rows):
        alike.setdefault(dumps(row.to_dict()), []).append(row)
    return [alike[body].pop() if alike.get(body) else message_of(body) for _, body in stored]


# ----------------------------------------------------------------------------------------------------
# The changes that a person may make to a turn of an agent before it continues as a fork.


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""Exceptions raised when a value has the wrong form."""


def edit_position(position: Position, edit: Mapping[str, Any]) -> Position:
    """Apply a person's ``changes`` to ``position``, and return it. Raises ``ConfigError`` for a change that
    cannot be made, naming those that can.

    ``counters``: {name: value}. ``fields``: {name of a stored field: JSON value}. ``messages``: the whole
    transcript as rows, or {index: row, or None to remove it}. ``results``: {call id: text}, of calls that are
    still to run or that are in the transcript. ``reply``: the model's reply, as text or {"text",
    "tool_calls": [{"name", "arguments"}]}; the turn must be in CallLLM. ``user_message``: replaces the user's
    message. ``rerun_tools``: run the tools of this visit again instead of taking their recorded results.
    ``recorded_replies``: take the model's recorded reply in this visit, too, and all others. Fields that a
    turn takes from its agent (``AGENT_FIELDS``) cannot be changed.
    """
    expect("edit", edit, Mapping, "a mapping of " + ", ".join(_EDITORS))
    whole = bool(edit.get("recorded_replies"))
    position.recording = (
        ConversationRecording() if edit.get("rerun_tools") else _recording(position).taken_over(whole=whole)
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
    fixed = place | AGENT_FIELDS
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
    """Answer a pending call by hand; edit the row of one that ran."""
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
    fields = {"text": value} if isinstance(value, str) else dict(_mapping("reply", value))
    calls = tuple(
        ToolCall(
            str(call.get("id") or f"call_{index}"), str(call["name"]), _arguments(call.get("arguments", {}))
        )
        for index, call in enumerate(fields.get("tool_calls", ()))
    )
    text = str(fields.get("text", ""))
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
        if name in AGENT_SETTINGS:
            others = f"all but {', '.join(AGENT_SETTINGS)}"
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
"""``rerun_tools`` and ``recorded_replies`` are handled before the others."""
