"""Limits on the command line: given to a turn, bounded by ``verify``, shown by ``doctor``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsm_agent.cli import main
from fsm_agent.cli.doctor import _limits
from fsm_agent.providers.config_file import config_of
from fsm_agent.providers.prices import price_of

OFFLINE = ("--model", "offline:demo")
UNKNOWN = ("--set", 'prices={"offline:demo": {"input": 1, "output": 1}}')


def run(home: Path, *options: str) -> int:
    return main(["run", "hello", "--json", "--home", str(home), *OFFLINE, *options])


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        (("--max-tokens", "100"), "limits.tree.tokens", "token_limit"),
        (("--max-cost", "0.0000001", *UNKNOWN), "limits.tree.usd", "cost_limit"),
        (("--max-seconds", "0.000001"), "limits.tree.seconds", "time_limit"),
    ],
)
def test_a_turn_of_the_command_line_is_limited(
    options: tuple[str, ...], name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *options) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["turn_exit_reason"] == reason
    assert f": {name} is " in said["error"]
    assert said["limit"]["scope"] == "tree"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    return tmp_path


def verified(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["verify", "--time", "0.1", "--json", *options]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("home")
def test_verify_bounds_what_a_turn_can_cost(capsys: pytest.CaptureFixture[str]) -> None:
    chain = ("--model", "openai:gpt-5-mini", "--fallback", "openai:gpt-4.1")
    found = verified(capsys, *chain, "--set", "max_iterations=10", "--set", "limits.day.usd=3")
    money, requests = found["money"], found["requests"]
    assert isinstance(money, dict)
    assert isinstance(requests, dict)
    assert found["limits"]["fallbacks"] == 1  # type: ignore[index]
    mini, large = money["models"]["openai:gpt-5-mini"], money["models"]["openai:gpt-4.1"]
    price = price_of("gpt-4.1", "openai")
    assert price is not None
    assert large == pytest.approx(price.most(1_047_576, 32_768))
    assert money["bounds"] == pytest.approx(
        {name: count * max(mini, large) for name, count in requests.items()}
    )
    assert money["limits"] == {"limits.day.usd": 3}


@pytest.mark.usefixtures("home")
def test_verify_says_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["verify", "--time", "0.1", "-m", "openai:gpt-5-mini", "--fallback", "openrouter:any/model"])
        == 0
    )
    said = capsys.readouterr().out
    assert "  a request to openrouter:any/model: not known\n" in said
    assert "  a turn alone: not known\n" in said
    assert "Money" not in _without_models(capsys)


def _without_models(capsys: pytest.CaptureFixture[str]) -> str:
    main(["verify", "--time", "0.1"])
    return capsys.readouterr().out


def test_doctor_shows_the_limits_and_what_is_missing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _limits(config_of(home)).found == "none in money, tokens or time"
    (home / "config.toml").write_text(
        'model = "openrouter:any/model"\n[settings.limits.day]\nusd = 5\ntokens = 1000000\n'
    )
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    finding = _limits(config_of(home))
    assert finding.found == "limits.day.usd = 5.0, limits.day.tokens = 1,000,000"
    assert finding.todo == "set prices for openrouter:any/model"
    (home / "config.toml").write_text(
        'model = "openrouter:any/model"\n[settings.limits.day]\nusd = 5\n'
        '[settings.prices."openrouter:any/model"]\ninput = 1\noutput = 2\n'
    )
    assert _limits(config_of(home)).ok
