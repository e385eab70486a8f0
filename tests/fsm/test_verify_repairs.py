"""A proof that fails proposes repairs, and each of them is proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fsm_agent.fsm.table import Counter, Line, Rung, Table, end, go, left, lines_of, on
from fsm_agent.fsm.verify import examine, verify_table
from fsm_agent.fsm.verify.faults import repairs
from fsm_agent.fsm.verify.reach import TimeLimit, endless
from fsm_agent_states.table import TURN


def with_line(table: Table, at: int, line: Line) -> Table:
    return replace(table, lines=(*table.lines[:at], line, *table.lines[at + 1 :]))


def unspent(table: Table) -> Iterator[tuple[str, Table]]:
    """Each table that lacks one spending, and the words that give it back."""
    for at, line in enumerate(table.lines):
        for number, rung in enumerate(line.ladder):
            for counter in rung.spends:
                kept = tuple(name for name in rung.spends if name != counter)
                ladder = (*line.ladder[:number], replace(rung, spends=kept), *line.ladder[number + 1 :])
                row = f"{line.source}.{line.event}" + (f"/{number + 1}" if len(line.ladder) > 1 else "")
                yield f"{row}: spend {counter}", with_line(table, at, replace(line, ladder=ladder))


def small(*lines: tuple[str, tuple[Rung, ...], tuple[str, ...], str]) -> Table:
    return Table("small", ("A", "F"), "F", (Counter("n"), Counter("m")), lines_of({"A": lines}))


@pytest.mark.slow
def test_a_turn_that_no_longer_ends_is_repaired_by_the_original_or_less() -> None:
    endless_turns = 0
    for words, table in unspent(TURN):
        proof = examine(table)
        if not proof.faults or endless_turns == 6:
            continue
        fault = proof.faults[0]
        first = repairs(table, proof, fault, endless(), most=1)[0]
        assert first.size == 1, words
        assert examine(first.table).faults == ()
        endless_turns += 1
    assert endless_turns == 6


AGAIN, OVER = Rung("again", "A", left("n"), ("n",)), end("over", "F")
BACK, UNTESTED = Rung("back", "A", left("m"), ("m",), ("n",)), replace(AGAIN, needs=go("A").needs)
ENDS = on("e", AGAIN, OVER, why="")
LAST = "add a last rung that ends the turn"
REPAIRED = {
    "a hole": (small(on("e", AGAIN, why="")), f"A.e: {LAST}"),
    "a free loop": (small(ENDS, on("f", go("A"), why="")), f'A.f: need left("n") and spend it; {LAST}'),
    "a reset": (small(ENDS, on("f", BACK, OVER, resets=["m"], why="")), "A.f/1: let the line not reset m"),
    "not tested": (small(on("e", UNTESTED, why=""), on("stop", OVER, why="")),
                   f'A.e: need left("n"); {LAST}'),
}  # fmt: skip


@pytest.mark.parametrize("fault", REPAIRED)
def test_each_kind_of_fault_has_its_repair(fault: str) -> None:
    table, words = REPAIRED[fault]
    proof = examine(table)
    found = [repair for fault in proof.faults for repair in repairs(table, proof, fault, endless())]
    assert words in [repair.words for repair in found]
    for repair in found:
        assert len(examine(repair.table).faults) < len(proof.faults)


def test_repairs_are_printed_under_their_finding_and_are_data() -> None:
    table = small(on("e", Rung("again", "A", left("n")), end("over", "F"), why=""))
    report = verify_table(table)
    check = next(check for check in report.checks if check.findings)
    assert check.repairs[0][0] == "A.e/1: spend n"
    assert "possible repairs, each proved:\n          1. A.e/1: spend n" in report.render()
    late = verify_table(table, within=TimeLimit(0))
    assert not any(any(check.repairs) for check in late.checks)
