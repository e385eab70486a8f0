"""From a choice to a model port. The only place that knows which class speaks which wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from fsm_agent.providers.choose import Choice
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.settings.model import Settings

LINGER = 5.0
"""Seconds that a stream may stay open after its finish reason. The reply is whole by then: a shorter stale
limit must not come first, or the watchdog would take it for a cut one and have it continued."""


class Limits(TypedDict):
    """What every port is given of the settings, in seconds, and wall time."""

    connect: float
    read: float
    total: float
    linger: float
    now: Callable[[], float]


def connect(choice: Choice, settings: Settings, clock: Clock) -> ModelPort:
    """A port for the choice; nothing is opened before its first call, and no SDK is loaded before it."""
    if choice.profile.name == "offline":
        from fsm_agent.providers.offline import OfflineDemo

        return OfflineDemo()
    if choice.profile.name == "scripted":
        from fsm_agent.providers.scripted.model import ScriptedModel
        from fsm_agent.providers.scripted.scriptfile import script_from

        return ScriptedModel(script_from(choice.model), clock)
    from fsm_agent.providers.anthropic_messages import AnthropicMessages
    from fsm_agent.providers.openai_port import OpenAIChat, OpenAIResponses

    timeout, stale = settings.timeout, settings.stale
    url, key = choice.base_url or "", choice.keys[0] if choice.keys else ""
    limits: Limits = {
        "connect": timeout.connect,
        "read": max(stale.local, timeout.read, *stale.stream.each, *stale.whole.each),
        "total": timeout.total,
        "linger": min(LINGER, min(stale.stream.each) / 2),
        "now": clock.now,
    }
    if choice.api_mode == "anthropic_messages":
        return AnthropicMessages(url, key, auth=choice.profile.auth, **limits)
    if choice.api_mode == "codex_responses":
        return OpenAIResponses(url, key, **limits)
    return OpenAIChat(url, key, **limits)
