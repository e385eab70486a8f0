"""How a handler says that its result is not there yet, so that the turn is suspended until it is."""

from __future__ import annotations

import math
from datetime import datetime

from fsm_agent.conversation.call_key import signature
from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.errors import ConfigError
from fsm_agent.runtime.not_yet import NotYet, Waits

NOT_KEPT = (
    "Its result was to come later, and what is waited for cannot be written down at the moment. Whatever was"
    " begun goes on by itself."
)


class ComesLater(Exception):
    """Raised by a handler whose result is not there yet. ``asked``: what is waited for, in words."""

    kind: Waits = "result"
    choices: tuple[str, ...] = ()
    due: float | None = None

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked

    def later(self, request: RunTool) -> NotYet:
        """What stands in the place of the result of this call."""
        return NotYet(
            self.kind,
            request.call_id,
            request.name,
            self.asked,
            self.choices,
            signature(request.name, request.arguments),
            self.due,
            ToolOutcome(request.call_id, "error", NOT_KEPT),
        )


class ResultLater(ComesLater):
    """Raised by a tool that has handed its work to somebody else; ``asked`` says to whom. The tool is not
    called again: ``agent.answer``, or ``fsm-agent pending answer``, gives the result of the call."""


class WakeAt(ComesLater):
    """Raised by a tool to let the turn rest until ``at``: an aware ``datetime``, or seconds since the epoch.
    ``result`` is the result of the call then; the tool is not called again. Raises ``ConfigError`` for a time
    that is none."""

    kind: Waits = "timer"

    def __init__(self, at: datetime | float, result: str = "It is time.") -> None:
        super().__init__(result)
        if isinstance(at, datetime):
            at = at.timestamp() if at.tzinfo is not None else math.nan
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
            raise ConfigError(
                "the turn cannot be woken then", at, "seconds since the epoch, or a datetime with its zone"
            )
        self.due = float(at)


class AnswerLater(ComesLater):
    """Raised by a tool that has nobody to ask now. ``choices``: answers that it offers."""

    kind: Waits = "question"

    def __init__(self, asked: str, choices: tuple[str, ...] = ()) -> None:
        super().__init__(asked)
        self.choices = choices
