"""What holds of every turn of an agent, whatever its settings are: proved on the table, and watched while a
turn runs when the setting ``properties`` asks for it."""

from __future__ import annotations

from fsm_agent.fsm.properties import (
    at_most,
    enters,
    event,
    leaves,
    never,
    only_if,
    resets,
    rung,
    spends,
    where,
)
from fsm_agent.fsm.table import left

INTERRUPTED = event("cancelled", "cancelled_waiting")
RAN = event("done", "done_free", "answered", "unknown_tools")

PROPERTIES = (
    never(
        "After an interrupt no tool is run and nothing is sent.",
        enters("ExecuteTools", "CallLLM", "Compress"),
        after=INTERRUPTED,
    ),
    never(
        "BuildMessages is the only door to the model.",
        enters("CallLLM") & ~leaves("BuildMessages"),
    ),
    only_if(
        "A tool is run only because the model has just been asked.",
        enters("ExecuteTools"),
        enters("CallLLM"),
        since=enters("BuildMessages"),
    ),
    only_if(
        "The calls of one reply are run once.",
        RAN,
        event("tools"),
        since=RAN,
    ),
    never(
        "After a compaction the model is asked again, or the turn ends, before any tool is run.",
        enters("ExecuteTools"),
        after=enters("Compress"),
        until=enters("CallLLM"),
    ),
    never(
        "Nothing is asked of a model when the attempts of the turn are used up.",
        spends("attempts") & where(~left("attempts")),
    ),
    at_most(
        "A call block has at most as many requests as its cap says.",
        "sends",
        enters("CallLLM"),
        since=resets("sends"),
    ),
    never(
        "What is sent again in an open call block charges no iteration.",
        spends("iterations") & where(~left("opened")),
    ),
    at_most(
        "A model that was left for a fallback never returns: each fallback is used once.",
        "fallbacks",
        rung("fallback"),
    ),
    at_most(
        "An answer of the wrong type is sent back at most as often as its limit says.",
        "revisions",
        rung("revise"),
        since=resets("revisions"),
    ),
    never(
        "After a guardrail has refused, or a limit is reached, no tool is run and nothing is sent.",
        enters("ExecuteTools", "CallLLM", "Compress"),
        after=event("blocked", "over_cost", "over_tokens", "over_time"),
    ),
    at_most(
        "A last word is asked for at most as often as its limit says.",
        "summary_calls",
        spends("summary_calls"),
    ),
    at_most(
        "The key is changed at most as often as the provider has more keys.",
        "rekeys",
        rung("rekey"),
        since=resets("rekeys"),
    ),
    never(
        "What a provider did not take as it was is repaired before it is sent again.",
        event("repairable") & ~(spends("repairs") | enters("Finalize")),
    ),
    never(
        "Each request to a model is paid for by the row that leads to it, those for summaries too.",
        (enters("CallLLM") | spends("summarizers")) & ~spends("attempts"),
    ),
)
