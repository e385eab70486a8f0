"""Stepping through a turn: the interface for a debugger and for a curious reader, the layers between it
and the model, and what a round costs.

``python tests/agent/test_turn.py`` prints the frames.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CoroutineType, GeneratorType
from typing import Any

import pytest

import fsm_agent
import fsm_agent_states
from benchmarks.counts import COUNTED
from fsm_agent import Agent, Step, Turn
from fsm_agent.composition.turn_wiring import STATES
from fsm_agent.conversation.effects import CallModel, ModelRequest
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Exchange
from fsm_agent.testing import ScriptedModel, blank, call, status, text, tools
from fsm_agent_states.turn import TurnState
from tests.helpers.harness import MakeAgent, echo
from tests.helpers.processes import ran

pytestmark = pytest.mark.agent(tools=[echo], toolsets=[])


def test_async_for_gives_every_step_with_its_reasons(agent: MakeAgent) -> None:
    async def scenario() -> list[Step]:
        turn = agent(tools(call("echo", {})), text("done")).start("go")
        assert (turn.state, turn.result, turn.steps) == ("Prepare", None, []), "it does not move by itself"
        assert turn.snapshot()["counters"]["iterations"] == 0
        steps = [step async for step in turn]
        assert turn.result is not None
        assert turn.result.final_response == "done"
        return steps

    steps = asyncio.run(scenario())
    assert [(s.source, s.event, s.dest) for s in steps] == [
        ("Prepare", "ready", "BuildMessages"), ("BuildMessages", "built", "CallLLM"),
        ("CallLLM", "tools", "ExecuteTools"), ("ExecuteTools", "done", "BuildMessages"),
        ("BuildMessages", "built", "CallLLM"), ("CallLLM", "text", "Finalize"),
    ]  # fmt: skip
    assert [s.seq for s in steps] == [1, 2, 3, 4, 5, 6]
    first = steps[1]
    assert first.row == "BuildMessages.built/3"
    assert ("no block open", True) in first.guards
    assert ("iterations", 0, 1) in first.changes
    assert all(step.seconds >= 0 for step in steps)


async def test_false_guards_are_recorded_too(agent: MakeAgent) -> None:
    turn = agent(status(503), status(503), text("ok")).start("go")
    await turn.run_until(event="overloaded")
    step = await turn.run_until(event="overloaded")
    assert step is not None
    assert dict(step.guards) == {"not yet retried": False, "fallbacks left": False, "retries left": True}


@pytest.mark.behaviour("FSM-07")
def test_step_into_shows_each_request_and_reply(agent: MakeAgent) -> None:
    async def scenario() -> list[object]:
        turn, happened = agent(text("hi")).start("go"), list[object]()
        while (one := await turn.step_into()) is not None:
            happened.append(one)
        return happened

    happened = asyncio.run(scenario())
    calls = [one for one in happened if isinstance(one, Exchange) and isinstance(one.request, CallModel)]
    assert len(calls) == 1
    assert (calls[0].state, calls[0].reply.text) == ("CallLLM", "hi")
    assert b'"go"' in calls[0].request.request.body


async def test_run_until_each_kind_of_stop(agent: MakeAgent) -> None:
    turn = agent(blank(), blank(), tools(call("echo", {})), text("done")).start("go")
    assert (await turn.run_until(state="EmptyRecovery")).event == "blank"
    assert turn.state == "EmptyRecovery"
    assert (await turn.run_until(row="EmptyRecovery.nothing/1")).dest == "BuildMessages"
    assert (await turn.run_until(when="empties >= 2 and not opened > 0")).row == "EmptyRecovery.nothing/1"
    assert (await turn.run_until(event="tools")).source == "CallLLM"
    assert (await turn.run_until(state="CallLLM", when="iterations >= 4")).seq > 10
    assert await turn.run_until(state="Compress") is None
    assert turn.result is not None


@pytest.mark.parametrize(
    "text_", ["retrys > 1", "retries >", "__import__('os')", "retries.real > 1", "retries + 1 > 2"]
)
def test_a_condition_that_cannot_be_read(agent: MakeAgent, text_: str) -> None:
    async def scenario() -> None:
        await agent(text("x")).start("go").run_until(when=text_)

    with pytest.raises(ConfigError, match="allowed:"):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("stop", "there"), [({"state": "execute_tools"}, "ExecuteTools"), ({"event": "tool"}, "tools"), ({"row": "x"}, "/1")]
)  # fmt: skip
def test_a_turn_is_not_run_until_something_that_does_not_exist(
    agent: MakeAgent, stop: dict[str, str], there: str
) -> None:
    turn = agent(text("x")).start("go")
    line = f"no move has this {next(iter(stop))}; given: .*{there}"
    with pytest.raises(ConfigError, match=line) as refused:
        asyncio.run(turn.run_until(**stop))
    assert "\n" not in str(refused.value)
    assert turn.state == "Prepare"


@pytest.mark.behaviour("FSM-07")
def test_running_inside_a_running_loop(agent: MakeAgent) -> None:
    async def notebook() -> str:
        return agent(text("hi")).chat("go")

    line = r"run_conversation blocks the event loop .* await agent\.arun"
    with pytest.warns(RuntimeWarning, match=line) as told:
        assert asyncio.run(notebook()) == "hi"
    assert [one.filename for one in told] == [__file__]


def test_a_turn_that_ended_stays_ended(agent: MakeAgent) -> None:
    turn = agent(text("hi")).start("go")
    first = turn.run()
    assert turn.run() is first
    assert asyncio.run(turn.step()) is None


def raises(turn: TurnState) -> str:
    raise ZeroDivisionError("oops")


def shrugs(turn: TurnState) -> str:
    return "shrug"


def gives_itself_more(turn: TurnState) -> str:
    turn.set_limits({**turn.limits, "attempts": 1_000})
    return "error"


def forgets_what_was_sent(turn: TurnState) -> str:
    turn.counts["sends"] = 0
    return "error"


def has_no_more_iterations(turn: TurnState) -> str:
    turn.exhaust("iterations")
    return "error"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (raises, "ZeroDivisionError: oops"),
        (shrugs, "UndeclaredEvent: turn: CallLLM reported 'shrug', for which it has no line"),
        (gives_itself_more, "ForbiddenChange: turn: CallLLM changed limit attempts from 360 to 1000;"),
        (forgets_what_was_sent, "ForbiddenChange: turn: CallLLM changed counter sends from 1 to 0;"),
        (has_no_more_iterations, "ForbiddenChange: turn: CallLLM changed limit iterations from 90 to 1;"),
    ],
)
def test_a_bug_in_a_state_ends_the_turn_with_an_explanation(
    agent: MakeAgent, broken: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state(turn: TurnState) -> Any:
        yield from ()
        return broken(turn)

    monkeypatch.setitem(STATES, "CallLLM", state)
    turn = agent(text("hi")).start("go")
    result = turn.run()
    assert (result.turn_exit_reason, result.failed) == ("local_processing_error", True)
    assert said in (result.error or "")
    assert result.messages[-1]["role"] == "assistant"
    assert turn.steps[-1].row == "CallLLM.crashed"
    now = turn.snapshot()
    assert (now["counters"]["sends"], now["limits"]["attempts"], now["limits"]["iterations"]) == (1, 360, 90)


def test_the_journal_and_the_callback_have_moves_and_exchanges_but_no_bodies(agent: MakeAgent) -> None:
    moves: list[tuple[str, str, str]] = []

    def transition(turn_id: str, source: str, event: str, dest: str, counters: dict[str, int]) -> None:
        moves.append((source, event, dest))
        assert "iterations" in counters

    one = agent(tools(call("echo", {})), text("hi"), callbacks={"transition": transition})
    turn = one.start("go")
    turn.run()
    assert one.journal.steps(turn.id) == turn.steps
    assert moves == [(step.source, step.event, step.dest) for step in turn.steps]
    effects = [effect for seq in range(len(turn.steps)) for effect in one.journal.effects(turn.id, seq)]
    asked = [effect.request for effect in effects if effect.kind == "CallModel"]
    assert len(asked) == 2
    assert all("body" not in request["request"] for request in asked)


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
        self.visit: GeneratorType[Any, Any, Any] | None = None

    async def call(self, request: ModelRequest, sink: Any) -> Any:
        assert self.runs is not None
        calls = asyncio.current_task()
        assert calls is not None
        self.way = [
            *frames(self.runs.get_coro()),
            *frames(self.visit),
            *frames(calls.get_coro()),
        ]
        return await super().call(request, sink)


def frames(innermost: Any) -> list[str]:
    """Our own functions that a coroutine or a generator is in, the outermost first."""
    found = []
    while isinstance(innermost, CoroutineType | GeneratorType):
        kind = "cr" if isinstance(innermost, CoroutineType) else "gi"
        code = getattr(innermost, f"{kind}_code")
        if code.co_filename.startswith(FOLDERS):
            found.append(code.co_qualname)
        innermost = getattr(innermost, "cr_await" if kind == "cr" else "gi_yieldfrom")
    return found


async def way_of(home: Path, run: Callable[[Turn], Awaitable[object]]) -> list[str]:
    """The frames of a plain turn without tools when its model is asked."""
    model = Looking()

    async def caller() -> None:
        while turn.result is None:
            await run(turn)

    def call_llm(state: TurnState) -> Any:
        model.visit = state_of(state)
        return model.visit

    state_of = STATES["CallLLM"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STATES, "CallLLM", call_llm)
        turn = Agent(model, home=home, toolsets=[]).start("go")
        model.runs = asyncio.ensure_future(caller())
        await model.runs
    return model.way


def test_few_frames_separate_a_caller_from_the_model(tmp_path: Path) -> None:
    for run in (lambda turn: turn.step(), lambda turn: turn.arun()):
        way = asyncio.run(way_of(tmp_path, run))
        assert "call_llm" in way
        assert len(way) <= MOST, way


ROOT = Path(__file__).parents[2]


def test_a_round_and_the_first_agent_cost_no_more_than_they_did() -> None:
    """In a process of its own: in this one, other tests may follow what happens. Calls have a ceiling on one Python."""
    done = ran(ROOT / "benchmarks" / "counts.py", "14")
    assert done.stdout.count("at most") == (4 if sys.version_info[:2] == COUNTED else 2), done.stderr
    assert done.returncode == 0, done.stdout


def test_making_an_agent_opens_no_database(tmp_path: Path) -> None:
    Agent("openai:m", api_key="k", home=tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix.startswith(".db")] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        found = asyncio.run(way_of(Path(home), lambda turn: turn.step()))
    print(f"{len(found)} frames: {', '.join(found)}")
