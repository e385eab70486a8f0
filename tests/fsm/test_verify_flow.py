"""Bounds from the flow of runs: true wherever they can be searched, and nearly reached where they cannot."""

from __future__ import annotations

import random
import sys
from math import floor

import pytest

from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent.fsm.verify import bounds, examine, search, verify_table
from fsm_agent.fsm.verify.reach import endless, limit_names
from fsm_agent.fsm.verify.worst_case import Flow, FlowWalk, visits
from fsm_agent_states.table import TURN
from tests.helpers.mutants import mutant
from tests.helpers.sample import at_least, most, sampled_seeds
from tests.helpers.tables import DEFAULTS, UNCOUNTED, Counting, courier


def test_without_the_solver_bounds_are_formulas_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    limits = {"tries": 90, "rings": 90, "repacks": 90}
    report = verify_table(courier(), limits)
    assert report.ok
    assert all(figure.value == figure.by_formula and figure.kind == "upper" for figure in report.figures)
    said = [line for line in report.render_lines() if "without the extra bounds no bound is" in line]
    assert [line.strip() for line in said] == [report.note]


def check_scopes(tables: list[Table], seed: int, most_pairs: int) -> tuple[int, int]:
    """No flow bound is below exact search, no run that follows one is above it; (bounds compared, equal
    ones)."""
    compared = equal = 0
    chance = random.Random(seed)
    for table in tables:
        proof = examine(table)
        if proof.faults:
            continue
        limits = {name: chance.choices((0, 1, 2), (3, 3, 1))[0] for name in limit_names(table)}
        if table.name == "turn":
            limits |= {"iterations": 1, "attempts": chance.randint(1, 5), "sends": chance.randint(1, 4)}
        for ranking, caps in ((proof.without_caps, False), (proof.with_caps, True)):
            result = search(table, limits, caps=caps, most_pairs=most_pairs)
            if result is None:
                continue
            flow = Flow(ranking, limits)
            for bound in bounds(proof.without_caps, proof.with_caps):
                if bound.caps != caps or bound.spends or (priced := flow.most(bound.states)) is None:
                    continue
                exact = bound.exact(result)
                assert exact <= floor(priced.value), (table.digest, limits, bound.name, caps)
                run = FlowWalk(flow, priced).run(300)
                assert not run or visits(table, run, bound.states) <= exact
                compared, equal = compared + 1, equal + (exact == floor(priced.value))
    return compared, equal


def test_no_flow_bound_is_below_exact_search() -> None:
    compared, equal = check_scopes([courier()] * 10 + [TURN] * 4, 1, 1_500)
    assert compared >= 25
    assert equal >= compared // 2


MUTANTS = sampled_seeds(range(150), "flow bounds of mutants")


@pytest.mark.slow
def test_no_flow_bound_of_a_mutant_is_below_exact_search() -> None:
    tables = [mutant(TURN, seed) for seed in MUTANTS] + [TURN] * most(30)
    assert check_scopes(tables, 2, 4_000)[0] >= at_least(100)


@pytest.mark.parametrize(("caps", "least", "largest"), [(False, 12_500, 12_640), (True, 5_900, 7_464)])
def test_the_moves_of_a_turn_at_the_default_limits(caps: bool, least: int, largest: int) -> None:
    """Driven through the machine. Whether any run has as many moves as the flow says is not known: none was
    found, and none was ruled out."""
    proof = examine(TURN)
    flow = Flow(proof.with_caps if caps else proof.without_caps, DEFAULTS)
    priced = flow.most()
    assert priced is not None
    assert floor(priced.value) == largest
    runs = [FlowWalk(flow, guide).run(2 * largest) for guide in flow.guides((), endless())]
    run = max(runs, key=len)
    turn = Counting(TURN, DEFAULTS if caps else DEFAULTS | {"attempts": UNCOUNTED, "sends": UNCOUNTED})
    machine = Machine(TURN)
    assert all(machine.advance(turn, row.event).row == row for row in run)
    assert turn.state == TURN.final
    assert least <= len(run) <= largest


def test_a_cap_makes_other_visits_fewer() -> None:
    """A formula takes the smallest of what single arguments say. A parcel needs a drive for each ring, and
    drives are capped."""
    ring = Rung("ring", "Ring", left("rings"), ("rings",))
    drive = Rung("drive", "Drive", left("drives"), ("drives",), ("rings",))
    again = Rung("next day", "Pack", left("days"), ("days",))
    silence = on("silence", ring, end("away", "Done"), why="")
    tomorrow = on("tomorrow", again, end("lost", "Done"), why="")
    packed, there = on("packed", drive, end("late", "Done"), why=""), on("there", go("Ring"), why="")
    parts = {"Pack": [packed], "Drive": [there], "Ring": [silence, tomorrow]}
    counters = (Counter("rings"), Counter("drives", cap=True), Counter("days"))
    table = Table("ringing", ("Pack", "Drive", "Ring", "Done"), "Done", counters, lines_of(parts))
    report = verify_table(table, {"rings": 30, "drives": 10, "days": 500}, watch=("Ring",))
    figure = next(figure for figure in report.figures if figure.caps and figure.quantity == "visits of Ring")
    assert (figure.by_formula, figure.value, figure.kind) == (15_531, 310, "exact")
    assert "the formula gives 15,531" in report.render()


@pytest.mark.slow
def test_exact_search_is_the_last_word() -> None:
    """Under small limits the number is the searched one, also where the formula says more."""
    few = {"iterations": 1, "attempts": 3, "sends": 3, "retries": 1}
    report = verify_table(TURN, dict.fromkeys(limit_names(TURN), 0) | few)
    searched = [figure for figure in report.figures if figure.quantity != "attempts spent"]
    assert all(figure.value == figure.exact and figure.kind == "exact" for figure in searched)
    assert any(figure.value != figure.by_formula for figure in report.figures)
