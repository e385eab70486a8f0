"""How a turn ends, whatever it ends with: one Finalize, one result, nothing lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import FakeClock, repeat, silence, slow, status, text
from tests.helpers.harness import Interrupt, play, table


def test_fin_10_the_transform_callback_changes_what_is_delivered_and_nothing_else() -> None:
    played = play([text("hello")], callbacks={"transform": lambda words: words.upper()})
    assert played.result.final_response == "HELLO"
    assert played.result.response_transformed
    assert played.result.messages[-1]["content"] == "hello"
    assert play([text("hello")], callbacks={"transform": lambda words: None}).result.final_response == "hello"


@pytest.mark.parametrize("script", [[text("ok")], [status(400)], repeat(status(500))])
def test_fin_14_the_end_is_told_on_every_exit(script: Any) -> None:
    ends = [data for name, data in play(script).heard.of("event") if name == "turn:end"]
    assert len(ends) == 1


def test_err_24_a_request_that_failed_is_kept_for_a_look_with_keys_masked(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    played = play([status(400)], "my key is sk-proj-abcdefghijklmnop", home=home)
    (dump,) = (home / "dumps").iterdir()
    assert "abcdefghijklmnop" not in dump.read_text()
    assert json.loads(dump.read_text())["messages"][0]["role"] == "system"
    assert dump.stat().st_mode & 0o077 == 0
    assert any(str(dump) in line for line in played.heard.of("status"))
    play([status(400)], home=tmp_path / "off", settings={"dump_failed_requests": False})
    assert not (tmp_path / "off" / "dumps").exists()


@pytest.mark.behaviour("ERR-26")
def test_err_26_a_refused_message_does_not_grow_a_large_session() -> None:
    history = [{"role": role, "content": "x"} for _ in range(45) for role in ("user", "assistant")]
    message = "Invalid value for 'messages[90]': this content is not understood"
    refused = status(400, {"error": {"message": message}})
    played = play([refused], history=history)
    assert played.result.messages[-2]["wire"] is False
    with table([refused, text("ok")]) as (agent, server, _, _):
        agent.run_conversation("the bad one", conversation_history=history)
        agent.run_conversation("the next")
        assert not any(row["content"] == "the bad one" for row in server.bodies[1]["messages"])


@pytest.mark.behaviour("INV-06")
def test_d44_after_a_failure_the_next_turn_joins_the_messages() -> None:
    with table([status(400), text("ok")]) as (agent, server, _, _):
        agent.run_conversation("first")
        agent.run_conversation("second")
        assert [row["content"] for row in server.bodies[1]["messages"][1:]] == ["first\n\nsecond"]


def test_never_a_silent_minute() -> None:
    """The turn goes on until the line has come."""
    clock, interrupt = FakeClock(), Interrupt()
    told: list[str] = []

    def status(line: str) -> None:
        told.append(line)
        interrupt()

    script = [silence("connect", hook=lambda: clock.advance(65))]
    settings = {"poll": {"control": 0.05}, "stale": {"stream": 300}}
    play(script, clock=clock, settings=settings, callbacks={"status": status}, before=interrupt.aim)
    (line,) = told
    seconds = re.fullmatch(r"the model has not answered yet \((\d+) s\)", line)
    assert seconds is not None
    assert 65 <= int(seconds[1]) < 300


@pytest.mark.behaviour("ERR-29")
def test_status_lines_are_one_a_failure_and_one_a_wait() -> None:
    told = play([status(503), status(503), text("ok")]).heard.of("status")
    assert [line.split()[0] for line in told] == ["attempt", "waiting"] * 2


@pytest.mark.behaviour("CALL-06")
def test_thinking_goes_on_and_off() -> None:
    assert play([slow("hi", 0.01)]).heard.of("thinking") == [True, False]
    assert play(repeat(status(429))).heard.of("thinking") == [True, False] * 3
