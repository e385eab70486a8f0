"""A pool of keys: which one is used, how long a failed one rests, what a refresh can do."""

from __future__ import annotations

import asyncio
import random

import pytest

from fsm_agent.providers.credentials import KeyPool
from fsm_agent.settings.model import Credential

KEYS = ("a", "b", "c")


def started(pool: KeyPool, turns: int) -> str:
    used = []
    for now in range(turns):
        pool.new_turn(float(now))
        used.append(asyncio.run(pool.key()))
    return "".join(used)


@pytest.mark.parametrize(
    ("strategy", "expected"), [("fill_first", "aaaa"), ("round_robin", "abca"), ("least_used", "abca")]
)
def test_the_strategies(strategy: str, expected: str) -> None:
    assert started(KeyPool(KEYS, Credential(strategy=strategy)), 4) == expected  # type: ignore[arg-type]


def test_a_random_choice_can_be_repeated() -> None:
    figures = Credential(strategy="random")
    first = started(KeyPool(KEYS, figures, random.Random(7)), 20)
    assert first == started(KeyPool(KEYS, figures, random.Random(7)), 20)
    assert set(first) == set(KEYS)


@pytest.mark.behaviour("CRED-05")
@pytest.mark.parametrize(
    ("failure", "retry_after", "rest"),
    [("auth", None, 300), ("rate_limit", None, 3600), ("billing", None, 3600), ("rate_limit", 42.0, 42)],
)
def test_a_failed_key_rests(failure: str, retry_after: float | None, rest: float) -> None:
    pool = KeyPool(["a", "b"], Credential())
    pool.new_turn(0)
    assert pool.rotate(0, failure, retry_after)
    assert pool.others(rest - 1) == 0
    assert pool.others(rest) == 1


def test_a_dead_key_never_comes_back() -> None:
    pool = KeyPool(["a", "b"], Credential())
    assert pool.rotate(0, "auth_permanent", None)
    assert pool.others(1e12) == 0


def test_without_another_key_there_is_no_rotation() -> None:
    assert not KeyPool(["a"], Credential()).rotate(0, "rate_limit", None)
    assert not KeyPool(None, Credential()).rotate(0, "rate_limit", None)


@pytest.mark.behaviour("ERR-07")
def test_async_sources_and_refreshes_are_bounded_by_turn() -> None:
    class Source:
        renewed = 0

        async def get(self) -> str:
            return f"key-{self.renewed}"

        async def refresh(self) -> bool:
            self.renewed += 1
            return True

    async def scenario() -> None:
        pool = KeyPool(Source(), Credential())
        assert pool.possible_rekeys == 2
        pool.new_turn(0)
        for number in (1, 2):
            assert pool.refreshable()
            assert await pool.refresh() == ""
            assert await pool.key() == f"key-{number}"
        assert not pool.refreshable()
        pool.new_turn(1)
        assert pool.refreshable()

    asyncio.run(scenario())


def test_a_refresh_that_raises_says_why() -> None:
    class Source:
        def get(self) -> str:
            return "k"

        def refresh(self) -> None:
            raise ConnectionError("no route")

    assert "no route" in asyncio.run(KeyPool(Source(), Credential()).refresh())
