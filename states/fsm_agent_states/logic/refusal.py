"""What a refusal teaches: how many characters the history may have so that the request is taken."""

from __future__ import annotations

from fsm_agent.conversation.compaction.divide import newest_request, size_of
from fsm_agent.conversation.token_meter import plausible, threshold
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.limits import prompt_tokens_from
from fsm_agent_states.turn import TurnState

LEAST_ROOM = 2_000
"""Characters that the history may have besides the newest request when as little as possible is kept."""
BEYOND_DOUBT = 1.25
"""Times what fits: how much prompt, tools and newest request alone must be over it, as tools and prose are
not as dense."""


def insists(turn: TurnState) -> bool:
    """Did the provider refuse the request, with nobody next in the chain who could take it as it is?"""
    return facts.forced(turn) and turn.count("overflows") > 0 and not facts.next_is_wider(turn)


def room_left(turn: TurnState, before: int) -> int:
    """Characters that a history of ``before`` may have, by what the refusals of this call block have taught.
    The last compaction that the block allows is to leave as little as it can."""
    least = LEAST_ROOM + _request_chars(turn)
    if turn.count("overflows") >= turn.limit("overflows"):
        return least
    window, request = turn.setup.runtime.window, turn.call.request
    if window is None or request is None:
        return max(least, before // 2)
    allowed = request.chars * threshold(window, turn.settings.compression) // _tokens(turn, window)
    room = allowed - (request.chars - before)
    return max(least, room if turn.count("overflows") == 1 else min(room, before // 2))


def hopeless(turn: TurnState, before: int) -> bool:
    """Does the refusal itself say, by its count of tokens, that not even prompt, tools and the newest request
    fit alone?"""
    window, request = turn.setup.runtime.window, turn.call.request
    if window is None or request is None or _counted(turn) is None:
        return False
    alone = request.chars - before + _request_chars(turn)
    return alone > request.chars * window / _tokens(turn, window) * BEYOND_DOUBT


def _request_chars(turn: TurnState) -> int:
    newest = newest_request(turn.history)
    return 0 if newest is None else size_of([turn.history[newest]])


def _tokens(turn: TurnState, window: int) -> int:
    """Of the request that was refused: as the provider counted them, else at least as many as its window
    has."""
    return _counted(turn) or max(turn.call.estimate, window)


def _counted(turn: TurnState) -> int | None:
    """A count that cannot be true is not believed."""
    failure, request = turn.recovery.failure, turn.call.request
    counted = prompt_tokens_from(failure.detail) if failure else None
    return counted if counted and request and plausible(counted, request.chars) else None
