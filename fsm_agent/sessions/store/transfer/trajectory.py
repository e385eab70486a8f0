"""A conversation as training data: the ShareGPT form, with tools written as Hermes models read them
(SESS-14).

One object a conversation: ``conversations`` is a list of {"from": "system" | "human" | "gpt" | "tool",
"value": text}. Reasoning is in ``<think>``, calls in ``<tool_call>``, results in ``<tool_response>``;
results of one round are one entry."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fsm_agent.conversation.parts import text_only as words_of
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rows import newest_number, transcript
from fsm_agent.support.files import private_file, private_folder
from fsm_agent.support.redaction import mask

TOOLS = (
    "You may call functions. Their signatures are within <tools></tools>; write each call as JSON within "
    "<tool_call></tool_call>:\n"
    '<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>\n<tools>\n{tools}\n</tools>'
)


def session_trajectory(
    database: Database, session_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> dict[str, Any]:
    """Return the transcript of a session as it is now. ``completed`` is that of its last turn."""
    with database.reading() as c:
        version, created, model = c.execute(
            "SELECT version, created, model FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        rows = [json.loads(body) for _, body in transcript(c, session_id, version)]
        last = c.execute(
            "SELECT id, outcome FROM turns WHERE session = ? AND undone IS NULL ORDER BY number DESC LIMIT 1",
            (session_id,),
        ).fetchone()
    told = Turns(database).snapshot(last[0]) if last else {}
    completed = bool(last) and last[1] == "completed"
    return _trajectory(session_id, rows, told, (created, model, completed), None if raw else secrets)


def turn_trajectory(
    database: Database, turn_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> dict[str, Any]:
    """Return the transcript up to the end of one turn. Raises ``ConfigError`` for one that is not there."""
    turns = Turns(database)
    info, told, result = turns.info(turn_id), turns.snapshot(turn_id), turns.result(turn_id) or {}
    session, version, length, newest = told["history"]
    with database.reading() as c:
        last, stored = newest_number(c, session, turn_id), transcript(c, session, version)
    rows = [
        json.loads(body)
        for place, (number, body) in enumerate(stored)
        if place < length or newest < number <= last
    ]
    model = f"{result['provider']}:{result['model']}" if result else ""
    return _trajectory(
        turn_id, rows, told, (info.began, model, info.outcome == "completed"), None if raw else secrets
    )


def save_trajectory(database: Database, turn_id: str, path: Path) -> None:
    """Append one turn, masked, to a file of trajectories."""
    line = dumps(turn_trajectory(database, turn_id))
    private_folder(path.parent)
    with open(path, "a", encoding="utf-8", opener=private_file) as file:
        file.write(line + "\n")


def _trajectory(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    told: Mapping[str, Any],
    facts: tuple[float, str, bool],
    secrets: Collection[str] | None,
) -> dict[str, Any]:
    at, model, completed = facts
    spoken = [*([("system", _system(told))] if told else []), *_join_entries(_speaking(rows))]
    said = [
        {"from": speaker, "value": text if secrets is None else mask(text, secrets)}
        for speaker, text in spoken
    ]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {"id": name, "conversations": said, "timestamp": when, "model": model, "completed": completed}


def _system(told: Mapping[str, Any]) -> str:
    prompt = str(told.get("system_prompt", ""))
    specs = [
        {"type": "function", "function": {name: tool[name] for name in ("name", "description", "parameters")}}
        for tool in told.get("tools", ())
    ]
    tools = (
        TOOLS.format(tools="\n".join(json.dumps(spec, ensure_ascii=False) for spec in specs)) if specs else ""
    )
    return "\n\n".join(part for part in (prompt, tools) if part)


def _speaking(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    names: dict[str, str] = {}
    for row in rows:
        if not row.get("wire", True):
            continue
        text = words_of(row.get("content"))
        match row["role"]:
            case "assistant":
                names |= {call["id"]: call["function"]["name"] for call in row.get("tool_calls", ())}
                thoughts = f"<think>\n{row['reasoning']}\n</think>" if row.get("reasoning") else ""
                yield "gpt", "\n".join(filter(None, (thoughts, text, *_calls(row))))
            case "tool":
                name = row.get("name") or names.get(row.get("tool_call_id", ""), "")
                said = {"tool_call_id": row.get("tool_call_id"), "name": name, "content": text}
                yield "tool", f"<tool_response>\n{json.dumps(said, ensure_ascii=False)}\n</tool_response>"
            case role:
                yield "human" if role == "user" else role, text


def _calls(row: Mapping[str, Any]) -> Iterator[str]:
    for call in row.get("tool_calls", ()):
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            arguments = function["arguments"]
        yield (
            "<tool_call>\n"
            + json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
            + "\n</tool_call>"
        )


def _join_entries(said: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Entries of one speaker in a row as one."""
    for speaker, entries in itertools.groupby(said, key=lambda one: one[0]):
        yield speaker, "\n".join(text for _, text in entries)
