"""How a handler says that it failed."""

from __future__ import annotations


class ToolFailure(Exception):  # a result, not a bug
    """Raised by a tool's handler to give the model an error result in the tool's own words.

    The runner turns it into a ``ToolOutcome`` with status ``error`` and exactly this text, so it never leaves a turn
    and is no part of the tree in ``fsm_agent.errors``. Any other exception becomes an error result with its type.
    """
