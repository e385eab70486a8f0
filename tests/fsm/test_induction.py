"""Promises of a custom table, proved by induction: a door that must never stay open."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from fsm_agent.diagram.proof import proof_page
from fsm_agent.fsm.properties import SAME, Change, Demand, Promises, VisitChange, may
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on
from fsm_agent.fsm.verify import verify_table


@dataclass(frozen=True)
class Door:
    open: bool = False


AGAIN = Rung("again", "Knock", left("tries"), ("tries",))
KNOCK = [on("heard", Rung("enter", "Room"), why=""), on("nobody", AGAIN, end("gone", "Left"), why="")]
LINES = lines_of({"Knock": KNOCK, "Room": [on("done", end("visited", "Left"), why="")]})
PROMISES = Promises(
    name="no door is left open",
    starts=(Door(),),
    visits=(
        VisitChange("Knock", (may(open=(True,)),), ("heard",)),
        VisitChange("Knock", (may(),)),
        VisitChange("Room", (may(open=(SAME,)),)),
        VisitChange("Left", (may(open=(False,)),), after=frozenset({"visited"})),
        VisitChange("Left", (may(),)),
    ),
    demands=(
        Demand("Room", "the door is open", lambda door: door.open),
        Demand("", "the door is shut", lambda door: not door.open),
    ),
)
STATES, COUNTERS = ("Knock", "Room", "Left"), (Counter("tries"),)
HOUSE = Table("house", STATES, "Left", COUNTERS, LINES, promises=lambda: PROMISES)


def findings(promises: Promises) -> tuple[str, ...]:
    return verify_table(replace(HOUSE, promises=lambda: promises), small=False).checks[-1].findings


def test_a_promise_is_a_line_of_the_report_with_its_obligations_and_its_time() -> None:
    report = verify_table(HOUSE, small=False)
    check = report.checks[-1]
    assert (check.name, check.findings) == ("no door is left open", ())
    assert check.extent == "6 places, 10 obligations"
    line = f"no door is left open, every configuration: 6 places, 10 obligations, {check.seconds:.2f} s"
    assert f"ok    {line}" in report.render()
    without = verify_table(replace(HOUSE, promises=None), small=False)
    assert len(without.checks) == len(report.checks) - 1
    assert HOUSE.digest == replace(HOUSE, promises=None).digest


def test_a_broken_promise_names_the_row_and_the_shortest_run() -> None:
    forgotten = VisitChange("Left", (may(),))
    assert findings(replace(PROMISES, visits=(forgotten, *PROMISES.visits))) == (
        "Knock.heard: leaves Door(open=True) where it found Door(open=False); at the end it must be that the door"
        " is shut (shortest run: Knock.heard → Room.done); change what this visit leaves, or where the row leads",
    )


def test_a_start_can_be_wrong() -> None:
    demand = Demand("Knock", "the door is shut", lambda door: not door.open)
    [first, *_] = findings(replace(PROMISES, starts=(Door(True),), demands=(demand,)))
    words = "Knock: leaves Door(open=True) where it found nothing else; on entry to Knock it must be"
    assert first.startswith(words)


def promising(state: str, change: Change, *more: Any, **options: Any) -> Promises:
    return replace(PROMISES, visits=(VisitChange(state, (change,), *more, **options),))


@pytest.mark.parametrize(
    ("promises", "told"),
    [
        (replace(PROMISES, visits=PROMISES.visits[1:3]), "Left: nothing is declared of what this visit does"),
        (promising("Cellar", may()), "Cellar: no state has this name; allowed: Knock, Room, Left"),
        (promising("Room", may(), ("lost",)),
         "Room.lost: the state does not declare this event; allowed: done"),
        (promising("Room", may(), after={"luck"}), "luck: no counter, line or exit of the table house"),
        (promising("Room", may(window=(1,))), "window: the values of Room have no such field; allowed: open"),
        (replace(PROMISES, demands=(Demand("Attic", "x", bool),)), "Attic: no state has this name"),
    ],
)  # fmt: skip
def test_promises_that_do_not_fit_the_table(promises: Promises, told: str) -> None:
    assert any(finding.startswith(told) for finding in findings(promises)), findings(promises)


def test_the_proofs_page_prints_what_is_promised() -> None:
    page = proof_page(HOUSE)
    assert "| no door is left open | every configuration | 6 places, 10 obligations | holds |" in page
    assert "- On entry to Room: the door is open.\n- At the end: the door is shut.\n" in page
    assert "| Knock | heard |  | open yes |\n| Knock | any |  | what it was |\n" in page
    assert "| Left | any | visited | open no |" in page
    assert "promise" not in proof_page(replace(HOUSE, promises=None))


def test_a_broken_promise_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    forgotten = replace(PROMISES, visits=(VisitChange("Left", (may(),)), *PROMISES.visits))
    for name, promises, code in (("good", PROMISES, 0), ("bad", forgotten, 1)):
        module = ModuleType(f"own_house_{name}")
        module.TABLE = replace(HOUSE, promises=lambda promises=promises: promises)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        ended, out, _ = cli("verify", f"{module.__name__}:TABLE")
        assert (ended, "FAIL  no door is left open" in out) == (code, bool(code))
