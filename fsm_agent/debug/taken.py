"""What a visit did not have to ask for: the answer was there, given by a person at a fork, or taken over from the run before.

Such answers are in no effect of the journal; they are read from what the visit left in the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsm_agent.store.read import Turns

MODEL, TOOL = "CallModel", "RunTool"
BY_HAND, TAKEN_OVER = "by hand", "taken over"


def answers(
    turns: Turns, turn_id: str, at: int, state: str, known: Sequence[dict[str, Any]], after: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """The missing entries of the visit at ``at``, the first of a fork, in the form of effects. ``known`` are its effects,
    ``after`` the snapshot after its move."""
    if after is None:
        return []
    before = {one["request"].get("call_id", one["kind"]): one["reply"] for one in _parent(turns, turn_id, at)}
    kinds = {one["kind"] for one in known}
    if state == "CallLLM" and MODEL not in kinds and after.get("reply"):
        reply = {"is": "ModelReply", **after["reply"]}
        return [_entry(at, state, MODEL, "", {"is": MODEL}, reply, before.get(MODEL))]
    if state != "ExecuteTools" or TOOL in kinds:
        return []
    rows = {row.get("tool_call_id"): row for row in turns.messages(turn_id, at + 1) if row["role"] == "tool"}
    made = []
    for call in (after.get("reply") or {}).get("tool_calls", ()):
        if (row := rows.get(call["id"])) is not None:
            request = {"is": TOOL, "call_id": call["id"], "name": call["name"], "arguments": call["arguments"]}
            reply = {"is": "ToolOutcome", "call_id": call["id"], "status": "ok", "text": row["content"]}
            made.append(_entry(at, state, TOOL, call["name"], request, reply, before.get(call["id"])))
    return made


def _entry(at: int, state: str, kind: str, name: str, request: Any, reply: Any, before: Any) -> dict[str, Any]:
    same = before is not None and before.get("text") == reply.get("text")
    status = TAKEN_OVER if same else BY_HAND
    return {
        "seq": at, "ordinal": -1, "place": 0, "state": state, "kind": kind, "name": name, "status": status,
        "request": request, "reply": reply, "at": None, "seconds": None,
    }  # fmt: skip


def _parent(turns: Turns, turn_id: str, at: int) -> list[dict[str, Any]]:
    parent = turns.info(turn_id).parent
    effects = turns.effects(parent, at) if parent is not None else []
    return [{"kind": one.kind, "request": one.request, "reply": one.reply} for one in effects]
