"""The real states in a world that answers anything: rows, data and transcripts after every move."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent import tool
from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.conversation.effects import CallModel, ModelRequest, Wait, Waited
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.fsm.journal import Exchange
from fsm_agent.testing import RowCoverage, Script, possible_scripts
from fsm_agent.testing.invariants import Visit, a_request_is_paid_for, recovery_is_performed
from fsm_agent.testing.machine import AgentMachine, World
from fsm_agent.testing.strategies import answers_for
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


class Turns(AgentMachine, tools=[*TOOLS, danger]):
    """In any world, and with the transcript's declared shapes watched."""

    def visited(self, visit: Visit) -> None:
        if len(self.visits) == 1:
            self.shapes = ShapeWatch(self.turn.gate.turn)
        if visit.row is not None:
            self.shapes.moved(visit.row.id)
        else:
            self.shapes.ended()


TestTurns = Turns.TestCase
FEW: dict[str, Any] = {"max_examples": 5, "stateful_step_count": 30, "derandomize": True}
TestTurns.settings = settings(deadline=None, suppress_health_check=list(HealthCheck), **FEW)
LONG = settings(TestTurns.settings, stateful_step_count=100, phases=[Phase.generate])


@pytest.mark.slow
def test_sixty_agents_take_most_rows() -> None:
    """Three in each world in which some rows are near. A failure is not made shorter here, which would take
    minutes."""
    with RowCoverage(TURN) as coverage:
        for world in [world_of(config) for config in configs()]:

            class Near(Turns, tools=Turns.tools, worlds=st.just(world)):
                pass

            run_state_machine_as_test(Near, settings=settings(LONG, max_examples=3))
    print(coverage.summary())
    assert len(coverage.missed) <= 45


def visit(state: str, came: str, row: str, *exchanges: Exchange) -> Visit:
    return Visit(state, TURN.row(came), list(exchanges), TURN.row(row))


WAITED = Exchange(3, "BuildMessages", 0, Wait("exception", 1, "again"), Waited(1.0, False))
SENT = Exchange(3, "CallLLM", 0, CallModel(ModelRequest(b"{}"), 1.0, 1.0), ModelReply("hi"))


def test_a_recovery_that_is_ordered_is_performed_and_a_visit_of_call_llm_is_one_request() -> None:
    for kept in ([WAITED], []):
        one = visit("BuildMessages", "ClassifyError.server_error/1", "BuildMessages.built/2", *kept)
        with nullcontext() if kept else pytest.raises(AssertionError, match="ordered Wait"):
            recovery_is_performed(one, None)
    for requests in range(3):
        one = visit("CallLLM", "BuildMessages.built/3", "CallLLM.text", *[SENT] * requests)
        with nullcontext() if requests == 1 else pytest.raises(AssertionError, match="paid for 1"):
            a_request_is_paid_for(one, None)


def test_a_second_request_anywhere_is_seen_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = STATES["EmptyRecovery"]

    def asking(turn: Any) -> Any:
        yield CallModel(turn.call.request, 1.0, 1.0)
        return (yield from usual(turn))

    monkeypatch.setitem(STATES, "EmptyRecovery", asking)
    blanks = World({"max_iterations": 5, "empty": {"retries": 3}}, scripts=[script_of("blank", "nothing")])

    class Blank(Turns, tools=Turns.tools, worlds=st.just(blanks)):
        pass

    with pytest.raises(AssertionError, match="EmptyRecovery"):
        run_state_machine_as_test(Blank, settings=LONG)


def script_of(*events: str) -> Script:
    """A script of which only the events count."""
    rows = tuple(next(row for row in TURN.rows if row.event == event) for event in events)
    return Script(rows, {}, (), 0)


def test_answers_for_a_script() -> None:
    events = "ready built tools bad_json built error bad_key built blank thought text"
    assert answers_for(events.split()) == ["bad json", "401", "thought", "text"]
