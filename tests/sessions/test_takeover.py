"""A turn is taken over while its old owner lives, and stands at any point of it: see
``tests/crash/taking_over.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.taking_over import MUTANTS, Engine, Found, Point, Takeover, faults

HOW = ("at once", "end", "looked", "late")
KINDS = {"request", "intent", "reply", "move", "commit", "end"}


def taken_over(home: Path, point: Point | None, how: str, engine: Engine) -> Found:
    return asyncio.run(Takeover(home, engine, point, how).run())


def points(home: Path) -> list[Point]:
    """All that a turn comes to whose owner nobody disturbs."""
    found = taken_over(home, None, "end", Engine())
    assert (found.old, found.stored, found.ran) == ("done", True, ("a", "b"))
    assert set(found.counts) == KINDS
    return [(what, number) for what, count in found.counts.items() for number in range(1, count + 1)]


def wrong(home: Path, every: int, how: str) -> tuple[int, list[str]]:
    """(points at which the turn was taken over, what was wrong then)."""
    taken, said = 0, list[str]()
    for number, point in enumerate(points(home / "base")[::every]):
        if how == "looked" and point[0] == "commit":
            continue
        found = taken_over(home / str(number), point, how, Engine())
        taken += found.taken or how == "late"
        said += faults(found, point, how)
    return taken, said


@pytest.mark.parametrize("how", HOW)
def test_an_old_owner_does_nothing_more_at_some_points(tmp_path: Path, how: str) -> None:
    """Every point is the slow one's; this is one in thirty."""
    taken, said = wrong(tmp_path, 30, how)
    assert not said
    assert taken >= 2


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_an_old_owner_does_nothing_more_wherever_it_stands(tmp_path: Path, how: str) -> None:
    """No call that cannot be undone runs twice, and what the new owner wrote stays as it is, byte for
    byte."""
    taken, said = wrong(tmp_path, 1, how)
    assert not said
    assert taken > 90


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_an_engine_with_a_fault_in_its_fence_is_caught(tmp_path: Path, name: str) -> None:
    """At one point at least. Which one depends on which of two calls side by side is asked for first."""
    engine, how, what, says = MUTANTS[name]
    for point in points(tmp_path / "base"):
        if point[0] == what:
            said = faults(taken_over(tmp_path / str(point), point, how, engine), point, how)
            if any(says in one for one in said):
                return
    pytest.fail(f"no point shows that {name}")
