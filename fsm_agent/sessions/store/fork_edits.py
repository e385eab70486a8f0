"""The changes that a person may make to a turn of an agent before it continues as a fork."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.conversation.messages import Message, ModelReply, ToolCall
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.base_turn import with_counters
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.journal.conversation_journal import ConversationRecording
from fsm_agent.sessions.store.rewind import AGENT_FIELDS, AGENT_SETTINGS, Position

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
    What a turn has from its agent (``AGENT_FIELDS``) is in none of them.
    """
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
"""``rerun_tools`` and ``recorded_replies`` are taken care of before the others."""
