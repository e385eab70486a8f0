"""The three steps of making a conversation shorter: by the user's engine if there is one, by the built-in one
if there is none, and when what the user's says cannot be used.

The built-in engine is pure and asked at once. The user's is asked by a request, whose reply is in the
journal; what it decides is checked against the shapes of the transcript before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.conversation.compaction import BuiltInEngine, Division, assembled
from fsm_agent.conversation.compaction.divide import newest_request, size_of
from fsm_agent.conversation.compaction.prune import without_parts
from fsm_agent.conversation.effects import AskEngine, EngineAnswer, LongContext
from fsm_agent.conversation.messages import Message
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.said import say
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState


def built_in(turn: TurnState) -> BuiltInEngine:
    """The engine of an agent that was given none."""
    return BuiltInEngine(turn.settings.compression)


def cut(turn: TurnState, context: LongContext, *, begins: bool) -> Asks[tuple[int, ...]]:
    """The places of the rows that go. The user's engine is asked when a compaction begins, and what it says
    counts to its end."""
    if turn.compaction.chosen is not None:
        return turn.compaction.chosen
    if begins and turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("cut", context)
        if not (why := answer.problem or _unusable_cut(turn, answer.places)):
            turn.compaction.choose(answer.places)
            return answer.places
        yield from _go_on_without(why)
    return built_in(turn).cut(context)


def prompt(turn: TurnState, context: LongContext, goes: tuple[int, ...], window: int) -> Asks[str]:
    """What a model is asked, to get a summary of these rows."""
    if turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("prompt", context, goes, window)
        if not (why := answer.problem or ("" if answer.prompt.strip() else "its request is empty")):
            return answer.prompt
        yield from _go_on_without(why)
    return built_in(turn).prompt(context, goes, window)


def rows(turn: TurnState, context: LongContext, goes: tuple[int, ...], summary: str) -> Asks[list[Message]]:
    """The shorter conversation."""
    if turn.setup.has_engine:
        answer: EngineAnswer = yield AskEngine("rows", context, goes, summary=summary)
        known = (*context.rows, *answer.made)
        strange = not all(0 <= place < len(known) for place in answer.places)
        made = [] if strange else [known[place] for place in answer.places]
        if not (why := answer.problem or unusable(turn, made) or _too_long(turn, context, made)):
            return made
        yield from _go_on_without(why)
    engine = built_in(turn)
    made = engine.rows(context, goes, summary)
    if turn.compaction.chosen is not None and _too_long(turn, context, made) and turn.limit("unaided"):
        made = engine.rows(context, engine.cut(context), "")  # what the user's chose leaves too much
    return made


def unusable(turn: TurnState, made: Sequence[Message]) -> str:
    """Why these rows cannot be the transcript; empty when they can."""
    from fsm_agent_states.logic.shapes import (
        TRANSCRIPT,
        shape_of,
    )  # for the user's engine only: it is a proof

    before, newest = turn.history, newest_request(turn.history)
    if len(set(made)) < len(made):
        return "it has a row twice"
    asked = newest_request(made)
    if newest is not None and (asked is None or made[asked] is not before[newest]):
        return "the newest message of the user is not in it, or a row behind it passes for one"
    if any(row.role == "system" for row in set(made) - set(before)):
        return "it has a new system row, which is not sent"
    if _without_calls(made) - _without_calls(before):
        return "it has a result without its call"
    was, now = (shape_of(one, turn.rows, turn.recovery.scaffold) for one in (before, made))
    if now not in TRANSCRIPT.allowed(turn.last_transition, "Compress", "compressed", was):
        return f"a conversation {was} cannot become one {now}"
    return ""


def _too_long(turn: TurnState, context: LongContext, made: Sequence[Message]) -> str:
    """A provider refused what there was, and would refuse this, too; empty when there is hope."""
    size = size_of(without_parts(made))
    if not facts.forced(turn) or size <= context.most:
        return ""
    return f"{size:,} characters, and at most {int(context.most):,} are of use"


def _unusable_cut(turn: TurnState, goes: Sequence[int]) -> str:
    """Why these rows cannot go; empty when they can."""
    history = turn.history
    if not goes:
        return ""
    if list(goes) != sorted(set(goes)) or goes[0] < 0 or goes[-1] >= len(history):
        return f"it names places that are none of 0 to {len(history) - 1}, each once and in order"
    gone = set(goes)
    front, rest = history[: goes[0]], [row for place, row in enumerate(history) if place not in gone]
    return unusable(turn, assembled(Division(tuple(front), (), None, tuple(rest[len(front) :])), "summary"))


def _without_calls(history: Sequence[Message]) -> set[Message]:
    """Results whose call does not stand before them: they are not sent."""
    called: set[str | None] = set()
    found = set()
    for row in history:
        called |= {call.id for call in row.tool_calls}
        if row.role == "tool" and row.tool_call_id not in called:
            found.add(row)
    return found


def _go_on_without(why: str) -> Asks[None]:
    yield from say(f"the context engine's answer is not used ({why}): the built-in one goes on")
