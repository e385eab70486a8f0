"""A key that one process was refused with rests in all processes of the home."""

from __future__ import annotations

import json
import multiprocessing
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.cli import main
from fsm_agent.providers.key_rests import LONGEST, RESTS, KeyRests, digest_of
from fsm_agent.testing import ScriptedServer, status, text

FIRST, SECOND = "sk-first-0123456789abcdef", "sk-second-0123456789abcdef"
MODEL = "openai", "gpt-4o"


def turn(server: ScriptedServer, home: Path, model: str = "openai:gpt-4o", **options: Any) -> str:
    """One turn of an agent of its own; the keys that its requests had."""
    before = len(server.requests)
    agent = Agent(model, base_url=server.url, api_key=[FIRST, SECOND], toolsets=[], home=home, **options)
    try:
        assert agent.run_conversation("go").completed
    finally:
        agent.close()
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
