"""Properties watched while turns run: of a workflow and of an agent, also over a kill."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples import order
from fsm_agent import BaseTurn, Workflow
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.properties import Property, Watch, at_most, enters, eventually, exits, never
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on
from fsm_agent.testing import text
from fsm_agent_states.table import TURN
from tests.helpers.store_homes import agent

RING = Rung("ring", "Ring", left("rings"), ("rings",))
CLOSED, OPEN = (
    on("closed", RING, end("returned", "Done"), why=""),
    on("open", end("delivered", "Done"), why=""),
)
TWICE = at_most("Nobody is rung at more than twice.", 2, enters("Ring"))
OPENED = eventually("Somebody opens.", exits("delivered"))
RINGS, BUGS = lines_of({"Ring": [CLOSED, OPEN]}), (("crashed", {"Ring": "bug"}),)
COUNTERS, STATES = (Counter("rings"),), ("Ring", "Done")
BELLS = Table("bells", STATES, "Done", COUNTERS, RINGS, BUGS, properties=(TWICE, OPENED))


@dataclass
class Visit(BaseTurn):
    said: list[str]
    done: list[str] = field(default_factory=list)
    usual_limits: ClassVar = {"rings": 5}
    outcomes: ClassVar = {"delivered": "completed"}


def ring(turn: Visit) -> Generator[Any, Any, str]:
    turn.done.append(turn.said[len(turn.done)])
    return turn.done[-1]
    yield


async def perform(request: Any) -> None:
    raise AssertionError


def bells(home: Path, watch: Watch = "warn", table: Table = BELLS) -> Workflow[Visit]:
    return Workflow(table, {"Ring": ring}, Visit, perform, home=home, watch=watch)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "fsm_agent.fsm.properties"]


def test_a_broken_property_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = bells(tmp_path).start(Visit(["closed"] * 4 + ["open"])).run()
    assert (result.exit, result.turn.bug) == ("delivered", "")
    assert warned(caplog) == ["bells: Ring.closed/1 breaks a property: Nobody is rung at more than twice."]


def test_a_turn_is_stopped_before_the_move_that_breaks_a_property(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = bells(tmp_path, "stop").start(Visit(["closed"] * 4 + ["open"])).run()
    assert [step.row for step in result.steps] == ["Ring.closed/1", "Ring.closed/1", "Ring.crashed"]
    assert result.turn.bug == "PropertyBroken: Nobody is rung at more than twice."
    assert (result.exit, result.outcome, result.turn.count("rings")) == ("bug", "failed", 2)
    assert warned(caplog)[1:] == ["bells: Ring.crashed breaks a property: Somebody opens."]


def test_what_is_owed_at_the_end_stops_the_move_that_would_end_the_turn(tmp_path: Path) -> None:
    result = bells(tmp_path, "stop").start(Visit(["closed"], limits={"rings": 0})).run()
    assert (result.exit, result.turn.bug) == ("bug", "PropertyBroken: Somebody opens.")


def test_nothing_is_watched_when_it_is_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert bells(tmp_path, "off").start(Visit(["closed"] * 4 + ["open"])).run().exit == "delivered"
    assert warned(caplog) == []


def test_a_resumed_turn_remembers_the_moves_before(tmp_path: Path) -> None:
    turn = bells(tmp_path, "stop").start(Visit(["closed"] * 4 + ["open"], turn_id="t-1"))

    async def two_moves() -> None:
        await turn.step()
        await turn.step()
        turn._leave()

    asyncio.run(two_moves())
    result = bells(tmp_path, "stop").resume("t-1").run()
    assert [step.row for step in result.steps] == ["Ring.closed/1", "Ring.closed/1", "Ring.crashed"]


def test_other_ways_of_watching_are_refused(tmp_path: Path) -> None:
    wrong: Any = "loudly"
    with pytest.raises(ConfigError, match="cannot be watched so; given: loudly; allowed: off, warn, stop"):
        bells(tmp_path, wrong)
    with pytest.raises(ConfigError, match="cannot be stopped in Ring, which has no line for crashed"):
        bells(tmp_path, "stop", replace(BELLS, macros=()))


def test_the_order_says_that_a_bug_leaves_a_charge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The known counterexample of the example happens, and is said."""
    usual = partial(order.serve, tmp_path)

    async def perform(request: order.Do) -> Any:
        if request.act == "ship":
            raise RuntimeError("no van")
        return await usual(request)

    result = order.workflow(tmp_path, perform).start(order.Order(["LAMP"])).run()
    assert [step.row for step in result.steps] == ["Reserve.done", "Charge.done", "Ship.crashed"]
    known = next(claimed for claimed in order.TABLE.properties if claimed.known)
    assert warned(caplog) == [f"order: Ship.crashed breaks a property: {known.says}"]


def with_property(claimed: Property) -> tuple[Property, ...]:
    return (*TURN.properties, claimed)


@pytest.mark.parametrize(("watch", "reason"), [("off", "text_response"), ("stop", "local_processing_error")])
def test_an_agent_watches_its_turns_when_asked_to(
    watch: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = never("Nobody answers.", exits("text_response"))
    monkeypatch.setitem(TURN.__dict__, "properties", with_property(silent))
    result = agent([text("hello")], tmp_path, settings={"properties": watch}).start("hi").run()
    assert result.turn_exit_reason == reason


def test_the_properties_of_the_turn_hold_while_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    watched = agent([text("hello")], tmp_path, settings={"properties": "stop"})
    assert watched.start("hi").run().turn_exit_reason == "text_response"
    assert warned(caplog) == []
