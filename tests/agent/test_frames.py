"""How many of our own frames stand between who runs a turn and the model that it asks.

``python tests/agent/test_frames.py`` prints them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CoroutineType, GeneratorType
from typing import Any

import fsm_agent
import fsm_agent_states
from fsm_agent import Agent, Turn
from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.testing import ScriptedModel, text

FOLDERS = tuple(str(Path(str(package.__file__)).parent) for package in (fsm_agent, fsm_agent_states))
MOST = 7
"""Frames between the caller and the model port: run control, the runner, the state that asked, and what performs
the call, with the watchdog beside it."""


class Looking(ScriptedModel):
    """Notes in ``way`` what the turn's task, and the task of the call itself, are in when the model is asked."""

    def __init__(self) -> None:
        super().__init__([text("done")])
        self.way: list[str] = []
        self.runs: asyncio.Task[Any] | None = None
        self.turn: Turn | None = None

    async def call(self, request: ModelRequest, sink: Any) -> Any:
        assert self.runs is not None
        assert self.turn is not None
        calls = asyncio.current_task()
        assert calls is not None
        self.way = [
            *frames(self.runs.get_coro()),
            *frames(self.turn._runner._visit),
            *frames(calls.get_coro()),
        ]
        return await super().call(request, sink)


def frames(innermost: Any) -> list[str]:
    """Our own functions that a coroutine or a generator is in, the outermost first."""
    found = []
    while isinstance(innermost, CoroutineType | GeneratorType):
        waits = isinstance(innermost, CoroutineType)
        code = innermost.cr_code if waits else innermost.gi_code
        if code.co_filename.startswith(FOLDERS):
            found.append(code.co_qualname)
        innermost = innermost.cr_await if waits else innermost.gi_yieldfrom
    return found


async def way_of(home: Path, run: Callable[[Turn], Awaitable[object]]) -> list[str]:
    """The frames of a plain turn without tools when its model is asked."""
    model = Looking()
    turn = Agent(model, home=home, toolsets=[]).start("go")

    async def caller() -> None:
        while turn.result is None:
            await run(turn)

    model.turn, model.runs = turn, asyncio.ensure_future(caller())
    await model.runs
    return model.way


def test_few_frames_stand_between_who_runs_a_turn_and_its_model(tmp_path: Path) -> None:
    for run in (lambda turn: turn.step(), lambda turn: turn.arun()):
        way = asyncio.run(way_of(tmp_path, run))
        assert "call_llm" in way
        assert len(way) <= MOST, way


ROOT = Path(__file__).parents[2]


def test_a_round_and_the_first_agent_cost_no_more_than_they_did() -> None:
    """In a process of its own: in this one, other tests may follow what happens."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "states")))}
    command = [sys.executable, str(ROOT / "benchmarks" / "counts.py"), "30"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("at most") == 4, done.stderr
    assert done.returncode == 0, done.stdout


def test_making_an_agent_opens_no_database(tmp_path: Path) -> None:
    Agent("openai:m", api_key="k", home=tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix.startswith(".db")] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        found = asyncio.run(way_of(Path(home), lambda turn: turn.step()))
    print(f"{len(found)} frames: {', '.join(found)}")
