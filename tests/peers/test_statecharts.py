"""Engines of others take the same rows: each table is exported, loaded by python-statemachine and by XState, and
driven with random events."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from examples import nested, order, parallel, review_loop
from fsm_agent.diagram.scxml import as_scxml
from fsm_agent.diagram.statecharts import as_xstate
from fsm_agent.errors import StuckTurn, UndeclaredEvent
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.reach import all_limit_names
from fsm_agent_states.table import COMPACTION, TURN
from tests.fsm.test_verify_random import random_table
from tests.helpers.sample import everything, most, seed
from tests.helpers.tables import Counting
from tests.peers import statecharts
from tests.peers.environment import PeerUnavailable
from tests.peers.statecharts import Job, Place

pytestmark = pytest.mark.slow

LONGEST = 40
"""Events of a sequence; one in twenty is not declared in its state, and moves nothing."""
Driver = Callable[[list[Job]], list[list[list[Place]]]]
DRIVERS: dict[str, tuple[Callable[[Table, Mapping[str, int]], str], Driver]] = {
    "python-statemachine": (as_scxml, statecharts.drive_scxml),
    "xstate": (as_xstate, statecharts.drive_xstate),
}


@pytest.fixture(scope="module", params=DRIVERS)
def engine(request: pytest.FixtureRequest) -> tuple[Callable[[Table, Mapping[str, int]], str], Driver]:
    write, drive = DRIVERS[request.param]
    try:
        drive([])
    except PeerUnavailable as missing:
        pytest.skip(str(missing))
    return write, drive


def sequence(
    table: Table, machine: Machine, limits: Mapping[str, int], chance: random.Random
) -> tuple[list[str], list[Place]]:
    """Random events until the end, and the places after each of them."""

    def stays(turn: Counting, event: str) -> bool:
        open_rows = (row for row in table.by_event[turn.state, event] if row.guard.holds(turn))
        return next(open_rows, None) not in ending

    ending = [None, *(row for row in table.rows if row.exit)]
    turn, events, places = Counting(table, {**dict.fromkeys(all_limit_names(table), 1), **limits}), [], []
    every = sorted({event for _, event in table.by_event})
    row, exits = "", ""
    while turn.state != table.final and len(events) < LONGEST:
        event = chance.choice(every if chance.random() < 0.05 else table.events(turn.state) or every)
        if chance.random() < 0.8:  # most sequences continue: the ways out are many
            event = chance.choice([one for one in table.events(turn.state) if stays(turn, one)] or [event])
        try:
            taken = machine.advance(turn, event).row
            row, exits = taken.id, taken.exit or ""
        except (UndeclaredEvent, StuckTurn):
            pass
        events.append(event)
        places.append((turn.state, row, exits))
    return events, places


def compare(
    engine: tuple[Callable[[Table, Mapping[str, int]], str], Driver], table: Table, runs: int, seed: int
) -> int:
    """Drive ``runs`` sequences under 20 choices of limits; the number of rows that were seen."""
    write, drive = engine
    chance, machine = random.Random(seed), Machine(table, verified=False)
    names = dict.fromkeys(atom.limit for row in table.rows for atom in row.guard.atoms())
    flags = {counter.name for counter in table.counters if counter.flag}
    jobs, expected = [], []
    for _ in range(20):
        limits = {name: 1 if name in flags else chance.randint(0, 3) for name in names}
        given = {name: value for name, value in limits.items() if name not in flags}
        made = [sequence(table, machine, limits, chance) for _ in range(runs // 20)]
        jobs.append(Job(write(table, given), [events for events, _ in made]))
        expected.append([places for _, places in made])
    found = drive(jobs)
    for job, ours, theirs in zip(jobs, expected, found, strict=True):
        for events, path, other in zip(job.events, ours, theirs, strict=True):
            assert other == path, (table.name, events)
    return len({row for paths in expected for path in paths for _, row, _ in path})


def test_10000_turns_take_the_same_rows(
    engine: tuple[Callable[[Table, Mapping[str, int]], str], Driver],
) -> None:
    """A quarter of them at each commit, other ones each time."""
    found = compare(engine, TURN, most(10_000), seed=1 if everything() else seed("statecharts"))
    assert found > len(TURN.rows) * (0.9 if everything() else 0.8)


def test_the_other_tables_take_the_same_rows(
    engine: tuple[Callable[[Table, Mapping[str, int]], str], Driver],
) -> None:
    for table in (COMPACTION, review_loop.TABLE, order.TABLE, parallel.TABLE, nested.TABLE):
        assert compare(engine, table, 200, seed=2) > len(table.rows) * 0.7, table.name


def test_random_tables_take_the_same_rows(
    engine: tuple[Callable[[Table, Mapping[str, int]], str], Driver],
) -> None:
    for number in range(50):
        compare(engine, random_table(number), 40, number)
