"""What ``Agent`` is made of: all that is loaded when the first one is made, and not before."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from fsm_agent.approvals.waiting import answer
from fsm_agent.composition.agent_factory import composed, named
from fsm_agent.composition.agent_tool import agent_tool
from fsm_agent.composition.answers import output_type_again, output_type_of
from fsm_agent.composition.effect_handler import EffectHandler
from fsm_agent.composition.handoffs import found_handoff
from fsm_agent.composition.intake import history_of, message_of
from fsm_agent.composition.turn_wiring import (
    COUNTERS,
    DIGEST,
    KIND,
    MACHINE,
    STATES,
    TurnState,
    compacted,
    continued,
    ending_of,
    joined,
    reopened,
    result_of,
)
from fsm_agent.conversation.effects import CloseTurn, Compacted, OpenTurn
from fsm_agent.conversation.handover import HandoffStep, next_turn_id
from fsm_agent.conversation.supplied import supplied_history
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.properties import watcher
from fsm_agent.fsm.runner import Runner
from fsm_agent.memory.snapshot import recalled
from fsm_agent.prompt import Sources, prompt_of
from fsm_agent.runtime.turn_door import TurnDoor
from fsm_agent.sessions.relay import Relay
from fsm_agent.sessions.session_lease import SessionLease
from fsm_agent.sessions.store import Begun, ConversationLog, NewTurn
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.names import any_turn, find_turn, name_after, rename
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.queued import ASKED
from fsm_agent.sessions.store.rewind.edits import edited
from fsm_agent.sessions.store.rewind.positions import forked, position_of, take_over
from fsm_agent.sessions.store.rewind.undo import undo
from fsm_agent.sessions.store.rows import asked_words
from fsm_agent.sessions.store.speaker import Speaker, speaker_after, speaker_of
from fsm_agent.sessions.turn import Turn
from fsm_agent.sessions.turn_line import TurnLine
from fsm_agent.support.threads import LOOP, warn_if_blocking
from fsm_agent.tools import RunContext
from fsm_agent.toolsets.agent.posted import children_of, spent_below

__all__ = [
    "ASKED",
    "COUNTERS",
    "DIGEST",
    "KIND",
    "LOOP",
    "MACHINE",
    "STATES",
    "Begun",
    "CloseTurn",
    "Compacted",
    "ConversationLog",
    "EffectHandler",
    "HandoffStep",
    "NewTurn",
    "OpenTurn",
    "PausePoint",
    "PendingItems",
    "Relay",
    "RunContext",
    "Runner",
    "SessionLease",
    "Sources",
    "Speaker",
    "Turn",
    "TurnDoor",
    "TurnLine",
    "TurnState",
    "Turns",
    "agent_tool",
    "answer",
    "any_turn",
    "asked_words",
    "asyncio",
    "children_of",
    "compacted",
    "composed",
    "continued",
    "edited",
    "ending_of",
    "find_turn",
    "forked",
    "found_handoff",
    "history_of",
    "joined",
    "message_of",
    "name_after",
    "named",
    "next_turn_id",
    "nullcontext",
    "output_type_again",
    "output_type_of",
    "position_of",
    "prompt_of",
    "recalled",
    "rename",
    "reopened",
    "result_of",
    "speaker_after",
    "speaker_of",
    "spent_below",
    "supplied_history",
    "take_over",
    "undo",
    "warn_if_blocking",
    "watcher",
]
