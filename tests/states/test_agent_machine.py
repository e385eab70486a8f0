"""The real states in a world that answers anything: rows, data and transcripts after every move."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent import TurnResult, tool
from fsm_agent.testing import RowCoverage
from fsm_agent.testing.agent_machine import AgentMachine
from fsm_agent.testing.visits import Visit
from fsm_agent_states.table import TURN
from tests.helpers.shape_watch import ShapeWatch
from tests.helpers.turn_driver import TOOLS


@tool(approval="ask")
def danger(name: str) -> str:
    """What needs a yes."""
    return f"did it to {name}"


class Turns(AgentMachine, tools=[*TOOLS, danger]):
    def visited(self, visit: Visit) -> None:
        if len(self.visits) == 1:
            self.shapes = ShapeWatch(self.turn.gate.turn)
        if visit.row is not None:
            self.shapes.moved(visit.row.id)
        else:
            self.shapes.ended()


def test_random_worlds() -> None:
    with RowCoverage(TURN) as coverage:
        run_state_machine_as_test(
            Turns,
            settings=settings(
                max_examples=60,
                stateful_step_count=60,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
            ),
        )
    print(coverage.summary())
