"""The real states in a world that answers anything: rows, data and transcripts after every move."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent import tool
from fsm_agent.testing import RowCoverage, possible_scripts
from fsm_agent.testing.agent_machine import WORLDS, AgentMachine, World
from fsm_agent.testing.visits import Visit
from fsm_agent_states.table import TURN
from tests.helpers.shape_watch import ShapeWatch
from tests.helpers.turn_configs import configs
from tests.helpers.turn_driver import TOOLS, WINDOW, settings_in
from tests.helpers.turn_facts import Config, TurnFacts


@tool(approval="ask")
def danger(name: str) -> str:
    """What needs a yes."""
    return f"did it to {name}"


def world_of(config: Config) -> World:
    """A configuration of the turn in which some rows are near, and the scripts that take them."""
    limits, window = config.limits, WINDOW if config.window else None
    scripts = possible_scripts(TURN, limits, TurnFacts(config), most_places=500)
    chain = [
        window and window + 1_000 * n * (config.chain != "equal") for n in range(limits["fallbacks"] + 1)
    ]
    return World(settings_in(config), chain, limits["rekeys"] + 1, None, scripts)


@cache
def worlds() -> list[World]:
    return [world_of(config) for config in configs()]


class Turns(AgentMachine, tools=[*TOOLS, danger]):
    """In any world, and with the transcript's declared shapes watched."""

    def visited(self, visit: Visit) -> None:
        if len(self.visits) == 1:
            self.shapes = ShapeWatch(self.turn.gate.turn)
        if visit.row is not None:
            self.shapes.moved(visit.row.id)
        else:
            self.shapes.ended()


class NearRows(Turns, tools=Turns.tools, worlds=st.deferred(lambda: st.sampled_from(worlds()) | WORLDS)):
    """Often in a world in which some rows are near, on the way to them."""


TestTurns = Turns.TestCase
TestTurns.settings = settings(
    max_examples=8,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_sixty_agents_take_most_rows() -> None:
    """A failure is not made shorter here, which would take minutes."""
    how = settings(TestTurns.settings, max_examples=60, stateful_step_count=100, phases=[Phase.generate])
    with RowCoverage(TURN) as coverage:
        run_state_machine_as_test(NearRows, settings=how)
    print(coverage.summary())
    assert len(coverage.missed) <= 60
