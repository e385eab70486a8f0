"""OpenAI's wire protocols, for their SDKs and all compatible programs: ``/v1/responses``,
``/v1/chat/completions``, and ``/v1/models``. This module has what they cannot express: the field
``fsm_agent`` of their objects, and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai import BaseModel
from pydantic_core import to_jsonable_python

from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.follow import ServedEvent
from fsm_agent.runtime.events import (
    ApprovalAsked,
    ClarifyAsked,
    IterationBegun,
    Named,
    StatusText,
    ToolProgress,
    Transition,
)
from fsm_agent.sessions.store.pending import Pending

FIELD = "fsm_agent"
"""The field of a response, of a completion, and of the last chunk of a stream."""
SESSION_HEADER = "x-fsm-agent-session"
"""In an answer: the session of the turn. In a request to chat completions: the session to continue."""
TURN_HEADER = "x-fsm-agent-turn"
OUTCOME_HEADER = "x-fsm-agent-outcome"
"""``completed``, ``partial``, ``interrupted``, ``failed``, or ``suspended``; streams lack it."""
EXIT_HEADER = "x-fsm-agent-exit-reason"
IGNORED_HEADER = "x-fsm-agent-ignored"
"""The ignored parameters of the request, separated by commas."""
EVENTS_HEADER = "x-fsm-agent-events"
"""In a request for a stream: ``all`` adds the events of the engine to those of the wire."""
SUSPENDED = "suspended"
SERVER_LABEL = "fsm_agent"
"""Label of tools that run on this server, which the Responses wire shows as calls of an MCP server."""
_PROGRESS = (Transition, StatusText, Named, IterationBegun, ToolProgress, ApprovalAsked, ClarifyAsked)


class EngineEvent(BaseModel):
    """An event of the engine in a stream: ``type`` is ``fsm_agent.`` and its channel, ``data`` has its
    fields, ``id`` says where in its ``turn`` it is."""

    type: str
    id: str
    turn: str
    data: Mapping[str, Any]
    sequence_number: int | None = None


def engine_event(served: ServedEvent, sequence_number: int | None = None) -> EngineEvent | None:
    """Return an engine event for a client that requested them; ``None`` for one that the wire can express."""
    if not isinstance(served.event.values, _PROGRESS):
        return None
    data = to_jsonable_python(served.event.values._asdict(), fallback=str)
    kind = f"{FIELD}.{served.event.name}"
    numbered: dict[str, Any] = {} if sequence_number is None else {"sequence_number": sequence_number}
    return EngineEvent(type=kind, id=served.id, turn=served.turn, data=data, **numbered)


def facts_of_result(result: TurnResult[Any]) -> dict[str, Any]:
    """Return the facts about a turn that has ended."""
    return {
        "turn": result.turn_id,
        "session": result.session_id,
        "agent": result.agent,
        "outcome": result.turn_exit_reason.outcome.value,
        "exit_reason": result.turn_exit_reason.value,
        "error": result.error,
        "limit": result.limit,
        "guardrail": result.guardrail,
        "model": result.model,
        "provider": result.provider,
        "api_calls": result.api_calls,
        "attempts": result.attempts,
        "estimated_cost_usd": result.estimated_cost_usd,
        "cost_status": result.cost_status,
        "usage_known": result.usage_known,
        "states": [one.model_dump(mode="json") for one in result.states],
        "children": [one.model_dump(mode="json") for one in result.children],
        "handoffs": to_jsonable_python(result.handoffs, fallback=str),
        "pending": [],
    }


def facts_of_wait(turn_id: str, session_id: str, pending: Sequence[Pending]) -> dict[str, Any]:
    """Return the facts about a turn that waits for answers."""
    return {
        "turn": turn_id,
        "session": session_id,
        "outcome": SUSPENDED,
        "exit_reason": None,
        "pending": [
            {
                "id": one.id, "kind": one.kind, "tool": one.tool, "call": one.call, "asked": one.asked,
                "choices": list(one.choices), "due": one.due, "what": one.what,
            }
            for one in pending
        ],
    }  # fmt: skip


def headers_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a response with these facts."""
    named = {
        SESSION_HEADER: facts.get("session"),
        TURN_HEADER: facts.get("turn"),
        OUTCOME_HEADER: facts.get("outcome"),
        EXIT_HEADER: facts.get("exit_reason"),
    }
    return {name: str(value) for name, value in named.items() if value}
