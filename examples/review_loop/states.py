"""The three working states and the end. Pure: each asks by ``yield``, folds the answer into the turn, and reports one event."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from examples.review_loop.requests import Answer, Ask, Rest, Role
from examples.review_loop.turn import ReviewTurn
from fsm_agent.fsm.runner import State

Yields = Generator[Any, Any, str]

VERDICT = "Begin with ACCEPT if it can stand as it is, or with REVISE and say what is wrong."


def draft(turn: ReviewTurn) -> Yields:
    """Reports ``written`` or ``failed``."""
    answer = yield from _asked(turn, "writer", turn.task)
    if answer is None:
        return "cancelled"
    if not answer.text:
        return "failed"
    turn.text = answer.text
    return "written"


def criticise(turn: ReviewTurn) -> Yields:
    """Reports ``accepted``, ``objections``, ``unclear`` or ``failed``."""
    answer = yield from _asked(turn, "reviewer", f"The task was: {turn.task}\n\nThe text:\n{turn.text}\n\n{VERDICT}")
    if answer is None:
        return "cancelled"
    if not answer.text:
        return "failed"
    verdict, _, rest = answer.text.partition(" ")
    match verdict.strip(":,.").upper():
        case "ACCEPT":
            return "accepted"
        case "REVISE" if rest.strip():
            turn.objections = rest.strip()
            return "objections"
    return "unclear"


def revise(turn: ReviewTurn) -> Yields:
    """Reports ``written``, ``unchanged`` or ``failed``."""
    prompt = f"The task was: {turn.task}\n\nYour text:\n{turn.text}\n\nA reviewer says: {turn.objections}\n\nGive the new text."
    answer = yield from _asked(turn, "writer", prompt)
    if answer is None:
        return "cancelled"
    if not answer.text:
        return "failed"
    changed, turn.text = answer.text != turn.text, answer.text
    return "written" if changed else "unchanged"


def close(turn: ReviewTurn) -> Generator[Any, Any, None]:
    """The end has nothing to ask and no event."""
    yield from ()


def _asked(turn: ReviewTurn, role: Role, prompt: str) -> Generator[Any, Any, Answer | None]:
    """One answer, after the wait that a retry ordered; ``None`` when the turn was cancelled meanwhile."""
    if "retries" in turn.ordered:
        yield Rest(2.0 ** turn.count("retries"))
    if turn.cancelled:
        return None
    answer: Answer = yield Ask(role, prompt)
    turn.problem = answer.problem
    return None if turn.cancelled else answer


STATES: dict[str, State] = {"Draft": draft, "Criticise": criticise, "Revise": revise, "Close": close}
