"""The facts that decide, beside the table's counters, which events a state can report; each by a name.

A budget is looked at by the table alone. That a text was begun, or that a refusal forces the next compaction,
no counter says: it is remembered by the turn's parts, and asked for here. ``FACTS`` has them all, for whoever
wants to compare a model of the turn with the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fsm_agent.conversation.token_meter import fits_at_all, threshold
from fsm_agent_states.logic.request_context import around_chars
from fsm_agent_states.turn import TurnState

# Of the budget


def toolless(turn: TurnState) -> bool:
    """The budget is used up, and the model is asked for a last word."""
    return turn.count("summary_calls") > 0


def prepaid(turn: TurnState) -> bool:
    """The budget that is shared with other turns has been asked for the next call block already."""
    return turn.call.prepaid


def opens_iteration(turn: TurnState) -> bool:
    """The next request will be charged as a new iteration. Once charged it stays paid until it is sent."""
    return not (turn.count("opened") or prepaid(turn) or toolless(turn)) and turn.count(
        "iterations"
    ) < turn.limit("iterations")


# Of the text


def text_begun(turn: TurnState) -> bool:
    """Pieces of a reply were gathered that are to be continued."""
    return bool(turn.draft.begun.strip())


def text_held(turn: TurnState) -> bool:
    """A text was said too early, and is kept for the case that no other comes."""
    return bool(turn.draft.held)


def text_unchecked(turn: TurnState) -> bool:
    """That text is an answer that waits for its check by tools."""
    return bool(turn.draft.unchecked)


def text_prior(turn: TurnState) -> bool:
    """The newest calls only put things in order, and text came beside them that may be the answer."""
    return bool(turn.draft.prior_content)


def has_spoken(turn: TurnState) -> bool:
    """The last word need not be asked for: there is text already."""
    return toolless(turn) and turn.count("sends") == 0 and (text_held(turn) or text_begun(turn))


def thought(turn: TurnState) -> bool:
    """The newest reply had thoughts in it."""
    return bool(turn.call.thoughts)


# Of the tools


def only_asked(turn: TurnState) -> bool:
    """Nothing was done in this turn yet: its only row is what the person said."""
    return len(turn.rows) == 1


def after_tools(turn: TurnState) -> bool:
    """A tool result of this turn is the last thing in the transcript."""
    return bool(turn.rows) and turn.rows[-1].role == "tool"


def unverified(turn: TurnState) -> bool:
    """The last thing that a tool did was to change a file."""
    return turn.tooling.unverified


def answers_errors(turn: TurnState) -> bool:
    """The calls at hand cannot be read and are not asked for again: each gets an error for its result."""
    return turn.state == "ExecuteTools" and "invalid_tool_rounds" in turn.spent


# Of the recovery that was ordered


def breaker_open(turn: TurnState) -> bool:
    """So many requests in a row went silent that the next one is not sent to this model."""
    return turn.recovery.silences >= turn.settings.stale.giveup


def waits_at_once(turn: TurnState) -> bool:
    """The recovery that was ordered begins with a wait, so an interrupt is one of a wait."""
    return not turn.spent.isdisjoint(("retries", "rebuilds"))


def rekeys(turn: TurnState) -> bool:
    """Another key, or the same one refreshed, was ordered. It may be that there is none."""
    return "rekeys" in turn.spent


def switches(turn: TurnState) -> bool:
    """The next model of the chain was ordered. It may be that none can be used."""
    return "fallbacks" in turn.spent


def waits_after_compaction(turn: TurnState) -> bool:
    """A refusal forced the compaction that was just made, so the request waits a moment."""
    row = turn.last_transition
    return forced(turn) and row is not None and row.event == "compressed"


def waits_later(turn: TurnState) -> bool:
    """There is a wait in the recovery that was ordered, but an interrupt that is there already is none of
    it."""
    return "empties" in turn.spent or waits_after_compaction(turn)


def on_primary(turn: TurnState) -> bool:
    """The model in use is the first of the chain, and is reached without an aggregator between."""
    return turn.setup.runtime.primary and not turn.setup.runtime.aggregator


def next_is_wider(turn: TurnState) -> bool:
    """The next model of the chain has a wider window."""
    return turn.setup.runtime.next_is_wider


# Of the size


def asks_summary(turn: TurnState) -> bool:
    """The row that led here paid for a request to a summariser."""
    return turn.state == "Compress" and "attempts" in turn.spent


def goes_without_model(turn: TurnState) -> bool:
    """No summariser is left: what there is must do."""
    return "modelless_compactions" in turn.spent


def forced(turn: TurnState) -> bool:
    """The provider refused the request as too long (or a person asks): a compaction is no wish of ours."""
    return turn.compaction.forced


def compacted_before(turn: TurnState) -> bool:
    """This session was compacted already, so that the next reading judges whether it helped."""
    return turn.compaction.compacted_before


def compaction_blocked(turn: TurnState) -> bool:
    """The last compactions were of no use: none is made of our own wish."""
    return bool(turn.compaction.compaction_blocked)


def muted(turn: TurnState) -> bool:
    """The estimate calls for no compaction until a reply says how long the prompt is."""
    return turn.accounting.meter.muted


def compactable(turn: TurnState) -> bool:
    """A compaction of our own wish may be made at all."""
    allowed = turn.settings.compression.enabled and not (compaction_blocked(turn) or muted(turn))
    return allowed and len(turn.history) >= 2


def window_too_small(turn: TurnState) -> bool:
    """Not even prompt, tools and the newest request fit into the window of a local model
    (decision 7)."""
    window = turn.setup.runtime.window
    if window is None or not turn.setup.runtime.local:
        return False
    tools = max(map(len, turn.setup.tools_written.values()), default=0)
    return not fits_at_all(around_chars(turn) + len(turn.rows[0].text) + tools, window)


def over_threshold(turn: TurnState, tokens: int) -> bool:
    """A prompt of so many tokens is so long that we wish for a compaction."""
    window = turn.setup.runtime.window
    return window is not None and tokens >= threshold(window, turn.settings.compression)


FACTS: Mapping[str, Callable[[TurnState], bool]] = {
    fact.__name__: fact
    for fact in (
        toolless, prepaid, opens_iteration, text_begun, text_held, text_unchecked, text_prior,
        has_spoken, thought, only_asked, after_tools, unverified, answers_errors, breaker_open,
        waits_at_once, rekeys, switches, waits_after_compaction, waits_later, asks_summary,
        goes_without_model, on_primary, next_is_wider, forced, compacted_before, compaction_blocked,
        muted, compactable, window_too_small,
    )
}  # fmt: skip
"""All of them that need nothing but the turn, by name."""
