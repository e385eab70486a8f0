"""Which turn runs here."""

from __future__ import annotations

from collections.abc import Generator
from contextvars import copy_context

from fsm_agent.runtime.events import EVERYWHERE, TURN, Stream, running


def test_a_turn_that_was_left_is_closed_in_another_context_without_a_word() -> None:
    """The garbage collector does that; an error there was taken for a bug of the state."""

    stream = Stream("t-1")

    def turn() -> Generator[Stream, None, None]:
        with running(stream):
            yield TURN.get()

    left = turn()
    assert copy_context().run(next, left) is stream
    left.close()
    assert TURN.get() is EVERYWHERE
