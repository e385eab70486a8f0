"""Bounds under a time limit, and formulas that can be read: never wrong, never silent."""

from __future__ import annotations

import re
from math import prod

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.verify import bounds, examine, search, verify_table
from fsm_agent.fsm.verify.reach import TimeLimit, limit_names
from tests.fsm.test_verify_random import random_table, some_limits
from tests.helpers.tables import chain, courier, nested


class TickingClock:
    """A clock that advances by one second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def ticking(seconds: float) -> TimeLimit:
    return TimeLimit(seconds, clock=TickingClock())


def test_a_bound_that_was_not_refined_says_so_and_is_never_too_small() -> None:
    limits = {"tries": 900, "rings": 800, "repacks": 900}
    whole = verify_table(courier(), limits)
    assert "not refined" not in whole.render()
    for seconds in (0, 3, 10, 30, 100):
        report = verify_table(courier(), limits, within=ticking(seconds))
        assert report.ok
        for figure, known in zip(report.figures, whole.figures, strict=True):
            assert figure.value is not None
            assert known.value is not None
            assert figure.value >= (known.constructed or known.exact or 0)
            assert figure.kind == "exact" or figure.cut_after == seconds or figure.value == known.value
    text = verify_table(courier(), limits, within=ticking(0)).render()
    assert "(upper: no run was looked for; not refined in 0 s)" in text
    assert "8 rows, 8 of them not searched for to the end: time was over" in text, (
        "and none is said to be dead"
    )


def test_bounds_of_random_tables_hold_whenever_time_is_over() -> None:
    compared = 0
    for seed in range(1_000):
        table = random_table(seed)
        proof = examine(table)
        if proof.faults:
            continue
        for limits in some_limits(table, seed, 2):
            for bound in bounds(proof.without_caps, proof.with_caps, within=ticking(seed % 7)):
                found = search(table, limits, caps=bound.caps, most_pairs=1_500)
                if found is not None:
                    compared += 1
                    assert bound.value(limits) >= bound.exact(found), (table.name, limits)
    assert compared > 200


def test_every_state_of_a_random_table_can_be_watched() -> None:
    for seed in range(600):
        table = random_table(seed)
        if not examine(table).faults:
            for state in table.states[:-1]:
                report = verify_table(table, watch=(state,), small=False)
                assert report.figures[0].quantity == f"visits of {state}"


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="the time for a report is out of range; given: -1"):
        TimeLimit(-1)


def test_progress_is_reported() -> None:
    told: list[str] = []
    verify_table(courier(), dict.fromkeys(limit_names(courier()), 90), within=TimeLimit(20, told.append))
    assert told[:2] == ["bounds as formulas", "small scopes"]
    assert told[-2:] == ["flow and longest run of moves", "dead rows"]


def test_sums_that_occur_again_have_names_and_the_value_stays() -> None:
    """Twelve counters that give each other back: 28,676 letters when they are written out."""
    table = nested(12)
    proof = examine(table)
    bound = bounds(proof.without_caps, proof.with_caps)[-1]
    text, legend = bound.write()
    assert len(text) + sum(map(len, legend)) < 2_000 < len(bound.printer.text(bound.formulas[0]))
    limits = {f"c{number}": number % 3 + 1 for number in range(12)}
    values: dict[str, int] = dict(limits)
    for line in legend:
        name, _, meaning = line.partition(" = ")
        values[name] = evaluated(meaning, values)
    assert evaluated(text, values) == bound.value(limits) == prod(1 + limit for limit in limits.values())


def evaluated(formula: str, values: dict[str, int]) -> int:
    """The value of a printed formula."""
    numbers = re.sub(r"[a-z]\w*", lambda found: str(values[found[0]]), formula.replace("·", "*"))
    return int(eval(numbers))


@pytest.mark.slow
def test_a_table_of_210_rows_has_its_figure_in_the_time_given() -> None:
    table = chain(30)
    limits = dict.fromkeys(limit_names(table), 3)
    report = verify_table(table, limits, watch=("S3",), within=TimeLimit(8))
    assert (report.rows, report.figures[0].value, report.figures[0].kind) == (210, 64, "exact")
    assert report.figures[1].value is not None
