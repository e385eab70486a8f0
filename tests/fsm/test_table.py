"""The guard language, the expansion of decision lists, and the table of a turn as it was drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.conversation.result import ExitReason
from fsm_agent.errors import TableError
from fsm_agent.fsm.table import (
    ALWAYS,
    NEVER,
    AllOf,
    AnyOf,
    Below,
    Counter,
    Guard,
    Rung,
    Spent,
    Table,
    all_of,
    any_of,
    end,
    go,
    left,
    lines_of,
    on,
)
from fsm_agent.fsm.verify import examine
from fsm_agent_states.table import BLOCK, TURN
from tests.helpers.processes import printed
from tests.helpers.tables import Assigned

PROOFS = Path(__file__).parents[2] / "diagrams" / "turn.proofs.md"


def test_guards_mean_what_their_operators_say() -> None:
    one, two = left("a"), left("b")
    both, either = one & two, any_of((one, two))
    for a, b in ((0, 0), (0, 2), (1, 1), (2, 0)):
        turn = Assigned({"a": a, "b": b}, {"a": 1, "b": 2})
        assert one.holds(turn) is (a < 1)
        assert (~one).holds(turn) is (a >= 1)
        assert both.holds(turn) is (a < 1 and b < 2)
        assert either.holds(turn) is (a < 1 or b < 2)
        assert (~both).holds(turn) is not both.holds(turn)
        assert (~either).holds(turn) is not either.holds(turn)


def test_guards_read_as_words() -> None:
    one, two = left("free_rounds"), left("retries", "patience", yes="not yet retried", no="already retried")
    assert (one & ~two).label == "free rounds left and already retried"
    assert any_of((~one, two)).label == "(no free rounds left or not yet retried)"
    assert (ALWAYS.label, NEVER.label) == ("always", "never")
    assert left("continuations", "acks").label == "continuations (acks) left"


def test_conjunctions_drop_what_is_decided() -> None:
    one, two = left("a"), left("b")
    assert all_of((one, ~one)) == NEVER
    assert all_of((one, any_of((one, two)))) == one
    assert all_of((one, any_of((~one, two)))) == all_of((one, two))
    assert all_of((one, one)) == one


def test_a_ladder_expands_to_rows_that_exclude_each_other() -> None:
    rows = TURN.by_event["ClassifyError", "server_error"]
    assert [(row.rung, row.guard.label) for row in rows] == [
        ("retry", "retries left"),
        ("fallback", "no retries left and fallbacks left"),
        ("⇥ api_retries_exhausted", "no retries left and no fallbacks left"),
    ]


@pytest.mark.behaviour("FSM-01")
def test_the_turn_has_the_size_that_its_page_of_proofs_says() -> None:
    page, proof = PROOFS.read_text(encoding="utf-8"), examine(TURN)
    sizes = f"{len(TURN.states)} states, {len(TURN.by_event)} (state, event) pairs, {len(TURN.rows)} rows"
    assert f"{sizes}, {len(TURN.counters)} counters;" in page
    assert f"| {proof.regions} regions of {len(TURN.by_event)} pairs |" in page
    assert f" locations, {len(proof.with_caps.graph.edges)} edges |" in page


def test_every_exit_reason_is_used_and_no_other() -> None:
    assert {row.exit for row in TURN.rows if row.exit} == {str(reason) for reason in ExitReason}
    assert all((row.exit is None) == (row.dest != TURN.final) for row in TURN.rows)


def test_a_line_resets_in_every_rung_that_goes_on() -> None:
    going_on, ending = TURN.by_event["CallLLM", "cut_text"]
    assert going_on.resets == BLOCK
    assert ending.resets == ()


def test_macros_leave_every_state_but_the_final_one() -> None:
    for event in ("cancelled", "crashed"):
        assert {row.source for row in TURN.rows if row.event == event} == {*TURN.states} - {TURN.final}
    assert TURN.events("Compress")[-3:] == ("outgrown", "cancelled", "crashed")


def table(*ladder: Rung, event: str = "go") -> Table:
    return made(event, ladder, "A", "B", "End", counters=[Counter("n")])


def made(
    event: str, ladder: Iterable[Rung], *states: str, counters: Iterable[Counter] = (), **more: Any
) -> Table:
    lines = lines_of({"A": [on(event, *ladder, why="")]})
    return Table("t", states, states[-1], tuple(counters), lines, **more)


OVER = end("over", "E")
AGAIN = Rung("again", "A", left("n"), ("n",))
FLAG = Counter("f", flag=True), Counter("n")
SAME_IDS = lines_of({"A": [on("x", AGAIN, OVER, why=""), on("x/1", OVER, why="")]})
TWICE = lines_of({"A": [on("x", end("r", "E"), why="")] * 2})
FROM_THE_END = lines_of({"E": [on("x", go("A"), why="")]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: table(go("C")), "A.go: rung '→ C' leads to unknown state 'C'"),
        (lambda: table(Rung("x", "B", left("m"))), "names unknown counter(s) m"),
        (lambda: table(Rung("x", "End")), "exactly the rungs to End carry an exit reason"),
        (lambda: table(), "the ladder has no rung"),
        (lambda: Table("t", ("A", "A"), "A", (), ()), "states must be distinct"),
        (lambda: Table("t", ("A",), "B", (), ()),
         "the final state 'B' is not one of the states; there are A"),
        (lambda: Table("t", ("A", "E"), "E", (), FROM_THE_END), "'E' is not a state that can be left"),
        (lambda: Table("t", ("A", "E"), "E", (), TWICE), "two lines for the same event"),
        (lambda: Table("t", ("E",), "E", (), ()), "the first state is where a turn begins"),
        (lambda: made("x", [OVER], "A", "E", counters=[Counter("n")] * 2), "counters must be distinct: n, n"),
        (lambda: made("x", [OVER], "A", "E", macros=(("stop", {"B": "stopped"}),)),
         "stop has exits of states that do not exist: B"),
        (lambda: made("x", [replace(AGAIN, needs=left("n", "f")), OVER], "A", "E", counters=FLAG),
         "compares another counter with the flag(s) f"),
        (lambda: Table("t", ("A", "E"), "E", (Counter("n"),), SAME_IDS), "two rows have the id 'A.x/1'"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused_with_the_place(make: object, message: str) -> None:
    with pytest.raises(TableError) as raised:
        make()
    assert message in str(raised.value)


def generous(kind: type[Guard], *parts: object) -> Guard:
    """A guard of a class that inherits from ``kind`` and always holds, whatever its parts say."""
    made: Guard = type("Generous", (kind,), {"__slots__": (), "holds": lambda guard, turn: True})(*parts)
    return made


FEW = left("n")


@pytest.mark.parametrize(
    "needs",
    [
        generous(Below, "n", "n", "n left", "no n left"), generous(Spent, FEW), generous(AllOf, (FEW,)),
        generous(AnyOf, (FEW,)), Spent(generous(Below, "n", "n", "n left", "no n left")),
        AllOf((FEW, generous(Spent, FEW))), AnyOf((FEW, AllOf((FEW, generous(AnyOf, (FEW,)))))),
    ],
    ids=repr,
)  # fmt: skip
def test_a_guard_that_inherits_from_one_of_the_language_is_refused(needs: Guard) -> None:
    """It could hold when the proofs say that it does not: a loop that never ends would pass them all."""
    with pytest.raises(TableError, match=r"^t: A.go: rung 'x': a guard of type Generous cannot be proved; "):
        table(Rung("x", "A", needs, ("n",)), end("over", "End"))


def taken(rungs: Iterable[Rung], *counters: Counter, resets: tuple[str, ...] = ()) -> Table:
    lines = lines_of({"A": [on("x", *rungs, end("over", "End"), resets=resets, why="")]})
    return Table("t", ("A", "End"), "End", counters, lines)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: taken([Rung("x", "A", FEW, ("n",))], n, Counter("m"), resets=("n",)),
        lambda n: taken([Rung("x", "A", left("m"), ("m",), ("n",))], n, Counter("m")),
        lambda n: taken([Rung("x", "A", left("n", "most"), ("n",))], n),
        lambda n: taken([Rung("x", "A", left("m", "n"), ("m",))], n, Counter("m")),
        lambda n: taken([Rung("x", "A", FEW, ("n",))], replace(n, flag=True)),
    ],
)
def test_what_could_make_another_turn_of_a_lowered_limit_is_refused(make: Callable[[Counter], Table]) -> None:
    make(Counter("n"))
    words = "counter 'n' is exhaustible, so it must be no flag, no row may reset"
    with pytest.raises(TableError, match=words):
        make(Counter("n", exhaustible=True))


def test_a_counter_that_may_be_exhausted_is_proved_as_any_other() -> None:
    rungs = [Rung("x", "A", FEW, ("n",))]
    plain, marked = taken(rungs, Counter("n")), taken(rungs, Counter("n", exhaustible=True))
    assert (plain, plain.digest) == (marked, marked.digest)
    assert [one.exhaustible for one in (plain, marked, TURN)] == [frozenset(), {"n"}, {"fallbacks"}]


def test_the_digest_follows_the_rows() -> None:
    assert table(end("x", "End")).digest == table(end("x", "End")).digest
    assert table(end("x", "End")).digest != table(end("y", "End")).digest


def test_a_table_needs_no_state_machine_library() -> None:
    printed("-c", "import sys, fsm_agent.fsm.table; sys.exit('transitions' in sys.modules)")
