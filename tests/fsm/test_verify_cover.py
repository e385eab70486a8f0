"""Scripts that cover a table: together they take on the machine what exact search says can be taken."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import search
from fsm_agent.fsm.verify.cover import Script, cover, pair_scripts, row_scripts
from fsm_agent.fsm.verify.reach import Search, limit_names
from fsm_agent_states.table import TURN
from tests.helpers.sample import at_least, sampled_seeds
from tests.helpers.tables import DEFAULTS, Counting, courier


def replay(table: Table, scripts: list[Script]) -> tuple[set[str], set[tuple[str, str]]]:
    """Drive the machine with the events of each script; the rows and pairs that it took."""
    machine = Machine(table)
    rows: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for script in scripts:
        turn = Counting(table, script.limits)
        taken = [machine.advance(turn, event).row for event in script.events]
        assert tuple(taken) == script.rows, script.name
        assert turn.state == table.final, script.name
        aimed = [row.id for row in script.rows[: script.reached]]
        assert tuple(aimed[-len(script.aim) :]) == script.aim, script.name
        rows |= {row.id for row in taken}
        pairs |= set(script.pairs)
    assert len({script.name for script in scripts}) == len(scripts)
    return rows, pairs


def exact_pairs(found: Search) -> set[tuple[str, str]]:
    """Every two rows that follow each other in some run, by looking at all (state, counters) pairs."""
    moves = [list(found.moves(here)) for here in range(len(found.pairs))]
    return {
        (row.id, after.id) for here in moves for row, there in here if there >= 0 for after, _ in moves[there]
    }


@pytest.mark.parametrize("limits", [None, DEFAULTS], ids=["small", "default"])
def test_every_row_of_the_turn_is_taken(limits: Mapping[str, int] | None) -> None:
    scripts = row_scripts(TURN, limits)
    assert replay(TURN, scripts)[0] == {row.id for row in TURN.rows}
    assert len(scripts) <= 0.78 * len(TURN.rows)
    for (
        script
    ) in scripts:  # macro rows end a turn from everywhere, but only the scripts that aim at them should
        assert script.rows[-1].event not in TURN.is_macro or script.rows[-1].id == script.aim[-1], script.name


@pytest.mark.slow
def test_every_pair_of_rows_of_the_turn_is_taken_at_the_default_limits() -> None:
    """Except for eight behind the cap on requests, which need 360 requests to be spent first; smaller
    limits show that they can be taken."""
    found = cover(TURN, DEFAULTS, pairs=True)
    rows, pairs = replay(TURN, list(found.scripts))
    assert rows == {row.id for row in TURN.rows}
    assert len(pairs) == 1479
    assert {after for _, after in found.missed} <= {"BuildMessages.built/1", "BuildMessages.oversized/1"}
    assert len(found.missed) <= 8
    near = pair_scripts(TURN, {**DEFAULTS, "attempts": 6, "free_rounds": 1})
    assert set(found.missed) <= replay(TURN, near)[1]


@pytest.mark.slow
def test_small_limits_reach_nearly_all_pairs() -> None:
    found = cover(TURN, pairs=True)
    assert len(found.missed) <= 3
    assert len(replay(TURN, list(found.scripts))[1]) >= 1150


def random_scopes(seeds: range, most_pairs: int) -> list[tuple[dict[str, int], Search]]:
    scopes = []
    for seed in seeds:
        chance = random.Random(seed)
        limits = {name: chance.choices((0, 1, 2), (3, 2, 1))[0] for name in limit_names(TURN)}
        limits |= {"attempts": chance.randint(1, 5), "sends": chance.randint(1, 3)}
        found = search(TURN, limits, caps=True, most_pairs=most_pairs)
        if found is not None:
            scopes.append((limits, found))
    return scopes


def check_against_exact_search(seeds: range, most_pairs: int) -> tuple[int, int]:
    """Nothing that cannot be taken is in a script, and what is neither covered nor missed cannot be taken."""
    compared = missed = 0
    for limits, exact in random_scopes(seeds, most_pairs):
        rows = cover(TURN, limits, pairs=False)
        assert (
            replay(TURN, list(rows.scripts))[0] | {aim[0] for aim in rows.missed if aim[0] in exact.taken}
            == exact.taken
        )
        pairs = cover(TURN, limits, pairs=True)
        feasible = exact_pairs(exact)
        covered = replay(TURN, list(pairs.scripts))[1]
        assert covered <= feasible, limits
        assert feasible - covered <= set(pairs.missed), limits
        compared, missed = compared + len(feasible), missed + len(feasible - covered)
    return compared, missed


SCOPES = sampled_seeds(range(100, 140), "scopes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "most_pairs", "least"), [(range(9), 3_000, 1_500), (SCOPES, 20_000, at_least(10_000))]
)
def test_scripts_take_what_exact_search_says(seeds: range, most_pairs: int, least: int) -> None:
    compared, missed = check_against_exact_search(seeds, most_pairs)
    assert compared >= least
    assert missed <= compared // 100


def test_a_table_of_another_kind_is_covered() -> None:
    table = courier()
    limits = {"tries": 3, "rings": 2, "repacks": 1}
    exact = search(table, limits)
    assert exact is not None
    assert replay(table, row_scripts(table))[0] == {row.id for row in table.rows}
    rows, pairs = replay(table, pair_scripts(table, limits))
    assert (rows, pairs) == (exact.taken, exact_pairs(exact))


def test_a_limit_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError, match="rings"):
        row_scripts(courier(), {"tries": 1, "repacks": 1})
