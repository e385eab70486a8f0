"""Named facts which, with the table's counters, decide what events a state can report.

Only the table checks budgets. No counter records that a text was begun, or that a refusal forces the next
compaction: the turn's parts remember it, and these functions read it. ``FACTS`` lists them all, so that a
model of the turn can be compared with the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.token_meter import LEAST_REPLY, fits_at_all, threshold, tokens_of
from fsm_agent_states.logic.request_context import around_chars
from fsm_agent_states.turn import TurnState

# The budget


def toolless(turn: TurnState) -> bool:
    """The budget is used up, and the model is asked for a last word."""
    return turn.count("summary_calls") > 0


def prepaid(turn: TurnState) -> bool:
    """The budget shared with other turns has already been charged for the next call block."""
    return turn.call.prepaid


def opens_iteration(turn: TurnState) -> bool:
    """The next request will be charged as a new iteration. Once charged, it stays paid until it is sent."""
    return not (turn.count("opened") or prepaid(turn) or toolless(turn)) and turn.count(
        "iterations"
    ) < turn.limit("iterations")


# The text


def text_begun(turn: TurnState) -> bool:
    """Pieces of a reply were gathered and are to be continued."""
    return bool(turn.draft.begun.strip())


def text_held(turn: TurnState) -> bool:
    """A text came too early, and is kept in case no other comes."""
    return bool(turn.draft.held)


def text_unchecked(turn: TurnState) -> bool:
    """The held text is an answer that waits for its check by tools."""
    return bool(turn.draft.unchecked)


def text_prior(turn: TurnState) -> bool:
    """The newest calls only do housekeeping, and the text beside them may be the answer."""
    return bool(turn.draft.prior_content)


def has_spoken(turn: TurnState) -> bool:
    """No last word is needed: there is text already."""
    return toolless(turn) and turn.count("sends") == 0 and (text_held(turn) or text_begun(turn))


def thought(turn: TurnState) -> bool:
    """The newest reply contains reasoning."""
    return bool(turn.call.thoughts)


# The tools


def only_asked(turn: TurnState) -> bool:
    """Nothing has been done in this turn yet: its only row is the user's message."""
    return len(turn.rows) == 1


def after_tools(turn: TurnState) -> bool:
    """A tool result of this turn is the last row of the transcript."""
    return bool(turn.rows) and turn.rows[-1].role == "tool"


def unverified(turn: TurnState) -> bool:
    """The last action of a tool changed a file."""
    return turn.tooling.unverified


def answers_errors(turn: TurnState) -> bool:
    """The current calls cannot be read and are not requested again: each gets an error as its result."""
    return turn.state == "ExecuteTools" and "invalid_tool_rounds" in turn.spent


# The ordered recovery


def breaker_open(turn: TurnState) -> bool:
    """Too many consecutive requests went silent, so the next one is not sent to this model."""
    return turn.recovery.silences >= turn.settings.stale.giveup


def waits_at_once(turn: TurnState) -> bool:
    """The ordered recovery begins with a wait, so an interrupt counts as one during a wait."""
    return not turn.spent.isdisjoint(("retries", "rebuilds"))


def rekeys(turn: TurnState) -> bool:
    """Another key, or a refresh of the same one, was ordered. The provider may have no other."""
    return "rekeys" in turn.spent


def switches(turn: TurnState) -> bool:
    """The next model of the chain was ordered. Perhaps none is usable."""
    return "fallbacks" in turn.spent


def waits_after_compaction(turn: TurnState) -> bool:
    """A refusal forced the compaction just made, so the request waits a moment."""
    row = turn.last_transition
    return forced(turn) and row is not None and row.event == "compressed"


def waits_later(turn: TurnState) -> bool:
    """The ordered recovery contains a wait, but an earlier interrupt does not count as one during that
    wait."""
    return "empties" in turn.spent or waits_after_compaction(turn)


def on_primary(turn: TurnState) -> bool:
    """The model in use is the first of the chain, and is reached without an aggregator."""
    return turn.setup.runtime.primary and not turn.setup.runtime.aggregator


def next_is_wider(turn: TurnState) -> bool:
    """The next model of the chain has a wider window."""
    return turn.setup.runtime.next_is_wider


# The size


def asks_summary(turn: TurnState) -> bool:
    """The row that led here paid for a request to a summarizer."""
    return turn.state == "Compress" and "attempts" in turn.spent


def goes_without_model(turn: TurnState) -> bool:
    """No summarizer is left, so the compaction proceeds without one."""
    return "modelless_compactions" in turn.spent


def forced(turn: TurnState) -> bool:
    """The provider refused the request as too long (or a person asks): the compaction is not proactive."""
    return turn.compaction.forced


def compacted_before(turn: TurnState) -> bool:
    """This session was compacted before, so the next token count shows whether it helped."""
    return turn.compaction.compacted_before


def compaction_blocked(turn: TurnState) -> bool:
    """The last compactions did not help: no proactive one is made."""
    return bool(turn.compaction.compaction_blocked)


def muted(turn: TurnState) -> bool:
    """The estimate triggers no compaction until a reply reports the size of the prompt."""
    return turn.accounting.meter.muted


def compactable(turn: TurnState) -> bool:
    """A proactive compaction is permitted."""
    allowed = turn.settings.compression.enabled and not (compaction_blocked(turn) or muted(turn))
    return allowed and len(turn.history) >= 2


# "Window too small" means that one message does not fit. A fixed floor of 64,000 tokens would refuse most
# local servers. The turn ends as `runtime_context_too_small` only if system prompt, tools, and the newest
# request alone do not fit, which no compaction can change.


def window_too_small(turn: TurnState) -> bool:
    """Not even prompt, tools and the newest request fit into the window of a local model."""
    window = turn.setup.runtime.window
    if window is None or not turn.setup.runtime.local:
        return False
    tools = max(map(len, turn.setup.tools_written.values()), default=0)
    return not fits_at_all(around_chars(turn) + len(turn.rows[0].text) + tools, window)


def over_threshold(turn: TurnState, tokens: int) -> bool:
    """A prompt of ``tokens`` tokens is long enough to be compacted."""
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
"""All facts that need nothing but the turn, by name."""


# ----------------------------------------------------------------------------------------------------
# Limits in tokens: those that providers name in their errors, and that of the next reply.


MARGIN = 64
"""Tokens kept free below a cap that a provider named."""

_DIGITS = r"(?<!\d)\d[\d,_]{0,14}(?![\d,_])"
_NUMBER = f"({_DIGITS})"
"""A count of tokens. Longer digit runs are not counts, and are slow to match."""
_ROOM = (
    re.compile(rf"{_NUMBER} \+ {_DIGITS} > {_NUMBER}"),  # prompt + cap > window
    re.compile(rf"{_DIGITS} > (?P<window>{_DIGITS}) - (?P<prompt>{_DIGITS})"),  # cap > window - prompt
)
_CAPS = (
    re.compile(rf"available_tokens\W{{1,3}}{_NUMBER}"),
    re.compile(rf"at most {_NUMBER}"),
    re.compile(rf"less than or equal to \W?{_NUMBER}"),
    re.compile(rf"\[1, ?{_NUMBER}\]"),
    re.compile(rf"{_DIGITS} > {_NUMBER}"),
    re.compile(rf"(?:maximum|limit)[^\d]{{0,60}}?{_NUMBER}"),
)
_WINDOWS = (
    re.compile(
        r"(?:context (?:length|window|size)|maximum prompt length|n_ctx|model token"
        rf" limit)[^\d]{{0,40}}{_NUMBER}"
    ),
    re.compile(rf"> {_NUMBER} maximum"),
    re.compile(rf"maximum number of tokens allowed \(?{_NUMBER}"),
    re.compile(rf"max(?:imum)? length:? ?{_NUMBER}"),
)
_PROMPTS = (
    re.compile(rf"(?:resulted in|contains) {_NUMBER} tokens"),
    re.compile(rf"{_NUMBER} (?:in|of) (?:the |your )?(?:messages|prompt|text input)"),
    re.compile(rf"{_NUMBER} tokens > \d"),
    re.compile(rf"request \({_NUMBER} tokens\)"),
    re.compile(rf"(?:n_prompt_tokens|n_keep|token count|requested:)\W{{1,3}}{_NUMBER}"),
)


def output_cap_from(detail: str, window: int | None, estimate: int) -> int | None:
    """Return the largest output cap that the error allows, less a margin; ``None`` when it names no
    number."""
    if (left := _room(detail)) is not None:
        return max(1, left - MARGIN)
    if (named := _cap_in(detail)) is None:
        return None
    room = window - estimate if window else named
    return max(1, min(named, room) - MARGIN)


def _cap_in(detail: str) -> int | None:
    found = next((found for expression in _CAPS if (found := expression.search(detail))), None)
    return _number(found.group(1)) if found else None


def _room(detail: str) -> int | None:
    """Return the room that the window leaves beside the prompt, from an error that names both."""
    if found := _ROOM[0].search(detail):
        return _number(found.group(2)) - _number(found.group(1))
    if found := _ROOM[1].search(detail):
        return _number(found["window"]) - _number(found["prompt"])
    return None


def window_from(detail: str) -> int | None:
    """Return the context window that an overflow error names, in tokens; never guessed."""
    for expression in _WINDOWS:
        if found := expression.search(detail):
            return _number(found.group(1))
    return None


def prompt_tokens_from(detail: str) -> int | None:
    """Return the size of the refused prompt in tokens, from an overflow error that names it."""
    found = next((found for expression in _PROMPTS if (found := expression.search(detail))), None)
    return _number(found.group(1)) if found else None


def believe_window(turn: TurnState) -> None:
    """Adopt the window that an overflow error names, if it is smaller than the known one (COMP-41)."""
    failure = turn.recovery.failure
    if failure is not None and (named := window_from(failure.detail)) is not None:
        _narrow(turn, named)


def believe_cap(turn: TurnState, failure: Failure) -> None:
    """Adopt the maximum reply or window that a refusal of the output cap names."""
    detail = failure.detail
    if room := _ROOM[0].search(detail):
        _narrow(turn, _number(room.group(2)))
    elif room := _ROOM[1].search(detail):
        _narrow(turn, _number(room["window"]))
    elif (named := window_from(detail)) is not None:
        _narrow(turn, named)
    elif not _CAPS[0].search(detail) and (named := _cap_in(detail)) is not None and named >= LEAST_REPLY:
        turn.setup.shorten_replies(named)
        turn.recovery.suspect("output", named)


def _narrow(turn: TurnState, window: int) -> None:
    if turn.setup.narrow(window):
        turn.recovery.suspect("window", window)


def doubt_window(turn: TurnState, prompt: int) -> None:
    """Learn from a prompt of ``prompt`` tokens that the provider has read: later turns do not believe that
    its window is smaller."""
    runtime, recovery = turn.setup.runtime, turn.recovery
    learned = runtime.window_learned or any(lesson.name == "window" for lesson in recovery.lessons)
    if learned and runtime.window is not None and prompt > runtime.window:
        recovery.learn(runtime, "window", 0)


def output_cap(turn: TurnState) -> int | None:
    """Return the maximum tokens of the reply, ``None`` for the provider's default; no more than the limits in
    money and tokens leave."""
    wished, affordable = _wish_for_cap(turn), turn.call.affordable
    return wished if affordable is None else min(wished or affordable, affordable)


def _wish_for_cap(turn: TurnState) -> int | None:
    """Return the cap that a refusal of this request named; else the configured one, doubled for each
    truncation, and no more than the model can write and its window has room for (BUILD-22)."""
    configured, length, recovery = turn.settings.max_output_tokens, turn.settings.length, turn.recovery
    if recovery.output_cap is not None:
        return recovery.output_cap
    wish = configured
    if turn.count("continuations"):
        base = configured or length.cap_base
        wish = min(base * 2 ** turn.count("continuations"), max(length.cap_max, base))
    if wish is None:
        return None
    runtime, read = turn.setup.runtime, turn.accounting.meter.tokens
    if runtime.window is not None and read:
        room = runtime.window - read - tokens_of(len(turn.draft.begun)) - MARGIN
        wish = min(wish, max(LEAST_REPLY, room))
    return min(wish, runtime.most_output or wish)


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))
