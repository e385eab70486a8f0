"""What turns would do under other limits, predicted and then measured."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.backtest import Backtest, predict
from fsm_agent.backtest.predict import Events, Observed, best_order, draw, forecast, observe
from fsm_agent.composition.turn_wiring import MACHINE, TURN, limits_for
from fsm_agent.errors import ConfigError
from tests.helpers.command_line import Cli
from tests.helpers.recorded_turns import record
from tests.helpers.sample import sampled

MANY, FEW = 600, 60
POINT = 0.01


def observed(home: Path, settings: Mapping[str, Any] | None = None) -> tuple[list[Observed], list[Any]]:
    return observe(Backtest.of_home(home), settings or {})


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("few")
    record(home, FEW, 7, each=1)
    return home


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("many")
    record(home, MANY, 11, each=1)
    return home


CHANGES: dict[str, tuple[Mapping[str, Any], int]] = {
    "retries": ({"api_max_retries": 1}, 5), "more iterations": ({"max_iterations": 16}, 5),
    "empties": ({"empty": {"retries": 0, "nudges": 0}}, 5),
    "continuations": ({"length": {"max_continuations": 0}}, 5), "strikes": ({"invalid_tool_strikes": 1}, 5),
    "few iterations": ({"max_iterations": 3}, 10),
}  # fmt: skip
"""Settings, and the points of a hundred that a prediction may be off."""


@pytest.mark.slow
@pytest.mark.parametrize("change", sampled(CHANGES, "predictions"))
def test_a_prediction_is_near_what_other_turns_do(many: Path, tmp_path: Path, change: str) -> None:
    """600 other turns, of another seed: mean requests within 15 %, shares of exits within ``points``. With few
    iterations it is farther off: ten requests of the recorded 1,600 were made without an iteration left, so
    what a model answers then is hardly known."""
    settings, points = CHANGES[change]
    found = forecast(*observed(many, settings))
    record(tmp_path, MANY, 99, settings, each=1)
    real, _ = observed(tmp_path)
    requests = sum(one.requests for one in real) / len(real)
    assert found.requests.value == pytest.approx(requests, rel=0.15)
    exits = Counter(str(one.rows[-1].exit) for one in real)
    for name in {*exits, *found.exits}:
        predicted = found.exits[name].value if name in found.exits else 0
        assert predicted == pytest.approx(exits[name] / len(real), abs=points * POINT), name


def test_a_limit_that_is_lower_is_kept_in_every_turn_that_is_drawn(few: Path) -> None:
    turns, limits = observed(few, {"max_iterations": 2, "budget": {"grace_call": False}})
    events, chance = Events([one.rows for one in turns], 2), random.Random(1)
    for most in limits:
        rows = draw(events, MACHINE, most, chance)
        assert rows[-1].dest == TURN.final
        assert sum("iterations" in row.spends for row in rows) <= 2


def test_probabilities_of_a_context_add_up_and_are_those_of_its_state(few: Path) -> None:
    turns, _ = observed(few)
    events = Events([one.rows for one in turns], 2)
    for one in turns:
        for number, row in enumerate(one.rows):
            shares = events.after(row.source, [before.id for before in one.rows[:number]])
            assert sum(shares.values()) == pytest.approx(1)
            assert shares[row.event] > 0
            assert all((row.source, event) in TURN.by_event for event in shares)
    assert events.after("CallLLM", ["an unknown row"]) == events.after("CallLLM", [])


def test_the_context_is_as_long_as_helps() -> None:
    """Events that depend on nothing need no rows; of a state that alternates, the last row tells all."""
    answer, again = TURN.row("CallLLM.text"), TURN.row("CallLLM.tools")
    chance = random.Random(1)
    assert best_order([[chance.choice((answer, again))] * 1 for _ in range(200)]) == 0
    assert best_order([[answer, again] * 5 for _ in range(20)]) >= 1


def test_the_same_seed_predicts_the_same(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "TURNS", 160)
    turns, limits = observed(few, {"api_max_retries": 1})
    found = forecast(turns, limits, seed=3)
    assert forecast(turns, limits, seed=3) == found
    assert found.requests.low <= found.requests.value <= found.requests.high
    assert sum(one.value for one in found.exits.values()) == pytest.approx(1)


def test_limits_are_those_of_the_settings(few: Path) -> None:
    _, limits = observed(few, {"max_iterations": 3, "api_max_retries": 1})
    expected = limits_for({"max_iterations": 3, "api_max_retries": 1})
    assert all(one["iterations"] == expected["iterations"] == 3 for one in limits)
    assert all(one["retries"] == expected["retries"] == 0 for one in limits)


@pytest.mark.slow
def test_the_report(few: Path, cli: Cli) -> None:
    words = ("predict", "--home", str(few), "--set", "api_max_retries=1")
    out = cli.ok(*words)
    assert out.startswith(f"api_max_retries = 1, predicted from {FEW} recorded turns\n")
    assert "Few turns to learn from: the real uncertainty is larger than the interval." in out
    data = json.loads(cli.ok(*words, "--json"))
    assert data["proved"]["requests"] == limits_for({"max_iterations": 8, "api_max_retries": 1})["attempts"]
    assert data["predicted"]["requests"]["value"] < data["recorded"]["requests"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--set", "max_iterations=-1"), "max_iterations"),
        (("--table", "no-such-revision"), "cannot be compared"),
        (("--days", "nan"), "--days is out of range; given: nan; allowed: more than 0, less than 100,000"),
    ],
)
def test_bad_input_is_one_line(few: Path, cli: Cli, words: tuple[str, ...], line: str) -> None:
    err = cli.refused("predict", "--home", str(few), *words)
    assert line in err
    assert err.count("\n") == 1


def test_nothing_to_learn_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no recorded turn to learn from"):
        observed(tmp_path)
