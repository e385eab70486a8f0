"""Limits on the command line: given to a turn, bounded by ``verify``, shown by ``doctor``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.providers.catalog import price_of
from tests.helpers.command_line import Cli

UNKNOWN = ("--set", 'prices={"offline:demo": {"input": 1, "output": 1}}')


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        (("--max-tokens", "100"), "limits.tree.tokens", "token_limit"),
        (("--max-cost", "0.0000001", *UNKNOWN), "limits.tree.usd", "cost_limit"),
        (("--max-seconds", "0.000001"), "limits.tree.seconds", "time_limit"),
    ],
)
def test_a_turn_of_the_command_line_is_limited(
    options: tuple[str, ...], name: str, reason: str, cli: Cli
) -> None:
    code, out, _ = cli("run", "hello", "--json", "--model", "offline:demo", *options)
    said = json.loads(out)
    assert code == 3
    assert said["turn_exit_reason"] == reason
    assert f": {name} is " in said["error"]
    assert said["limit"]["scope"] == "tree"


def test_verify_bounds_what_a_turn_can_cost(cli: Cli) -> None:
    chain = ("--model", "openai:gpt-5-mini", "--fallback", "openai:gpt-4.1")
    sets = ("--set", "max_iterations=10", "--set", "limits.day.usd=3")
    out = cli.ok("verify", "--time", "0.1", "--json", *chain, *sets)
    found: dict[str, Any] = json.loads(out)
    money, requests = found["money"], found["requests"]
    assert found["limits"]["fallbacks"] == 1
    mini, large = money["models"]["openai:gpt-5-mini"], money["models"]["openai:gpt-4.1"]
    price = price_of("gpt-4.1", "openai")
    assert price is not None
    assert large == pytest.approx(price.most(1_047_576, 32_768))
    most = {name: count * max(mini, large) for name, count in requests.items()}
    assert money["bounds"] == pytest.approx(most)
    assert money["limits"] == {"limits.day.usd": 3}


def test_verify_says_what_is_not_known(cli: Cli) -> None:
    chain = ("-m", "openai:gpt-5-mini", "--fallback", "openrouter:any/model")
    said = cli.ok("verify", "--time", "0.1", *chain)
    assert "  a request to openrouter:any/model: not known\n" in said
    assert "  a turn alone: not known\n" in said
    assert "Money" not in cli("verify", "--time", "0.1")[1]


def test_doctor_shows_the_limits_and_what_is_missing(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        (line,) = (line for line in cli("doctor")[1].splitlines() if re.match(r"\w+ +limits ", line))
        return line

    home.mkdir()
    config, model = home / "config.toml", 'model = "openrouter:any/model"\n[settings.limits.day]\nusd = 5\n'
    assert "none in money, tokens or time" in told()
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    config.write_text(f"{model}tokens = 1000000\n")
    assert "limits.day.usd = 5.0, limits.day.tokens = 1,000,000" in told()
    assert "set prices for openrouter:any/model" in told()
    config.write_text(f'{model}[settings.prices."openrouter:any/model"]\ninput = 1\noutput = 2\n')
    assert told().startswith("ok ")
