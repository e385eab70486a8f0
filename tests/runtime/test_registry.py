"""Which turn runs here."""

from __future__ import annotations

from collections.abc import Generator
from contextvars import copy_context

from fsm_agent.runtime.registry import TURN, running


def test_a_turn_that_was_left_is_closed_in_another_context_without_a_word() -> None:
    """The garbage collector does that; an error there was taken for a bug of the state."""

    def turn() -> Generator[str, None, None]:
        with running("t-1"):
            yield TURN.get()

    left = turn()
    assert copy_context().run(next, left) == "t-1"
    left.close()
    assert TURN.get() == ""
