"""What is asked before something goes in or out: guardrails, the type of the answer, limits in money, tokens
and time. Each is asked by a request of its own, so that what was said is in the journal, and only by a turn
that has any."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Literal

from fsm_agent.conversation.effects import (
    AnswerChecked,
    CheckAnswer,
    CheckLimits,
    CheckMessage,
    LimitsChecked,
    MessageChecked,
)
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent.support.texts import clean
from fsm_agent_states.logic.status_lines import say
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

Over = Literal["over_cost", "over_tokens", "over_time"]
"""Events of a limit that the next request could pass."""
CAP_TOKENS = 24
"""Of a cap on the reply that may come to the request."""
OVER: dict[str, Over] = {"cost": "over_cost", "tokens": "over_tokens", "time": "over_time"}


def check_message(turn: TurnState, text: str) -> Asks[str | None]:
    """What the guardrails make of the user's text; ``None`` when one of them refuses it."""
    if not turn.setup.checks.message:
        return text
    checked: MessageChecked = yield CheckMessage(text)
    if refused(turn, checked):
        turn.recovery.explain("guardrail", checked.blocked)
        return None
    if checked.text is not None:
        yield from say(f"the message was changed by {', '.join(checked.by)}")
    return text if checked.text is None else clean(checked.text)


def refused(turn: TurnState, checked: MessageChecked) -> bool:
    """Has a guardrail refused the message? Then it stays for people to see, and is not sent again."""
    if checked.blocked:
        turn.ending.refuse(", ".join(checked.by), checked.blocked, "message")
    return bool(checked.blocked)


def check_answer(
    turn: TurnState, text: str, *, typed: bool = True
) -> Generator[CheckAnswer, Any, AnswerChecked]:
    """What is said of a text that may be the answer. ``typed``: it must be of the type that was asked for."""
    checked: AnswerChecked = yield CheckAnswer(text, typed)
    if checked.blocked:
        turn.ending.refuse(", ".join(checked.by), checked.blocked, "answer")
        turn.recovery.explain("guardrail", checked.blocked)
    elif checked.problem:
        turn.recovery.explain("invalid_output", checked.problem)
    return checked


def check_limits(
    turn: TurnState, prompt: int, output: int | None, *, summary: bool = False
) -> Asks[Over | None]:
    """Return the limit that a request of ``prompt`` tokens could pass, if any. ``output``: tokens that its
    reply may have, ``None`` where nothing caps it. A reply is shortened where less than that is left."""
    if not turn.setup.checks.limits:
        return None
    runtime = turn.setup.runtime
    known = output or runtime.most_output
    room = math.inf if runtime.window is None else max(LEAST_REPLY, runtime.window - prompt - CAP_TOKENS)
    most = known or int(min(turn.settings.length.cap_max, room))
    checked: LimitsChecked = yield CheckLimits(prompt + CAP_TOKENS, most, summary)
    if checked.over:
        turn.recovery.explain("limit", checked.why)
        turn.ending.limit_reached(checked.limit)
        return OVER[checked.over]
    turn.call.set_budget(None if checked.output_tokens == known else checked.output_tokens)
    return None
