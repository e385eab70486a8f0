"""Engines of others take the same rows: each table is exported, loaded by python-statemachine and by XState, and
driven with random events."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from examples import nested, order, parallel, review_loop
from fsm_agent.diagram.scxml import as_scxml
from fsm_agent.diagram.statecharts import as_xstate
from fsm_agent.errors import StuckTurn, UndeclaredEvent
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.cover import row_scripts
from fsm_agent.fsm.verify.reach import all_limit_names
from fsm_agent_states.table import COMPACTION, TURN
from tests.fsm.test_verify_random import random_table
from tests.helpers.sample import everything, most, sampled, seed
from tests.helpers.tables import Counting
from tests.peers import statecharts
from tests.peers.environment import PeerUnavailable
from tests.peers.statecharts import Job, Place

pytestmark = pytest.mark.slow

LONGEST = 40
"""Events of a sequence; one in twenty is not declared in its state, and moves nothing."""
Driver = Callable[[list[Job]], list[list[list[Place]]]]
Writer = Callable[[Table, Mapping[str, int]], str]
Engine = tuple[Writer, Driver]
DRIVERS: dict[str, Engine] = {
    "python-statemachine": (as_scxml, statecharts.drive_scxml),
    "xstate": (as_xstate, statecharts.drive_xstate),
}


@pytest.fixture(scope="module", params=DRIVERS)
def engine(request: pytest.FixtureRequest) -> Engine:
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


class Sequences(NamedTuple):
    """What to send to an engine under some limits, and the places that it has to answer."""

    table: Table
    limits: Mapping[str, int]
    events: list[list[str]]
    places: list[list[Place]]


def of_every_row(table: Table) -> list[Sequences]:
    """The scripts that take every row."""
    scripts = row_scripts(table)
    assert {row.id for script in scripts for row in script.rows} == {row.id for row in table.rows}
    places = [[(row.dest, row.id, row.exit or "") for row in script.rows] for script in scripts]
    return [Sequences(table, scripts[0].limits, [[*script.events] for script in scripts], places)]


@cache
def at_random(table: Table, runs: int, seed: int) -> list[Sequences]:
    """``runs`` random sequences under 20 choices of limits."""
    chance, machine = random.Random(seed), Machine(table, verified=False)
    names = dict.fromkeys(atom.limit for row in table.rows for atom in row.guard.atoms())
    flags = flags_of(table)
    several = []
    for _ in range(20):
        limits = {name: 1 if name in flags else chance.randint(0, 3) for name in names}
        made = [sequence(table, machine, limits, chance) for _ in range(runs // 20)]
        several.append(Sequences(table, limits, [events for events, _ in made], [path for _, path in made]))
    return several


def flags_of(table: Table) -> set[str]:
    return {counter.name for counter in table.counters if counter.flag}


def compare(engine: Engine, several: Sequence[Sequences]) -> None:
    """Drive all of them in one process of the engine."""
    write, drive = engine
    jobs = []
    for table, limits, events, _ in several:
        given = {name: value for name, value in limits.items() if name not in flags_of(table)}
        jobs.append(Job(write(table, given), events))
    for (table, _, events, places), found in zip(several, drive(jobs), strict=True):
        for sent, path, other in zip(events, places, found, strict=True):
            assert other == path, (table.name, sent)


def test_10000_turns_take_the_same_rows(engine: Engine) -> None:
    """A quarter of them at each commit, other ones each time."""
    first = 1 if everything() else seed("statecharts")
    compare(engine, [*of_every_row(TURN), *at_random(TURN, most(10_000), first)])


def test_the_other_tables_take_the_same_rows(engine: Engine) -> None:
    tables = (COMPACTION, review_loop.TABLE, order.TABLE, parallel.TABLE, nested.TABLE)
    compare(engine, [one for table in tables for one in (*of_every_row(table), *at_random(table, 200, 2))])


def test_random_tables_take_the_same_rows(engine: Engine) -> None:
    numbers = sampled(range(50), "tables of statecharts")
    compare(engine, [one for number in numbers for one in at_random(random_table(number), 40, number)])
