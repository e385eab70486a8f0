"""Waits before the next attempt: their figures, the provider's wish, and repeatable jitter."""

from __future__ import annotations

import random

import pytest

from fsm_agent.runtime.clock import Backoff, Kind


class Highest(random.Random):
    """Jitter at its top."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Lowest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


FIGURES = (
    ("exception", 1, 2, 3), ("exception", 2, 4, 6), ("exception", 3, 8, 12), ("exception", 20, 60, 90),
    ("exception", 5_000, 60, 90), ("invalid", 1, 5, 7.5), ("invalid", 2, 10, 15), ("invalid", 3, 20, 30),
    ("invalid", 9, 120, 180), ("rebuild", 1, 4, 4), ("rebuild", 3, 6, 6), ("rebuild", 9, 8, 8),
    ("overflow", 1, 2, 2), ("overflow", 3, 2, 2), ("empty", 1, 0.1, 0.1), ("empty", 2, 0.2, 0.2),
    ("empty", 8, 1, 1),
)  # fmt: skip


@pytest.mark.behaviour("FSM-13", "BACK-03", "TR-02", "BACK-01", "BACK-01b", "BACK-02", "BACK-06")
def test_the_figures_of_every_kind() -> None:
    for kind, attempt, low, high in FIGURES:
        assert Backoff(rng=Lowest()).seconds(kind, attempt) == pytest.approx(low), (kind, attempt)
        assert Backoff(rng=Highest()).seconds(kind, attempt) == pytest.approx(high), (kind, attempt)
        assert low <= Backoff().seconds(kind, attempt) <= high, (kind, attempt)


@pytest.mark.behaviour("BACK-05")
@pytest.mark.parametrize("kind", ["exception", "invalid", "rebuild", "overflow", "empty"])
@pytest.mark.parametrize(("asked", "waited"), [(0, 0), (1.5, 1.5), (600, 600), (86_400, 600), (-3, 0)])
def test_the_providers_wish_wins_up_to_the_cap(kind: Kind, asked: float, waited: float) -> None:
    assert Backoff().seconds(kind, 3, asked) == waited


@pytest.mark.behaviour("BACK-01b")
def test_a_seed_makes_the_jitter_repeatable() -> None:
    first = Backoff(rng=random.Random(7))
    again = Backoff(rng=random.Random(7))
    waits = [first.seconds("exception", n) for n in range(1, 6)]
    assert waits == [again.seconds("exception", n) for n in range(1, 6)]
    assert waits != [Backoff(rng=random.Random(8)).seconds("exception", n) for n in range(1, 6)]


@pytest.mark.behaviour("BACK-01")
def test_figures_come_from_the_constructor() -> None:
    still = Backoff(exception=(1, 3), invalid=(0, 0), jitter=0, retry_after_cap=5)
    assert [still.seconds("exception", n) for n in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert still.seconds("invalid", 2) == 0
    assert still.seconds("exception", 1, 100) == 5


def test_an_attempt_below_one_counts_as_the_first() -> None:
    assert Backoff(jitter=0).seconds("exception", 0) == 2
