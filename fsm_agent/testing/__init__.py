"""Public fakes of everything a turn touches: a clock, a model, an external memory, and a provider over real HTTP.

>>> from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, text, tools
"""

from __future__ import annotations

from fsm_agent.testing.clock import FakeClock
from fsm_agent.testing.http import Received
from fsm_agent.testing.memory import FakeMemory
from fsm_agent.testing.model import ScriptedModel
from fsm_agent.testing.replies import (
    Call,
    Reply,
    bad_json,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    drop,
    empty_sse,
    json_reply,
    length,
    malformed_chunk,
    no_finish,
    overflow,
    reasoning,
    refusal,
    repeat,
    silence,
    slow,
    status,
    text,
    tools,
)
from fsm_agent.testing.server import ScriptedServer

__all__ = [
    "Call",
    "FakeClock",
    "FakeMemory",
    "Received",
    "Reply",
    "ScriptedModel",
    "ScriptedServer",
    "bad_json",
    "blank",
    "call",
    "content_filter",
    "cut",
    "cut_tool_call",
    "drop",
    "empty_sse",
    "json_reply",
    "length",
    "malformed_chunk",
    "no_finish",
    "overflow",
    "reasoning",
    "refusal",
    "repeat",
    "silence",
    "slow",
    "status",
    "text",
    "tools",
]
