"""What the engine itself costs: a move, a turn's beginning and end, an agent, an import. No network and no
model.

    python benchmarks/engine.py [--quick] [--json]

The model answers at once from memory and the tool is an ``async`` function of one line, so nearly all that is
left is the engine. Figures are processor time (user + system, of all threads, the writer's included): they
depend little on how busy a machine is, and say how many moves a core can do. What is waited for, a disk above
all, is in ``moves/s``, which does.

move      a tool round has three: BuildMessages → CallLLM → ExecuteTools → BuildMessages, and nine requests
          in them
memory    the journal kept in memory: states, guards and requests alone
disk      as it comes: SQLite, every move flushed (``full``)
bytes     what a move adds to the journal: its changes and its guards
json      the measure of this core: ``json.dumps`` of 1 MB of messages. "at 5 ms" is what a figure would be on
          a core that takes 5 ms for it
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.agent import Turn
from fsm_agent.composition.turn_wiring import MACHINE, STATES
from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.fsm.journal import MemoryJournal
from fsm_agent.fsm.runner import Runner
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.sessions.store import Store

WARM = 6
"""Moves of a turn before the clock starts."""


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    value: float
    unit: str


class Model:
    """A model port that asks for ``rounds`` calls, each another one, and then says "done"; what it is sent it
    does not read."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.number = rounds, 0

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        self.number += 1
        sink.alive()
        if self.number > self.rounds:
            sink.text("done")
            return ModelReply("done", usage=Usage(100, 10))
        call = ToolCall(f"call_{self.number}", "echo", json.dumps({"words": str(self.number)}))
        return ModelReply(tool_calls=(call,), finish="tool_calls", usage=Usage(100, 10))

    def use_key(self, key: str) -> None: ...
    async def rebuild(self) -> None: ...
    async def aclose(self) -> None: ...


@tool(concurrency="parallel", effect="pure")
async def echo(words: str = "x") -> str:
    """Give a text back."""
    return words


def agent_of(store: Store, rounds: int, number: int = 0) -> Agent:
    return Agent(
        Model(rounds),
        tools=[echo],
        toolsets=[],
        system_prompt="Be short.",
        home=store.home,
        store=store,
        session_id=f"s-{number}",
        context_window=10_000_000,
        settings={
            "max_iterations": rounds + 1,
            "guardrail": {"hard_stop": False},
            "prompt": {"context_files": False},
        },
    )


def conversation(rows: int) -> list[dict[str, Any]] | None:
    return [{"role": ("user", "assistant")[n % 2], "content": "word " * 20} for n in range(rows)] or None


async def driven(step: Callable[[], Awaitable[Any]]) -> tuple[int, float]:
    """(moves, seconds of processor time) of the rest of a turn, once it is warm."""
    for _ in range(WARM):
        await step()
    moves, began = 0, time.process_time()
    while await step() is not None:
        moves += 1
    return moves, time.process_time() - began


async def a_move(rows: int, rounds: int, *, stored: bool) -> float:
    """Microseconds."""
    with tempfile.TemporaryDirectory() as home:
        turn = agent_of(Store(Path(home)), rounds).start("go", conversation_history=conversation(rows))
        step = turn.step if stored else in_memory(turn)
        moves, seconds = await driven(step)
        return 1e6 * seconds / moves


def in_memory(turn: Turn) -> Callable[[], Awaitable[Any]]:
    """The same turn with nothing but a journal in memory behind it."""
    runner = turn._runner
    return Runner(runner.turn, MACHINE, STATES, runner.perform, MemoryJournal()).step


async def bytes_a_move(rounds: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        turn = agent_of(store, rounds).start("go")
        await turn.arun()
        with store.database.reading() as c:
            sizes = c.execute(
                "SELECT length(delta) + length(guards) + length(changes) FROM transitions WHERE seq > 3"
            ).fetchall()
        return statistics.mean(float(size) for (size,) in sizes)


async def together(count: int, rounds: int) -> tuple[float, float]:
    """(processor time in microseconds a move, moves a second) of ``count`` concurrent turns, start and end
    included."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        turns = [agent_of(store, rounds, number).start("go") for number in range(count)]
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(turn.arun() for turn in turns))
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        moves = sum(len(turn.steps) for turn in turns)
        return 1e6 * cpu / moves, moves / seconds


async def beginnings(count: int) -> tuple[float, float, float]:
    """Microseconds of ``Agent(...)``, of ``agent.start``, and of running a turn of one model call."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        agent_of(store, 0, -1)
        marks = [time.process_time()]
        agents = [agent_of(store, 0, number) for number in range(count)]
        marks.append(time.process_time())
        turns = [agent.start("go") for agent in agents]
        marks.append(time.process_time())
        for turn in turns:
            await turn.arun()
        marks.append(time.process_time())
        made, started, ran = (1e6 * (after - before) / count for before, after in itertools.pairwise(marks))
        return made, started, ran


async def kept_a_turn(count: int, rounds: int) -> float:
    """Kilobytes that a finished turn still occupies, its result thrown away: what a session keeps of its
    rows."""
    with tempfile.TemporaryDirectory() as home:
        agent = agent_of(Store(Path(home)), rounds)
        model: Any = agent._services.backends.current.port

        async def some() -> None:
            for _ in range(count):
                model.number = 0
                await agent.arun("go")
            gc.collect()

        await some()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await some()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return (after - before) / count / 1024


def json_cost() -> float:
    """Milliseconds of ``json.dumps`` of 1 MB of messages."""
    rows, costs = conversation(7_500), []
    for _ in range(20):
        began = time.process_time()
        text = json.dumps(rows)
        costs.append(1e9 * (time.process_time() - began) / len(text))
    return min(costs)


def of_a_process(*command: str) -> float:
    """Milliseconds of processor time of a fresh process, the best of five, less those of one that does
    nothing."""

    def spent(arguments: Sequence[str]) -> float:
        program = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True,"
            " stdout=subprocess.DEVNULL);used = resource.getrusage(resource.RUSAGE_CHILDREN);"
            " print(used.ru_utime + used.ru_stime)"
        )
        runs = [
            subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=True)
            for _ in range(5)
        ]
        return 1000 * min(float(run.stdout) for run in runs)

    return spent([sys.executable, *command]) - spent([sys.executable, "-c", "pass"])


async def in_process(quick: bool) -> list[Figure]:
    rounds, many, count = (40, 100, 20) if quick else (100, 1_000, 200)

    async def best(make: Callable[[], Awaitable[float]]) -> float:
        return min([await make() for _ in range(2 if quick else 5)])

    measure = json_cost()
    found = [Figure("json.dumps of 1 MB", measure, "ms")]
    found += [
        Figure(
            f"a move, {where}, {rows:,} messages of history",
            await best(partial(a_move, rows, rounds, stored=stored)),
            "µs",
        )
        for where, stored in (("memory", False), ("disk", True))
        for rows in (0, 5_000)
    ]
    iteration = 3 * found[1].value / 1000
    measure = min(measure, json_cost())
    found += [
        Figure("an iteration of three moves, memory", iteration, "ms"),
        Figure("an iteration of three moves, memory, at 5 ms", iteration * 5 / measure, "ms"),
        Figure("what a move adds to the journal", await bytes_a_move(rounds), "bytes"),
    ]
    for turns, depth in ((1, 10), (50, 10), (many, 3)):
        cpu, speed = min([await together(turns, depth) for _ in range(2)])
        found += [
            Figure(f"a move, disk, {turns:,} turns at once", cpu, "µs"),
            Figure(f"{turns:,} turns at once", speed, "moves/s"),
        ]
    made, started, ran = min([await beginnings(count) for _ in range(2)])
    return [
        *found,
        Figure("Agent(...)", made, "µs"),
        Figure("agent.start(...)", started, "µs"),
        Figure("a turn of one model call and no tool", ran, "µs"),
        Figure("kept of a finished turn of ten tool rounds", await kept_a_turn(10, 10), "KB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, rougher figures")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = [
        *asyncio.run(in_process(given.quick)),
        Figure("import fsm_agent", of_a_process("-c", "import fsm_agent"), "ms"),
        Figure("from fsm_agent import Agent", of_a_process("-c", "from fsm_agent import Agent"), "ms"),
        Figure("fsm-agent --version", of_a_process("-m", "fsm_agent", "--version"), "ms"),
    ]
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2, ensure_ascii=False))
        return
    for figure in figures:
        print(f"{figure.what:50} {figure.value:>10,.1f} {figure.unit}")


if __name__ == "__main__":
    main()
