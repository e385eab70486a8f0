"""Limits in tokens: those that providers name in their errors, and that of the next reply."""

from __future__ import annotations

import re

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent.conversation.wire import tokens_of
from fsm_agent_states.turn import TurnState

MARGIN = 64
"""Tokens kept free below a cap that a provider named."""

_DIGITS = r"(?<!\d)\d[\d,_]{0,14}(?![\d,_])"
_NUMBER = f"({_DIGITS})"
"""A count of tokens. Longer ones are none, and cost time to look at."""
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
    """The largest output cap that the error allows, less a margin; ``None`` when it names no number."""
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
    """What the window leaves beside the prompt, of an error that names both."""
    if found := _ROOM[0].search(detail):
        return _number(found.group(2)) - _number(found.group(1))
    if found := _ROOM[1].search(detail):
        return _number(found["window"]) - _number(found["prompt"])
    return None


def window_from(detail: str) -> int | None:
    """The context window that an overflow error names, in tokens; never guessed."""
    for expression in _WINDOWS:
        if found := expression.search(detail):
            return _number(found.group(1))
    return None


def prompt_tokens_from(detail: str) -> int | None:
    """How many tokens the refused prompt had by an overflow error that counts them."""
    found = next((found for expression in _PROMPTS if (found := expression.search(detail))), None)
    return _number(found.group(1)) if found else None


def believe_window(turn: TurnState) -> None:
    """An overflow that names a smaller window than we knew of is believed (COMP-41)."""
    failure = turn.recovery.failure
    if failure is not None and (named := window_from(failure.detail)) is not None:
        _narrow(turn, named)


def believe_cap(turn: TurnState, failure: Failure) -> None:
    """A refusal of the output cap that says how long replies or the window can be is believed."""
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
    """The provider has read a prompt of so many tokens: later turns do not believe that its window is
    smaller."""
    runtime, recovery = turn.setup.runtime, turn.recovery
    learned = runtime.window_learned or any(lesson.name == "window" for lesson in recovery.lessons)
    if learned and runtime.window is not None and prompt > runtime.window:
        recovery.learn(runtime, "window", 0)


def output_cap(turn: TurnState) -> int | None:
    """Tokens that the reply may have, ``None`` for as many as the provider likes; no more than the limits in
    money and tokens leave."""
    wished, affordable = _wished_cap(turn), turn.call.affordable
    return wished if affordable is None else min(wished or affordable, affordable)


def _wished_cap(turn: TurnState) -> int | None:
    """What a refusal of this request named; else as configured, twice as many for each truncation, and no
    more than the model can write and its window has room for (BUILD-22)."""
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
