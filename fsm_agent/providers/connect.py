"""From a choice to a model port. The only place that knows which class speaks which wire."""

from __future__ import annotations

from fsm_agent.ports import Clock, ModelPort
from fsm_agent.providers.choose import Choice
from fsm_agent.settings import Settings


def connect(choice: Choice, settings: Settings, clock: Clock) -> ModelPort:
    """A port for the choice; nothing is opened before its first call, and no SDK is loaded before it."""
    if choice.profile.name == "offline":
        from fsm_agent.providers.offline import OfflineDemo

        return OfflineDemo()
    if choice.profile.name == "scripted":
        from fsm_agent.testing.model import ScriptedModel
        from fsm_agent.testing.scriptfile import script_from

        return ScriptedModel(script_from(choice.model), clock)
    from fsm_agent.providers.openai_chat import OpenAIChat

    timeout, stale = settings.timeout, settings.stale
    longest = max(stale.local, stale.stream.above_100k, stale.whole.above_100k, timeout.read)
    return OpenAIChat(
        choice.base_url or "",
        choice.keys[0] if choice.keys else "",
        connect=timeout.connect,
        read=longest,
        total=timeout.total,
        now=clock.now,
    )
