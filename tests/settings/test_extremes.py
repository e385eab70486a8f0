"""Every number that a user may set is tried at its least, its most, zero and one: it is refused in a line, or turns
end as they are proved to, whatever the server says."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.settings.errors import every_setting
from fsm_agent.settings.model import Settings
from tests.helpers.extreme_settings import (
    MODEL,
    ExtremeServer,
    Number,
    numbers,
    request_bound,
    tried_alone,
    tried_together,
)

WORST = {
    "a threshold that rounds to no tokens": {
        "compression": {"threshold": 5e-324, "tiny_window": 5e-324, "small_window_floor": 5e-324}
    },
    "no time for anything": {"timeout": {"total": 5e-324}, "hook_timeout": 0, "tool": {"batch_timeout": 0}},
    "all tokens there are": {"limits": {"day": {"tokens": 10**12}, "turn": {"tokens": 10**12}}},
}
"""Settings that turns have stumbled over, or might."""


def test_the_model_of_the_settings_names_every_number() -> None:
    named = {one.name for one in numbers() if "prices" not in one.path}
    assert named == {name for name, one in every_setting().items() if "number" in one.allowed}
    assert {f"prices.{MODEL}.{one}" for one in ("input", "output", "cache_read", "cache_write")} <= {
        one.name for one in numbers()
    }


@pytest.mark.behaviour("SET-01")
@pytest.mark.parametrize("number", numbers(), ids=lambda number: number.name)
def test_what_is_no_number_or_beyond_the_range_is_refused_in_a_line(number: Number) -> None:
    assert math.isfinite(number.least)
    assert math.isfinite(number.most)
    for value in (math.nan, math.inf, -math.inf, number.least - 1, number.most * 2 + 1, 10**400, -(10**400)):
        with pytest.raises(ConfigError, match=r"^setting .* is out of range; given: .*; allowed: ") as raised:
            Settings.of(number.given(value))
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("name", WORST)
def test_a_turn_at_the_end_of_what_may_be_set_has_no_bug(name: str) -> None:
    with ExtremeServer() as server:
        assert server.faults_of(WORST[name], seed=3, turns=1) == []


@pytest.mark.slow
@pytest.mark.behaviour("SET-01")
@pytest.mark.parametrize("part", range(4))
def test_each_number_alone_at_its_extremes(part: int) -> None:
    with ExtremeServer() as server:
        for seed, (name, given) in enumerate(islice(tried_alone(), part, None, 4)):
            assert server.faults_of(given, seed, turns=1, bound=request_bound()) == [], name


@pytest.mark.slow
@pytest.mark.behaviour("SET-01")
@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in (0, 50, 100)], ids=str)
def test_numbers_together_at_their_extremes(seeds: range) -> None:
    with ExtremeServer() as server:
        for seed in seeds:
            given = tried_together(seed)
            assert server.faults_of(given, seed, bound=request_bound()) == [], (seed, given)
