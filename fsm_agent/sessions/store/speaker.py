"""Which agent has a conversation: the one that ran its last turn, or the one that it handed it over to."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fsm_agent.conversation.handover import HandoffStep, way_of
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.lineage import compacted_line
from fsm_agent.sessions.store.store import Store


@dataclass(frozen=True, slots=True)
class Speaker:
    """``agent`` has the conversation since ``turn``, the last one that was not taken back. ``handoffs``: the
    way to it since the user spoke, when its own turn is still to begin; else empty. ``task_id``: of that
    turn."""

    agent: str
    turn: TurnInfo
    handoffs: tuple[HandoffStep, ...] = ()
    task_id: str = ""


def speaker_of(store: Store, session_id: str) -> Speaker | None:
    """Return who has a conversation, ``None`` before its first turn."""
    with store.database.reading() as c:
        line = json.dumps(compacted_line(c, session_id))
        query = "session IN (SELECT value FROM json_each(?)) AND undone IS NULL ORDER BY number DESC LIMIT 1"
        row = c.execute(f"SELECT id FROM turns WHERE {query}", (line,)).fetchone()  # noqa: S608 - ours
    return None if row is None else speaker_after(Turns(store.database), row[0])


def speaker_after(turns: Turns, turn_id: str) -> Speaker:
    """Return who has a conversation after a turn, or in it."""
    info, said = turns.info(turn_id), turns.result(turn_id) or {}
    way = way_of(said.get("handoffs")) if info.exit == "handed_over" else ()
    if not way:
        return Speaker(turns.agent(turn_id), info)
    return Speaker(way[-1].to, info, way, str(said.get("task_id", "")))
