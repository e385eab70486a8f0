"""Debugging a turn that another process runs: through the journal and the table of orders."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_agent.debug import Debugger, Status
from fsm_agent.debug.core.remote import RemoteDebugClient
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from tests.helpers.processes import environment
from tests.helpers.waiting import PATIENCE, until

PROGRAM = """
import asyncio, sys, threading
from pathlib import Path
from fsm_agent import Agent, tool
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.waiting import until_so

@tool(effect="pure")
async def rest(number: int) -> str:
    "Rest, the last time until the file ``go`` exists."
    await asyncio.sleep(0.03)
    if number == rounds - 1:
        await until_so(Path(home, "go").exists, "leave to continue")
    return f"rested {number}"

@tool(approval="ask")
def paint(thing: str) -> str:
    "Paint."
    return f"painted {thing}"

rounds, home = int(sys.argv[1]), sys.argv[2]
script = [*[tools(call("rest", {"number": n})) for n in range(rounds)], tools(call("paint", {"thing": "wall"})), text("done")]
settings = {"max_iterations": rounds + 3, "guardrail": {"hard_stop": False}}
store = store_for(home, "normal")
def attended(request):
    "A person at a terminal who does not answer."
    threading.Event().wait()

callbacks = {"approval": attended} if len(sys.argv) > 3 else None
options = {"settings": settings, "store": store, "callbacks": callbacks}
agent = Agent(ScriptedModel(script), tools=[rest, paint], toolsets=[], home=home, **options)
print(agent.run_conversation("rest a while").final_response, flush=True)
"""
DEBUGGER = """
import signal, sys
from fsm_agent.debug import Debugger
from fsm_agent.sessions.store import Store
from pathlib import Path
from tests.helpers.waiting import until
debugger = Debugger.attach(Store(Path(sys.argv[1])), sys.argv[2])
debugger.order("pause")
until(lambda: debugger.status.phase == "paused", "the pause")
print("paused", flush=True)
signal.pause()
"""


class Elsewhere:
    """A turn in another process, and the store as this process opens it."""

    def __init__(self, home: Path, rounds: int, *, attended: bool = False) -> None:
        self.home, self.attended = home, attended
        home.mkdir()
        command = [sys.executable, "-c", PROGRAM, str(rounds), str(home), *(["attended"] if attended else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        self.store = Store(home, "normal")
        self.turn = self._wait()

    def _wait(self) -> str:
        turns = Turns(self.store.database)
        until(lambda: any(turn.seq > 2 for turn in turns.recent(1)), "the beginning of the turn")
        return turns.recent(1)[0].id

    def go_on(self) -> None:
        """Let it leave its last rest."""
        (self.home / "go").touch()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    """A turn of 300 rounds, or of as many as a test asks for."""
    made = Elsewhere(tmp_path / "home", **getattr(request, "param", {"rounds": 300}))
    yield made
    made.close()


def go(debugger: Debugger, order: str, phase: str, seq: int = 0, **body: object) -> Status:
    """Give an order and wait until the engine is said to be in that phase, at ``seq`` at least."""
    debugger.order(order, body)
    return reached(debugger, phase, seq)


def reached(debugger: Debugger, phase: str, seq: int = 0) -> Status:
    found: list[Status] = []

    def here() -> bool:
        found[:] = [debugger.status]
        return found[0].phase == phase and found[0].seq >= seq

    until(here, phase)
    return found[0]


def test_a_turn_of_another_process_is_watched_and_steered(elsewhere: Elsewhere) -> None:
    debugger = Debugger.attach(elsewhere.store, elsewhere.turn)
    assert isinstance(debugger.engine, RemoteDebugClient)
    seen: list[int] = []
    debugger.listen(lambda event: seen.append(event.data["seq"]) if event.kind == "moved" else None)
    reached(debugger, "running", debugger.status.seq + 3)  # watching does not stop it
    paused = go(debugger, "pause", "paused")
    assert paused.reason in ("pause", "entry")
    here = debugger.record.count

    stepped = go(debugger, "step", "paused", here + 1)
    assert stepped.seq == debugger.record.count == here + 1
    over = go(debugger, "over", "paused", stepped.seq + 1)
    assert over.state == "CallLLM"
    debugger.breakpoint("state", "ExecuteTools", condition="iterations >= 1")
    met = go(debugger, "continue", "paused", over.seq + 1)
    assert (met.state, met.reason, met.breakpoints) == ("ExecuteTools", "breakpoint", (1,))
    assert seen == [*range(seen[0], met.seq + 1)]

    with pytest.raises(ConfigError, match="no such order"):
        debugger.order("jump")
    debugger.set_breakpoints([])
    ended = go(debugger, "interrupt", "ended")
    assert ended.phase == "ended"
    assert debugger.record.info.outcome == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize(
    "elsewhere", [{"rounds": 3}, {"rounds": 1, "attended": True}], indirect=True, ids=["alone", "attended"]
)
def test_a_tool_elsewhere_is_approved_here(elsewhere: Elsewhere) -> None:
    """The question may have been asked at a terminal there before any debugger had a say: the journal tells of
    it, and the answer attaches."""
    debugger = Debugger.attach(elsewhere.store, elsewhere.turn)
    if elsewhere.attended:
        elsewhere.go_on()
        (held,) = reached(debugger, "waiting").held
        assert held["allowable"]
    else:
        debugger.order("pause")
        elsewhere.go_on()
        reached(debugger, "paused")
        (held,) = go(debugger, "continue", "waiting").held
    assert (held["kind"], held["name"], held["arguments"]) == ("approval", "paint", {"thing": "wall"})
    go(debugger, "answer", "ended", id=held["id"], said="once")
    assert "painted wall" in [row["content"] for row in debugger.record.messages(debugger.record.count)]
    assert elsewhere.process.wait(PATIENCE) == 0
    with pytest.raises(ConfigError, match="the turn has ended"):
        debugger.order("answer", {"id": held["id"], "said": "once"})


@pytest.mark.slow
def test_a_turn_does_not_wait_for_a_debugger_that_died_and_is_idle_when_its_process_did(
    elsewhere: Elsewhere,
) -> None:
    command = [sys.executable, "-c", DEBUGGER, str(elsewhere.home), elsewhere.turn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "paused\n"
        turns = Turns(elsewhere.store.database)
        here = turns.info(elsewhere.turn).seq
        other.kill()
    until(lambda: turns.info(elsewhere.turn).seq > here, "the next move")
    debugger = Debugger.attach(elsewhere.store, elsewhere.turn)
    elsewhere.process.kill()
    assert asyncio.run(debugger.settled(PATIENCE)).phase == "idle"
    with pytest.raises(ConfigError, match="no process runs this turn"):
        Debugger.attach(elsewhere.store, elsewhere.turn).order("step")


def test_looking_for_orders_costs_nothing_that_can_be_measured(tmp_path: Path) -> None:
    """Turns never look; one thread does, four times a second, and one look takes microseconds."""
    store = Store(tmp_path, "normal")
    controls = store.pause_points
    began, looks = time.thread_time(), 500  # of the processor: what others take of it is not counted
    for _ in range(looks):
        controls.look()
    a_second = (time.thread_time() - began) / looks * 4
    assert a_second < 0.002
