"""The API modes that can be written, by name."""

from __future__ import annotations

from fsm_agent.requests import ApiMode
from fsm_agent.wire.chat import ChatFormat
from fsm_agent.wire.form import Format

FORMATS: dict[ApiMode, Format] = {"chat_completions": ChatFormat()}


def format_of(mode: ApiMode) -> Format:
    return FORMATS[mode]
