"""The API modes that can be written, by name."""

from __future__ import annotations

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.wire.aging import AGELESS, CURRENT_LOOP, Aging
from fsm_agent.conversation.wire.anthropic import AnthropicFormat
from fsm_agent.conversation.wire.chat import ChatFormat
from fsm_agent.conversation.wire.form import Format
from fsm_agent.conversation.wire.responses import ResponsesFormat

FORMATS: dict[ApiMode, Format] = {
    "chat_completions": ChatFormat(),
    "codex_responses": ResponsesFormat(),
    "anthropic_messages": AnthropicFormat(),
}
AGING: dict[ApiMode, Aging] = {"anthropic_messages": CURRENT_LOOP}


def format_of(mode: ApiMode) -> Format:
    """Return how conversations are written in an API mode."""
    return FORMATS[mode]


def aging_of(mode: ApiMode) -> Aging:
    """Return what rows lose in an API mode once newer ones are there."""
    return AGING.get(mode, AGELESS)
