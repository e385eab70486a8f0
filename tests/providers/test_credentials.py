"""Keys: which one of a pool is used, how long a failed one rests, in all processes, and those that a keyring keeps."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from fsm_agent import Agent
from fsm_agent.cli import main
from fsm_agent.errors import ConfigError
from fsm_agent.providers import credentials
from fsm_agent.providers.credentials import LONGEST, RESTS, KeyPool, KeyRests, digest_of
from fsm_agent.settings import Credential
from fsm_agent.support.installation import install_command
from fsm_agent.testing import ScriptedServer, status, text
from tests.helpers.file_keyring import FileKeyring
from tests.helpers.harness import table
from tests.helpers.processes import environment, ran

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
    assert started(KeyPool(KEYS, Credential(strategy=strategy)), 4) == expected


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
async def test_async_sources_and_refreshes_are_bounded_by_turn() -> None:
    class Source:
        renewed = 0

        async def get(self) -> str:
            return f"key-{self.renewed}"

        async def refresh(self) -> bool:
            self.renewed += 1
            return True

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


def test_a_refresh_that_raises_says_why() -> None:
    class Source:
        def get(self) -> str:
            return "k"

        def refresh(self) -> None:
            raise ConnectionError("no route")

    assert "no route" in asyncio.run(KeyPool(Source(), Credential()).refresh())


FIRST, SECOND = "sk-first-0123456789abcdef", "sk-second-0123456789abcdef"
MODEL = "openai", "gpt-4o"


def turn(server: ScriptedServer, home: Path, model: str = "openai:gpt-4o", **options: Any) -> str:
    """One turn of an agent of its own; the keys that its requests had."""
    before = len(server.requests)
    with Agent(
        model, base_url=server.url, api_key=[FIRST, SECOND], toolsets=[], home=home, **options
    ) as agent:
        assert agent.run_conversation("go").completed
    names = {f"Bearer {FIRST}": "1", f"Bearer {SECOND}": "2"}
    return "".join(names[request.headers["authorization"]] for request in server.requests[before:])


def rests(home: Path, now: float | None = None) -> KeyRests:
    known = KeyRests(home, lambda: time.time() if now is None else now)
    known.refresh()
    return known


SPENT = {"message": "You exceeded your current quota", "code": "insufficient_quota"}


@pytest.mark.parametrize(("refusal", "seconds"), [(status(429, {"error": SPENT}), 3_600), (status(401), 300)])
def test_the_next_agent_begins_with_the_key_that_is_ready(
    refusal: Any, seconds: float, tmp_path: Path
) -> None:
    with ScriptedServer([refusal, *(text("done") for _ in range(4))]) as server:
        assert turn(server, tmp_path) == "12"
        assert turn(server, tmp_path) == "2"
        assert turn(server, tmp_path, "openai:gpt-4o-mini") == "1", "another model has limits of its own"
        [rest] = rests(tmp_path).all()
        assert rest.until == pytest.approx(time.time() + seconds, abs=60)
        (tmp_path / RESTS).unlink()
        assert turn(server, tmp_path) == "1"


def test_the_file_holds_no_key_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    known = rests(tmp_path)
    known.keep(*MODEL, FIRST, time.time() + 60)
    known.keep(*MODEL, "short", time.time() + 60)
    written = (tmp_path / RESTS).read_text()
    assert FIRST not in written
    assert [row["digest"] for row in json.loads(written)["rests"]] == [digest_of(FIRST)]
    assert stat.S_IMODE((tmp_path / RESTS).stat().st_mode) == 0o600


def test_what_is_over_goes(tmp_path: Path) -> None:
    rests(tmp_path, 1_000.0).keep(*MODEL, FIRST, 1_010.0)
    assert rests(tmp_path, 1_009.0).until(*MODEL, FIRST) == 1_010.0
    assert rests(tmp_path, 1_010.0).until(*MODEL, FIRST) == 0
    rests(tmp_path, 1_020.0).keep(*MODEL, SECOND, 1_030.0)
    assert digest_of(FIRST) not in (tmp_path / RESTS).read_text()


def test_no_server_and_no_clock_puts_a_key_away_for_good(tmp_path: Path) -> None:
    rests(tmp_path, 1e6).keep(*MODEL, FIRST, 1e9)
    assert rests(tmp_path, 1e6 + LONGEST - 1).until(*MODEL, FIRST) == 1e6 + LONGEST
    assert rests(tmp_path, 1e6 + LONGEST).all() == ()
    assert rests(tmp_path, 1e6 - 30).all() != (), "clocks are corrected by seconds all the time"
    assert rests(tmp_path, 1e6 - 3_600).all() == (), "the clock was set back"


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"rests": 1}', '{"rests": [1, {}, {"provider": 1}]}', "\ud800", "[" * 10_000, '{"rests": [{"a": 1}]}',
     '{"rests": [{"provider": "p", "model": "m", "digest": "d", "at": "x", "until": 9e99}]}',
     '{"rests": [{"provider": "p", "model": "m", "digest": [], "at": 1, "until": 2}]}'],
)  # fmt: skip
def test_a_file_of_anything_is_no_rest(content: str, tmp_path: Path) -> None:
    errors = "surrogateescape" if "\ud800" not in content else "surrogatepass"
    (tmp_path / RESTS).write_text(content, encoding="utf-8", errors=errors)
    assert rests(tmp_path, 1.5).all() == ()
    rests(tmp_path).keep(*MODEL, FIRST, time.time() + 60)
    assert len(rests(tmp_path).all()) == 1


def writing(home: Path, number: int) -> None:
    known = rests(home)
    for index in range(5):
        known.keep("p", f"m{number}-{index}", FIRST, time.time() + 600)


@pytest.mark.slow
def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=writing, args=(tmp_path, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(rests(tmp_path).all()) == 10


def test_a_home_that_cannot_be_written_stops_no_turn(tmp_path: Path) -> None:
    (tmp_path / RESTS).mkdir()
    with ScriptedServer([status(401), text("done")]) as server:
        assert turn(server, tmp_path) == "12"


def test_what_was_learned_and_what_rests_are_shown_and_forgotten_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    rests(tmp_path).keep(*MODEL, FIRST, time.time() + 600)
    rests(tmp_path).keep("openai", "other", SECOND, time.time() + 600)
    line = f"a key of openai:gpt-4o (digest {digest_of(FIRST)[:8]}) rests until"
    for words in (["models", "show"], ["doctor"], ["config", "show"]):
        main(words)
        assert line in " ".join(capsys.readouterr().out.split()), words
    assert main(["models", "forget", "openai:gpt-4o"]) == 0
    assert f"forgotten: {line}" in capsys.readouterr().out
    assert [rest.model for rest in rests(tmp_path).all()] == ["other"]
    assert main(["models", "forget", "openai:gpt-4o"]) == 2
    assert "allowed: openai:other" in capsys.readouterr().err
    assert main(["models", "forget"]) == 0
    assert rests(tmp_path).all() == ()


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
            with Agent(model, toolsets=[], home=tmp_path) as agent:
                assert agent.chat("go") == said
        monkeypatch.setenv("OPENAI_API_KEY", "keyring:openai/me")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with Agent("openai:a", toolsets=[], home=tmp_path, fallbacks=[]) as agent:
            assert agent.chat("go") == "three"
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
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(f"allowed: {install_command('keyring')}")):
        Agent("openai:gpt-4o", api_key="keyring:a/b", home=tmp_path)


def command(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in environment().items() if not name.endswith("_API_KEY")}
    env |= {"PYTHON_KEYRING_BACKEND": "tests.helpers.file_keyring.FileKeyring", **variables}
    return ran("-m", "fsm_agent", *words, "--home", home, env=env)


@pytest.mark.slow
def test_the_command_line_takes_one_and_the_doctor_says_where_keys_are_from(
    kept: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with ScriptedServer([text("done")]) as server:
        given = "--model", "openai:gpt-4o", "--base-url", server.url, "--api-key", "keyring:openai/me"
        done = command(home, "run", "go", "--json", *given)
    assert (json.loads(done.stdout)["final_response"], sent(server)) == ("done", [KEY])
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
