"""Scripts of a table of your own, played on its real states: ``rehearse``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.fsm.verify.cover import Script
from fsm_agent.sessions.turn import DurableTurn
from fsm_agent.testing.invariants import Look
from fsm_agent.workflow import Workflow, WorkflowResult

T = TypeVar("T", bound=BaseTurn)
Says = Callable[[str, Any, T], Any]


async def rehearse(
    flow: Workflow[T], turn: T, script: Script, says: Says[T]
) -> DurableTurn[WorkflowResult[T]]:
    """Play ``script`` on the states of ``flow``, stored in its home like any turn, and return the turn, which
    has ended. Nothing is performed: ``says(event, request, turn)`` gives the reply to each request of a
    visit, such that the state reports ``event``; for ``crashed`` it is not asked, and the request fails. The
    invariants are checked after every move. Raises ``AssertionError`` for the first move that is not the
    script's."""
    row = script.rows[0]

    async def world(request: Any) -> Any:
        if row.event == CRASHED:
            raise RuntimeError("a bug, as the script wants it")
        return says(row.event, request, turn)

    kind = flow.kind
    played = Workflow(kind.table, kind.states, flow.turn_type, world, begin=flow.begin, home=flow.home)
    running = played.start(turn)
    look = Look(kind.table, turn)
    for row in script.rows:
        step = await running.step()
        took = "the end of the turn" if step is None else step.row
        assert took == row.id, f"{script.name}: {took} was taken where {row.id} was to come"
        look.moved(row.event, row)
    assert await running.step() is None
    return running
