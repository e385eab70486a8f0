"""What many turns at once have each, and what they share."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.composition.attempts import tell_attempt
from fsm_agent.conversation.effects import CallModel, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.testing import ScriptedModel, call, text, tools

ROOT = Path(__file__).parents[2]


@tool(concurrency="parallel", effect="pure")
async def look(n: int) -> dict[str, int]:
    """Look at number n."""
    await asyncio.sleep(0.001)
    return {"n": n}


def test_turns_with_asynchronous_tools_have_no_threads_of_their_own(tmp_path: Path) -> None:
    started: set[threading.Thread] = set()

    async def one() -> str | None:
        script = [*(tools(call("look", {"n": number})) for number in range(5)), text("done")]
        agent = Agent(ScriptedModel(script), tools=[look], toolsets=[], home=tmp_path)
        return (await agent.arun("go")).final_response

    async def run() -> list[str | None]:
        return await asyncio.gather(*(one() for _ in range(8)))

    threading.setprofile(lambda *_: started.add(threading.current_thread()))
    try:
        assert asyncio.run(run()) == ["done"] * 8
    finally:
        threading.setprofile(None)
    assert len(started) < 20  # the writer, who reads commands, and who judges the results of 40 calls


def test_blocking_work_uses_a_thread_again() -> None:
    async def run() -> set[threading.Thread]:
        return {await in_daemon_thread(threading.current_thread) for _ in range(20)}

    assert len(asyncio.run(run())) < 10


def test_an_attempt_that_went_well_costs_nothing_when_nobody_listens() -> None:
    asked = CallModel(ModelRequest(b"{}"), 1, 1)
    nobody: Any = None  # no record is made of it
    tell_attempt(Callbacks(), asked, nobody, ModelReply("hi"), 0.1, 1)
    with pytest.raises(AttributeError):
        tell_attempt(Callbacks({"event": print}), asked, nobody, ModelReply("hi"), 0.1, 1)


@pytest.mark.slow
def test_two_hundred_turns_at_once_fail_none(tmp_path: Path) -> None:
    found = tmp_path / "figures.json"
    program = [
        sys.executable,
        str(ROOT / "benchmarks" / "many_turns.py"),
        "--turns",
        "200",
        "--json",
        str(found),
    ]
    subprocess.run(program, check=True, timeout=600, stdout=subprocess.DEVNULL)
    ours = next(row for row in json.loads(found.read_text()) if row["way"] == "fsm_agent")
    assert ours["failed"] == 0
    assert ours["threads"] < 30
    assert ours["more"] < 150
