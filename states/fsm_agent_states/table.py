"""The transition table of a turn. This file is the design; everything that moves a turn is a row made from
it.

How to read a line: ``on(event, rung, rung, ...)`` takes the first rung whose budget is left. Rungs are
defined once, above the table, in four groups: the door to the model, recovery, continuation, blank replies.
``end(...)`` ends the turn with an exit reason, ``go(...)`` is unconditional. The kinds of replies, what is kept
of them, and what the model reads next are declared beside the table, in ``replies.py``.
"""

# Theory of operation
#
# A turn is a state and the counters below; nothing else decides where it goes. A state is a generator: it yields
# requests, and reports one event, which says what happened and never what to do about it. For the event the
# machine takes the one row that is open, spends and resets the counters of that row, and enters the next state.
# So the policy of a turn is the order of the rungs in this file, and a reader needs no other file to know it.
#
# Invariants, the reasons, and what would break without them (`fsm-agent verify` proves the first four for every
# setting, and names the loop, the hole or the row if a change breaks one):
#
# 1. Every turn ends. Each loop in the table spends a counter that no row of that loop resets. Counters grow
#    or are reset; they never decrease. The order behind the proof: iterations, free rounds, summary calls, lost
#    requests and fallbacks are never reset; a fallback resets PROVIDER, a reply BLOCK, a round of tools
#    STREAKS, and each of these happens at most as often as something above it is spent. A rung without a counter,
#    or a reset of `fallbacks` by a reply, would let two models with blank replies pass a turn back and forth
#    forever.
#
# 2. Exactly one row is open. A line expands to rows whose guards exclude each other, and its last rung needs
#    nothing. A line that ends with a rung that has a budget would leave a turn stuck when that is spent.
#
# 3. One request, one row. Each request to a model is sent by a visit whose row spent one of `attempts`: into
#    CallLLM by `send` and `send again`, and into Compress for a summary. So the most that a turn can cost is a
#    limit that a user sets, and a resumed turn knows what was paid. A state that sent twice in a visit would
#    break that limit, so Compress is entered again for each summarizer.
#
# 4. BuildMessages is the only door to CallLLM. Caps, open block, iteration and summary calls are checked there and
#    nowhere else, in this order: a cap ends the turn; a block that is open sends again; else an iteration is
#    charged; else the model is asked for a last word without tools. Any other row into CallLLM would bypass
#    the caps.
#
# 5. A call block is all requests that serve one iteration. `send` opens it and charges the iteration; a free
#    round and the last word (`summarize`) open one that their own counters pay for. `send again` is
#    not charged, and a reply closes the block (`resets=BLOCK`). `error`, `lost` and `cut_call` leave it open: the
#    same iteration is tried again. If an error closed the block, an outage would use up the user's iterations;
#    if a reply left it open, the next round of tools would be free.
#
# 6. A row has no action. What it spent is an order, and the next state carries it out first (`spent`
#    of the turn, `logic/recover.py`). A process may end between the two: the row is on disk by then, so the
#    resumed turn carries the order out, and by 3 it is paid once. An action of the row itself would be lost or
#    done twice there. An order that fails is an event of its own (`failed`), and ClassifyError continues down the
#    ladder with what is left.
#
# 7. States read no budget, and the table reads nothing else. Other knowledge of a state (is the next model
#    wider?) becomes two events, `overflow` and `outgrown`, rather than a guard, so that guards can be evaluated,
#    printed, proved and drawn without a turn. What a visit does to the transcript is declared per event in
#    `logic/shapes.py`, and proved over these rows too: every request has a transcript that its provider takes.
#
# The order of the ladders: the cheapest remedy comes first, and the irreversible one last. A key of the
# same provider is tried before another model, because a fallback never returns and starts without a prompt cache.
# An upstream limit outlasts our waits, so the fallback comes before the retries; an overloaded or unreachable
# server gets one quick retry (`patience`) before that; a plain 500 usually passes, so it is retried first.
# A compaction loses parts of the conversation, so it is made only when the provider refuses or the estimate is
# over the threshold, and then in steps: auxiliary models, the model itself, no model, none at all. Text that the user
# has seen is never discarded: the last rung of `announced`, `unverified` and of a blank reply after text is
# an answer, not an error.
#
# `cancelled` and `crashed` leave every state for Finalize and are written once, as macros. Finalize has no event:
# it cannot fail into another state, so each of its steps guards itself.

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from fsm_agent.fsm.properties import (
    Promises,
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
from fsm_agent.fsm.table import Counter, Rung, Table, any_of, end, go, left, lines_of, on
from fsm_agent_states.logic.layout import LAYOUT

StateName = Literal[
    "Prepare",
    "BuildMessages",
    "CallLLM",
    "ClassifyError",
    "Compress",
    "ExecuteTools",
    "EmptyRecovery",
    "Finalize",
]

# Counters and resets

COUNTERS = (
    *(
        Counter(name) for name in ("iterations", "free_rounds", "summary_calls", "lost_requests")
    ),  # never reset
    Counter("fallbacks", exhaustible=True),  # likewise; a failed switch shows that no other is usable
    Counter("attempts", cap=True),  # per turn; a safeguard above the local budgets
    Counter("opened", flag=True),
    Counter("sends", cap=True),  # per call block; likewise
    *(Counter(name) for name in ("retries", "rebuilds", "rekeys", "compactions", "overflows", "repairs")),
    *(Counter(name) for name in ("summarizers", "modelless_compactions")),  # per compaction
    *(
        Counter(name)
        for name in (
            "continuations",
            "invalid_tool_rounds",
            "reasks",
            "nudges",
            "thinking_prefills",
            "empties",
        )
    ),
    Counter("revisions"),  # per provider: answers that are not of the requested type
)
BLOCK = (
    "opened",
    "sends",
    "rebuilds",
    "retries",
    "rekeys",
    "compactions",
    "overflows",
)  # a reply closes the block
EMPTIES = ("nudges", "thinking_prefills", "empties")  # a compaction resets the ladder of blanks
STREAKS = ("continuations", "invalid_tool_rounds", "reasks", *EMPTIES)  # a tool round ends all streaks
PROVIDER = (
    "retries",
    "rekeys",
    "repairs",
    "compactions",
    "overflows",
    "revisions",
    *EMPTIES,
)  # a fallback starts over
SUMMARY = ("summarizers", "modelless_compactions")  # each compaction asks for a summary of its own

# Rungs

BLOCK_CLOSED = left("opened", yes="no block open", no="block open")
ATTEMPTS, SENDS = left("attempts"), left("sends")
CAPPED = end("attempt_cap_reached", when=any_of((~ATTEMPTS, ~SENDS)))
OUT_OF_ATTEMPTS = end("attempt_cap_reached", when=~ATTEMPTS)
OVER_BUDGET = end("budget_exhausted")

# the door to the model
SEND_AGAIN = Rung("send again", "CallLLM", ~BLOCK_CLOSED, ("sends", "attempts"))
SEND = Rung("send", "CallLLM", left("iterations"), ("iterations", "opened", "sends", "attempts"))
SUMMARIZE = Rung(
    "summarize", "BuildMessages", left("summary_calls") & BLOCK_CLOSED, ("summary_calls", "opened")
)
ASK_SUMMARY = Rung("ask again", "BuildMessages", left("summary_calls"), ("summary_calls",))
FREE_ROUND = Rung(
    "free round", "BuildMessages", left("free_rounds") & BLOCK_CLOSED, ("free_rounds", "opened")
)
# recovery
COMPACT = Rung("compact", "Compress", left("compactions"), ("compactions",), SUMMARY)
COMPRESS = Rung("compress", "Compress", left("overflows"), ("overflows",), SUMMARY)
SUMMARIZER = Rung("summarizer", "Compress", left("summarizers") & ATTEMPTS, ("summarizers", "attempts"))
SAME_SUMMARIZER = Rung(
    "same again", "Compress", left("lost_requests") & ATTEMPTS, ("lost_requests", "attempts")
)
UNAIDED = Rung("no model", "Compress", left("modelless_compactions"), ("modelless_compactions",))
LEAVE_IT = Rung("leave it", "BuildMessages")
RESEND = Rung("resend", "BuildMessages", left("lost_requests"), ("lost_requests",))
REPAIR = Rung("repair", "BuildMessages", left("repairs"), ("repairs",))
REKEY = Rung("rekey", "BuildMessages", left("rekeys"), ("rekeys",))
ONE_RETRY = Rung(
    "one retry",
    "BuildMessages",
    left("retries", "patience", yes="not yet retried", no="already retried"),
    ("retries",),
)
RETRY = Rung("retry", "BuildMessages", left("retries"), ("retries",))
REBUILD = Rung("rebuild", "BuildMessages", left("rebuilds"), ("rebuilds",), ("retries",))
FALLBACK = Rung("fallback", "BuildMessages", left("fallbacks"), ("fallbacks",), PROVIDER)


# continuation
def carry_on(limit: str) -> Rung:
    """``continue``: one counter, with its own limit for each event."""
    return Rung("continue", "BuildMessages", left("continuations", limit), ("continuations",))


STRIKE = Rung("strike", "BuildMessages", left("invalid_tool_rounds"), ("invalid_tool_rounds",))
RECALL = Rung("recall", "BuildMessages", left("reasks"), ("reasks",))
ANSWER = Rung(
    "answer with errors", "ExecuteTools", left("invalid_tool_rounds"), ("invalid_tool_rounds",), ("reasks",)
)
REVISE = Rung("revise", "BuildMessages", left("revisions"), ("revisions",))
# blank replies
NUDGE = Rung("nudge", "BuildMessages", left("nudges"), ("nudges",))
PREFILL = Rung("prefill", "BuildMessages", left("thinking_prefills"), ("thinking_prefills",))
ASK_AGAIN = Rung("ask again", "BuildMessages", left("empties"), ("empties",))

# Table

# fmt: off
LINES = lines_of({
    "Prepare": [
        on("ready", go("BuildMessages"), why="input clean, history loaded, user row stored"),
        on("blocked", end("guardrail_blocked"), why="a guardrail refuses the message"),
    ],
    "BuildMessages": [
        on("built", CAPPED, SEND_AGAIN, SEND, SUMMARIZE, OVER_BUDGET, why="the only door to the model"),
        on("oversized", CAPPED, COMPACT, SEND_AGAIN, SEND, SUMMARIZE, OVER_BUDGET, why="estimate over the threshold"),
        on("starved", SUMMARIZE, OVER_BUDGET, why="the budget shared with other turns refuses an iteration"),
        on("spoken", OVER_BUDGET, why="budget over, and the model has already given text: use it"),
        on("window_too_small", end("runtime_context_too_small"), why="no compaction can make a local window fit"),
        on("over_cost", end("cost_limit"), why="the request could pass a limit in money"),
        on("over_tokens", end("token_limit"), why="the request could pass a limit in tokens"),
        on("over_time", end("time_limit"), why="a limit in seconds is reached"),
        on("failed", go("ClassifyError"), why="the recovery that was ordered failed"),
        on("cancelled_waiting", end("interrupted_in_backoff"), why="interrupted in the wait that a retry ordered"),
    ],
    "CallLLM": [
        on("tools", go("ExecuteTools"), resets=BLOCK, why="a reply closes the block"),
        on("text", end("text_response"), why="accepted answer"),
        on("blank", go("EmptyRecovery"), resets=BLOCK, why="no visible text, no call"),
        on("cut_text", carry_on("continuations"), end("length_exhausted"), resets=BLOCK, why="length, or cut after text"),
        on("dropped_call", carry_on("continuations"), end("stream_dropped_tool_call"), resets=BLOCK, why="cut in a call"),
        on("cut_call", carry_on("cut_calls"), end("truncated_tool_call"), why="call cut: same block, bigger cap"),
        on("incomplete", carry_on("incompletes"), end("responses_incomplete"), resets=BLOCK, why="API says incomplete"),
        on("open_scratchpad", carry_on("scratchpads"), end("scratchpad_incomplete"), resets=BLOCK, why="tag not closed"),
        on("announced", carry_on("acks"), end("text_response"), resets=BLOCK, why="only says what it will do"),
        on("unverified", carry_on("verifies"), end("text_response"), resets=BLOCK, why="edited, not verified: answer held"),
        on("invalid_output", REVISE, FALLBACK, end("output_invalid"), resets=BLOCK, why="not of the type asked for"),
        on("blocked", end("guardrail_blocked"), why="a guardrail refuses the message or the answer"),
        on("all_thinking", end("thinking_budget_exhausted"), why="reasoning ate the output cap"),
        on("summary", end("max_iterations_summary"), why="text of the toolless call"),
        on("no_summary", ASK_SUMMARY, OVER_BUDGET, why="toolless call gave no text"),
        on("error", go("ClassifyError"), why="exception, invalid shape or refusal"),
        on("lost", RESEND, end("api_retries_exhausted"), why="its process ended; it may or may not have left"),
    ],
    "ClassifyError": [
        on("repairable", REPAIR, end("non_retryable_error"), why="this repair was not yet done on this provider"),
        on("bad_key", REKEY, FALLBACK, end("non_retryable_error"), why="401, billing: refreshable, or more keys"),
        on("key_limited", ONE_RETRY, REKEY, FALLBACK, RETRY, end("api_retries_exhausted"), why="429, more keys"),
        on("limited", FALLBACK, RETRY, end("api_retries_exhausted"), why="429, upstream limit, invalid shape"),
        on("overloaded", ONE_RETRY, FALLBACK, RETRY, end("api_retries_exhausted"), why="503, 529, timeout"),
        on("unreachable", ONE_RETRY, FALLBACK, RETRY, REBUILD, end("api_retries_exhausted"), why="transport, on primary"),
        on("server_error", RETRY, FALLBACK, end("api_retries_exhausted"), why="500, 502, unknown"),
        on("overflow", OUT_OF_ATTEMPTS, COMPRESS, end("overflow_uncompressible"), why="too long, no wider model in chain"),
        on("outgrown", OUT_OF_ATTEMPTS, COMPRESS, FALLBACK, end("overflow_uncompressible"), why="too long, next is wider"),
        on("summary_failed", RETRY, FALLBACK, OVER_BUDGET, why="any error of the toolless call"),
        on("rejected", FALLBACK, end("non_retryable_error"), why="model missing, bad request, auth without help, breaker"),
        on("refused", FALLBACK, end("content_policy"), why="content policy"),
        on("fatal", end("non_retryable_error"), why="certificate, provider policy"),
        on("capped", end("attempt_cap_reached"), why="turn and children have sent all that they may"),
        on("cap_unknown", end("output_cap"), why="output cap too large and no number in the error"),
        on("compression_off", end("compression_disabled"), why="overflow, and the user switched compaction off"),
    ],
    "Compress": [
        on("unsummarized", SUMMARIZER, UNAIDED, LEAVE_IT, why="a summary is needed; one request a visit"),
        on("lost", SAME_SUMMARIZER, UNAIDED, LEAVE_IT, why="its process ended; it may or may not have left"),
        on("unaffordable", UNAIDED, LEAVE_IT, why="a request for the summary could pass a limit"),
        on("compressed", go("BuildMessages"), resets=EMPTIES, why="fewer rows, fewer tokens or no images"),
        on("unchanged", go("BuildMessages"), why="nothing gained, but nothing forced it"),
        on("stuck", end("overflow_uncompressible"), why="the provider refused and nothing can go"),
        on("outgrown", FALLBACK, end("overflow_uncompressible"), why="same, but the next model is wider"),
    ],
    "ExecuteTools": [
        on("done", go("BuildMessages"), resets=STREAKS, why="every call has its result"),
        on("done_free", FREE_ROUND, go("BuildMessages"), resets=STREAKS, why="cheap programmatic calls: next is not charged"),
        on("answered", go("BuildMessages"), why="bad JSON answered with error results"),
        on("unknown_tools", STRIKE, end("invalid_tool_calls"), why="no call names a tool; error results were given"),
        on("bad_json", RECALL, ANSWER, end("invalid_tool_calls"), why="arguments are not JSON and were not cut"),
        on("handed_over", end("handed_over"), why="another agent continues the conversation"),
        on("halted", end("guardrail_halt"), why="guardrail hard stop"),
    ],
    "EmptyRecovery": [
        on("streamed", end("partial_stream_recovery"), why="text was already shown"),
        on("prior", end("prior_content_used"), why="text came with the housekeeping tools before"),
        on("after_tools", NUDGE, ASK_AGAIN, FALLBACK, end("empty_exhausted"), why="blank after a tool round"),
        on("thought_after_tools", NUDGE, PREFILL, ASK_AGAIN, FALLBACK, end("empty_exhausted"), why="same, with reasoning"),
        on("thought", PREFILL, ASK_AGAIN, FALLBACK, end("empty_exhausted"), why="reasoning only"),
        on("nothing", ASK_AGAIN, FALLBACK, end("empty_exhausted"), why="nothing at all"),
    ],
})
# fmt: on

EVERYWHERE: tuple[str, ...] = get_args(StateName)[:-1]
CANCELLED_IN = {
    **dict.fromkeys(EVERYWHERE, "interrupted_before_call"),
    **dict.fromkeys(("CallLLM", "ClassifyError"), "interrupted_in_call"),
    "ExecuteTools": "interrupted_in_tools",
}


def _default_limits() -> Mapping[str, int]:
    """Return the limits of a turn with default settings (the environment is ignored), two fallbacks, two more
    keys and one auxiliary model."""
    from fsm_agent.conversation.effects import Runtime
    from fsm_agent.settings import Settings
    from fsm_agent_states.turn import limits_of  # here, because few readers of the table want figures

    runtime = Runtime("any", "any", usable_fallbacks=2, possible_rekeys=2)
    return limits_of(Settings.model_construct(), runtime, auxiliaries=1)


def _promises() -> Promises:
    """Return the promises about the transcript; their parts are imported only for a proof."""
    from fsm_agent_states.logic.shapes import TRANSCRIPT

    return TRANSCRIPT


# ----------------------------------------------------------------------------------------------------
# Claims about every turn, whatever its settings are: proved on the table, and watched while a turn runs when
# the setting ``properties`` asks for it.


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


TURN = Table(
    name="turn",
    states=get_args(StateName),
    final="Finalize",
    counters=COUNTERS,
    lines=LINES,
    macros=(("cancelled", CANCELLED_IN), ("crashed", dict.fromkeys(EVERYWHERE, "local_processing_error"))),
    reset_groups={
        "BLOCK": BLOCK,
        "EMPTIES": EMPTIES,
        "STREAKS": STREAKS,
        "PROVIDER": PROVIDER,
        "SUMMARY": SUMMARY,
    },
    layout=LAYOUT,
    default_limits=_default_limits,
    promises=_promises,
    properties=PROPERTIES,
)


# ----------------------------------------------------------------------------------------------------
# The transition table of a compaction that a person asks for, between turns. It has the rungs of the turn's
# table, and its one state is the turn's: here, too, a row pays for each request to a model.


def _compaction_limits() -> Mapping[str, int]:
    """Return the limits with default settings and one auxiliary model."""
    limits = TURN.default_limits() if TURN.default_limits else {}
    return {name: limits[name] for name in ("attempts", "summarizers", "modelless_compactions")}


COMPACTION = Table(
    name="compaction",
    states=("Compress", "Done"),
    final="Done",
    counters=(Counter("attempts", cap=True), Counter("summarizers"), Counter("modelless_compactions")),
    lines=lines_of(
        {
            "Compress": [
                on("unsummarized", SUMMARIZER, UNAIDED, end("unchanged", "Done"), why="one request a visit"),
                on("unaffordable", UNAIDED, end("unchanged", "Done"), why="the summary could pass a limit"),
                on("compressed", end("compacted", "Done"), why="fewer rows, fewer tokens or no images"),
                on("stuck", end("unchanged", "Done"), why="nothing can go"),
                on("outgrown", end("unchanged", "Done"), why="same, but the next model is wider"),
                on("cancelled", end("interrupted", "Done"), why="a person broke it off"),
            ]
        }
    ),
    default_limits=_compaction_limits,
)
