"""How a handler says that it failed."""

from __future__ import annotations

from typing import Literal


class ToolFailure(Exception):  # a result, not a bug
    """Raised by a tool's handler to give the model an error result in the tool's own words.

    ``status`` is ``unknown`` when the handler cannot say whether the call took effect. The runner turns it
    into a ``ToolOutcome`` with this status and exactly this text, so it never leaves a turn and is no part of
    the tree in ``fsm_agent.errors``. Any other exception becomes an error result with its type."""

    def __init__(self, text: str = "", *, status: Literal["error", "unknown"] = "error") -> None:
        super().__init__(text)
        self.status = status
