"""``fsm-agent models``, and what ``config`` and ``doctor`` say of the model in use."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fsm_agent.cli.models import matching_models
from fsm_agent.conversation.effects import Lesson
from fsm_agent.providers.catalog import LearnedFacts
from tests.helpers.command_line import Cli

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A home where two things were learned."""
    folder = tmp_path / "home"
    LearnedFacts(folder, 7, time.time).keep(
        [Lesson("local", "phi", URL, "vision"), Lesson("openai", "gpt-5", URL, "window", 8_192)]
    )
    return str(folder)


def test_what_is_known_of_a_model_and_where_it_is_from(cli: Cli, home: str) -> None:
    out = cli.ok("models", "show", "openai:gpt-5", "--home", home)
    assert "prompts of 272,000 tokens; replies of 128,000; reads text, files, images" in out
    assert "from the catalog, litellm" in out
    assert "$1.25 in, $10 out, for a million tokens" in out
    assert f"local:phi at {URL} reads no images, as it said on {time.strftime('%Y-')}" in out
    told = cli.json("models", "show", "openai:gpt-5", "--home", home)
    assert (told["known"]["window"], told["price"]["input"]) == (272_000, 1.25)
    assert {fact["name"]: fact["value"] for fact in told["learned"]} == {"vision": 1, "window": 8_192}
    assert all(fact["until"] - fact["at"] == 7 * 86_400 for fact in told["learned"])


def test_models_that_can_be_used_here_are_listed_and_completed(
    cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    code, out, err = cli("models", "list", "--home", home)
    assert (code, {"offline:demo", "openai:gpt-5"} <= set(out.split())) == (0, True)
    assert "anthropic:" not in out
    assert "no key here for" in err
    assert "anthropic" in err
    listed = cli("models", "list", "anthropic", "--home", home)[1].split()
    assert listed
    assert all(one.startswith("anthropic:claude-") for one in listed)
    assert json.loads(cli("models", "list", "anthropic", "--json", "--home", home)[1]) == listed
    assert "openai:gpt-5-mini" in matching_models(home, "openai:gpt-5")
    assert {"openai:", "openrouter:"} <= set(matching_models(home, "open"))
    assert matching_models(home, "nobody:x") == []


def test_what_was_learned_is_forgotten(cli: Cli, home: str) -> None:
    assert "forgotten: local:phi" in cli("models", "forget", "phi", "--home", home)[1]
    err = cli.refused("models", "forget", "phi", "--home", home)
    assert err.strip() == "fsm-agent: nothing was learned of this model; given: phi; allowed: openai:gpt-5"
    assert "openai:gpt-5" in cli("models", "forget", "--home", home)[1]
    assert cli("models", "forget", "--home", home)[1] == "nothing was learned\n"


@pytest.mark.parametrize("command", [("config",), ("doctor",)])
def test_config_and_doctor_say_what_is_known_and_learned(
    cli: Cli, home: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_MODEL", "openai:gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    out = " ".join(cli(*command, "--home", home)[1].split())
    assert "prompts of 272,000 tokens" in out
    assert "from the catalog, litellm" in out
    assert f"local:phi at {URL} reads no images" in out
    assert "has room for prompts of 8,192 tokens" in out
