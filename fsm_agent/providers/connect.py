"""From a choice to a model port. The only place that knows which class speaks which wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fsm_agent.providers.choose import Choice
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.settings.model import Settings

if TYPE_CHECKING:
    from fsm_agent.providers.sdk_port import SdkPort

LINGER = 5.0
"""Seconds that a stream may stay open after its finish reason. The reply is whole by then: a shorter stale
limit must not come first, or the watchdog would take it for a cut one and have it continued."""


def connect(
    choice: Choice, settings: Settings, clock: Clock, headers: Mapping[str, str] | None = None
) -> ModelPort:
    """A port for the choice; nothing is opened before its first call, and no SDK is loaded before it.
    ``headers`` go out with each of its requests."""
    if choice.profile.name == "offline":
        from fsm_agent.providers.offline import OfflineDemo

        return OfflineDemo()
    if choice.profile.name == "scripted":
        from fsm_agent.providers.scripted.model import ScriptedModel
        from fsm_agent.providers.scripted.scriptfile import script_from

        return ScriptedModel(script_from(choice.model), clock)
    timeout, stale, profile = settings.timeout, settings.stale, choice.profile
    versioned = bool(choice.route and profile.api_version)
    options: dict[str, Any] = {
        "connect": timeout.connect,
        "read": max(stale.local, timeout.read, *stale.stream.each, *stale.whole.each),
        "total": timeout.total,
        "linger": min(LINGER, min(stale.stream.each) / 2),
        "now": clock.now,
        "headers": headers or {},
        "auth": profile.auth,
        "route": choice.route,
        "query": {"api-version": profile.api_version} if versioned else {},
    }
    made: type[SdkPort]
    if profile.client == "bedrock":
        from fsm_agent.providers.bedrock import BedrockMessages, check_installed

        check_installed()
        made = BedrockMessages
    elif choice.api_mode == "anthropic_messages":
        from fsm_agent.providers.anthropic_messages import AnthropicMessages

        made = AnthropicMessages
    else:
        from fsm_agent.providers.openai_port import OpenAIChat, OpenAIResponses

        made = OpenAIResponses if choice.api_mode == "codex_responses" else OpenAIChat
    return made(choice.base_url or "", choice.keys[0] if choice.keys else "", **options)
