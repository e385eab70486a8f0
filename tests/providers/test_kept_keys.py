"""Keys that a keyring keeps, in every place where a key can be given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from fsm_agent import Agent
from fsm_agent.errors import ConfigError
from fsm_agent.providers import kept_keys
from fsm_agent.support.installation import install_command
from fsm_agent.testing import ScriptedServer, status, text
from tests.helpers.file_keyring import FileKeyring
from tests.helpers.harness import table

KEY, OTHER = "sk-from-the-keyring-0123456789", "sk-another-one-0123456789"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A keyring with two keys."""
    file, before = tmp_path / "keyring.json", keyring.get_keyring()
    file.write_text(json.dumps({"openai me": KEY, "a/b other@example.org": OTHER}))
    monkeypatch.setenv("FILE_KEYRING", str(file))
    keyring.set_keyring(FileKeyring())
    yield file
    keyring.set_keyring(before)


def sent(server: ScriptedServer) -> list[str]:
    return [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests]


def test_a_key_may_be_given_by_its_place_in_the_keyring(kept: Path, home: Path) -> None:
    keys = ["keyring:openai/me", "keyring:a/b/other@example.org"]
    with table([status(401), text("done")], api_key=keys) as (agent, server, *_):
        assert agent.chat("go") == "done"
    assert sent(server) == [KEY, OTHER]
    stored = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert KEY.encode() not in stored


def test_the_config_file_and_the_environment_name_one(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer([text("one"), status(401), text("two"), text("three")]) as server:
        table = f'[providers.work]\nbase_url = "{server.url}"\napi_key = "keyring:openai/me"\n'
        back = f'fallbacks = [{{ model = "openai:b", base_url = "{server.url}", api_key = "keyring:a/b/other@example.org" }}]'
        (tmp_path / "config.toml").write_text(f"{back}\n{table}")
        for model, said in (("work:a", "one"), ("work:a", "two")):
            agent = Agent(model, toolsets=[], home=tmp_path)
            assert agent.chat("go") == said
            agent.close()
        monkeypatch.setenv("OPENAI_API_KEY", "keyring:openai/me")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        agent = Agent("openai:a", toolsets=[], home=tmp_path, fallbacks=[])
        assert agent.chat("go") == "three"
        agent.close()
    assert sent(server) == [KEY, KEY, OTHER, KEY]


def test_the_value_of_a_header_may_be_kept_there(kept: Path) -> None:
    settings = {"request": {"extra_headers": {"X-Team": "keyring:openai/me"}}}
    with table([text("done")], model="local:m", settings=settings) as (agent, server, *_):
        assert agent.chat("go") == "done"
    assert server.requests[0].headers["x-team"] == KEY


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("keyring:", r"names no key of a keyring; given: keyring:; allowed: keyring:<service>/<name>$"),
        ("keyring:openai", r"names no key of a keyring"),
        ("keyring:openai/you", r"the keyring has no such key; given: keyring:openai/you; allowed: keyring set openai you$"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_there_is_one_line(given: str, says: str, kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        Agent("openai:gpt-4o", api_key=given, home=tmp_path)


def test_a_keyring_that_gives_nothing_is_one_line(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write_text("locked")
    line = r"^the keyring cannot be read \(PermissionError\); given: keyring:a/b; "
    with pytest.raises(ConfigError, match=line):
        Agent("openai:gpt-4o", api_key="keyring:a/b", home=tmp_path)
    keyring.set_keyring(NoKeyring())
    with pytest.raises(ConfigError, match="no keyring that can be used; given: keyring:a/b; allowed: a key"):
        Agent("openai:gpt-4o", api_key="keyring:a/b", home=tmp_path)
    monkeypatch.setattr(kept_keys, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(f"allowed: {install_command('keyring')}")):
        Agent("openai:gpt-4o", api_key="keyring:a/b", home=tmp_path)


def command(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env |= {"PYTHON_KEYRING_BACKEND": "tests.helpers.file_keyring.FileKeyring", **environment}
    return subprocess.run(
        [sys.executable, "-m", "fsm_agent.cli", *words, "--home", str(home)],
        env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_line_takes_one_and_the_doctor_says_where_keys_are_from(
    kept: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with ScriptedServer([text("done")]) as server:
        given = "--model", "openai:gpt-4o", "--base-url", server.url, "--api-key", "keyring:openai/me"
        ran = command(home, "run", "go", "--json", *given)
    assert (json.loads(ran.stdout)["final_response"], sent(server)) == ("done", [KEY])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[providers.work]\nbase_url = "https://llm.example.org/v1"\napi_key = "keyring:openai/me"\n'
    )
    told = command(home, "doctor", OPENAI_API_KEY=OTHER).stdout
    [line] = [line for line in told.splitlines() if " keys " in line]
    assert "[providers.work]=*** (keyring:openai/me)" in " ".join(told.split())
    assert "OPENAI_API_KEY=*** (the environment)" in " ".join(told.split())
    assert line.startswith("ok")
    told = command(home, "doctor", OPENAI_API_KEY="keyring:openai/nobody").stdout
    assert "problem  keys           OPENAI_API_KEY: the keyring has no such key" in told
    assert KEY not in told
    assert OTHER not in told
