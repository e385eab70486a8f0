"""The list of an agent's features: which it has, and the order of their layers."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.extension import Extension
from fsm_agent.features.callbacks import CallbackCalls
from fsm_agent.features.children import BackgroundTasks
from fsm_agent.features.ground import Ground
from fsm_agent.settings.model import Settings
from fsm_agent.telemetry import tracing_of


def features_of(ground: Ground, always: Sequence[Extension]) -> tuple[Extension, ...]:
    """The features of an agent, the outermost first; one that is off is not loaded. ``always``: those that
    every agent has, behind the others."""
    options, found = ground.options, list[Extension]()
    if ground.telemetry is not None:
        found.append(tracing_of(ground.telemetry, ground.store))
    if ground.settings.limits.each:
        found += limit_features((), ground, ground.settings)
    found += [*ground.extensions, CallbackCalls(ground)]
    if options["hooks"] or options["input_guardrails"] or options["output_guardrails"]:
        from fsm_agent.features.hooks import HookCalls

        found.append(HookCalls(ground))
    if options["context_engine"] is not None:
        from fsm_agent.features.context_engine import EngineCalls

        found.append(EngineCalls(ground))
    found += always
    if ground.background is not None:
        found.append(BackgroundTasks(ground.background, ground))
    return tuple(found)


def limit_features(
    features: Sequence[Extension], ground: Ground, settings: Settings
) -> tuple[Extension, ...]:
    """The features of a turn with limits of its own."""
    from fsm_agent.features.limits import Limits

    return (Limits(ground, settings), *(one for one in features if not isinstance(one, Limits)))
