"""Scripts as a user meets them: readable names, playing, facts that forbid, the coverage of rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import fsm_agent.testing
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Row, Table, end, go, lines_of, on
from fsm_agent.runtime.events import EVERYWHERE, RowTaken
from fsm_agent.testing import (
    CountingTurn,
    InvariantBroken,
    RowCoverage,
    Script,
    ids_of,
    pair_scripts,
    play,
    possible_scripts,
    row_scripts,
)
from tests.fsm.test_verify_cover import exact_pairs
from tests.helpers.tables import courier

PARCEL = courier()
LIMITS = {"tries": 2, "rings": 2, "repacks": 1}
SCRIPTS = row_scripts(PARCEL, LIMITS)


@pytest.mark.parametrize("script", SCRIPTS, ids=ids_of(SCRIPTS))
def test_a_script_plays_to_its_end(script: Script) -> None:
    turn = play(PARCEL, script)
    assert turn.state == PARCEL.final
    assert turn.seq == len(script.rows)


def test_names_are_rows_and_pairs_of_rows() -> None:
    ids = {row.id for row in PARCEL.rows}
    assert set(ids_of(SCRIPTS)) <= ids
    for name in ids_of(pair_scripts(PARCEL, LIMITS)):
        assert set(name.split(" then ")) <= ids


def test_a_turn_that_counts_wrongly_breaks_an_invariant() -> None:
    class Forgetful(CountingTurn):
        def spend(self, counter: str) -> None:
            pass

    script = next(script for script in SCRIPTS if any(row.spends for row in script.rows))
    with pytest.raises(InvariantBroken, match=r"counters change as the row says: \w+ is 0, not 1"):
        play(PARCEL, script, Forgetful(PARCEL, LIMITS))


def test_a_script_of_other_limits_takes_another_row_and_says_so() -> None:
    script = next(script for script in SCRIPTS if "Drive.broken/1" in [row.id for row in script.rows])
    with pytest.raises(InvariantBroken, match=r"move \d: Drive.broken/2 was taken, not Drive.broken/1"):
        play(PARCEL, script, CountingTurn(PARCEL, LIMITS | {"repacks": 0}))


class Door:
    """The door is opened at the third ring at the earliest, and by nobody who was at home before."""

    def begin(self) -> Iterator[int]:
        yield 0

    def after(self, facts: int, row: Row, counts: Mapping[str, int]) -> Iterator[int]:
        if row.event == "open" and facts < 2:
            return
        yield facts + (row.event == "closed")


def test_facts_forbid_what_the_states_cannot_report() -> None:
    scripts = possible_scripts(PARCEL, LIMITS, Door())
    assert {row.id for script in scripts for row in script.rows} == {row.id for row in PARCEL.rows}
    for script in scripts:
        play(PARCEL, script)
        assert len(script.facts) == len(script.rows) + 1
        if "open" in script.events:
            assert script.events.count("closed") >= 2
    shortest = (script for script in scripts if "open" in script.events and len(script.events) == 5)
    assert any(shortest), "and no longer than it must be"


def test_without_facts_the_pairs_are_those_of_the_table() -> None:
    from fsm_agent.fsm.verify import search

    class Nothing:
        def begin(self) -> Iterator[None]:
            yield None

        def after(self, facts: None, row: Row, counts: Mapping[str, int]) -> Iterator[None]:
            yield None

    exact = search(PARCEL, LIMITS)
    assert exact is not None
    scripts = possible_scripts(PARCEL, LIMITS, Nothing(), pairs=True)
    assert {pair for script in scripts for pair in script.pairs} == exact_pairs(exact)
    for script in scripts:
        play(PARCEL, script)


def test_what_was_covered_before_needs_no_script() -> None:
    done = {("Drive.broken/2",), ("Ring.open",)}
    names = ids_of(possible_scripts(PARCEL, LIMITS, Door(), skip=done))
    assert not {"Drive.broken/2", "Ring.open"} & set(names)


# Coverage


def test_coverage_counts_the_rows_of_its_own_table_only() -> None:
    other = Table("other", ("A", "B"), "B", (), lines_of({"A": [on("go", end("gone", "B"), why="")]}))
    with RowCoverage(PARCEL) as coverage:
        play(PARCEL, SCRIPTS[0])
        Machine(other).advance(CountingTurn(other, {}), "go")
        play(courier(), SCRIPTS[0])
    play(PARCEL, SCRIPTS[0])
    assert sum(coverage.counts.values()) == 2 * len(SCRIPTS[0].rows)
    assert not EVERYWHERE.hears(RowTaken)


def test_coverage_says_what_is_missing_and_takes_counts_of_others(tmp_path: Path) -> None:
    coverage = RowCoverage(PARCEL)
    coverage.add({"Pack.packed": 2, "no.such/row": 5})
    assert coverage.share == pytest.approx(1 / len(PARCEL.rows))
    assert coverage.missed == [row.id for row in PARCEL.rows if row.id != "Pack.packed"]
    assert coverage.summary().startswith(f"parcel: 1 of {len(PARCEL.rows)} rows taken")
    coverage.write(tmp_path / "rows.json")
    assert '"Pack.packed": 2' in (tmp_path / "rows.json").read_text()


def test_a_row_that_leads_nowhere_new_is_counted_too() -> None:
    lines = lines_of({"A": [on("x", go("B"), why="")], "B": [on("x", end("e", "C"), why="")]})
    table = Table("t", ("A", "B", "C"), "C", (), lines)
    with RowCoverage(table) as coverage:
        play(table, row_scripts(table)[0])
    assert (coverage.share, coverage.missed) == (1.0, [])


# The package


def test_the_public_names_are_what_all_says() -> None:
    names = fsm_agent.testing.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in names:
        assert getattr(fsm_agent.testing, name) is not None
    assert not hasattr(fsm_agent.testing, "nothing")


@pytest.mark.slow
def test_no_name_loads_hypothesis_or_pytest() -> None:
    names = "INVARIANTS, RowCoverage, ScriptedServer, row_scripts"
    code = f"import sys\nfrom fsm_agent.testing import {names}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {module.split(".")[0] for module in done.stdout.split()}
    assert not loaded & {"hypothesis", "pytest", "_pytest", "openai", "anthropic"}
