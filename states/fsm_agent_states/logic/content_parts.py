"""What people are told of content parts that the model in use does not get as they are."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.conversation.effects import Tell
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import View
from fsm_agent.conversation.wire.parts import reduced
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

SHOWN = 3
"""Parts that a line names; it counts the others."""


def tell_parts(turn: TurnState, rows: Sequence[Message] | None = None) -> Asks[None]:
    """Say which parts of ``rows`` the model in use knows only by name, and which files only by their text;
    once for each such line. Without rows the whole history is walked: when a turn begins, and when a model or
    a request has changed."""
    runtime = turn.setup.runtime
    model = f"{runtime.provider}:{runtime.model}"
    view = View.of(runtime, turn.recovery.repairs_done)
    named, read = reduced(turn.history if rows is None else rows, view)
    if named:
        words = f"{model} does not take {_listed(named)}: it is told only that there is such a part"
        yield Tell("status", (words,), once=True)
    if read:
        yield Tell("status", (f"{model} does not take {_listed(read)}: it gets the text",), once=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
