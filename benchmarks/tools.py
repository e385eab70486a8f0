"""What running a tool costs beside the tool itself: one call after the other, and eight at the same time.

    make bench                      # or: python benchmarks/tools.py --calls 1000 --runs 5

A trivial call does nothing, so its whole time is the engine's. ``runner``: through the tool port alone, which
checks arguments, starts the handler (a synchronous one in a thread that is kept for the next call), watches
time limit and interrupt, and writes the result down. ``turn``: in a whole turn that gets all calls in one
reply from a scripted model, with dispatch, guardrails, callbacks, journal and store. ``plain``: calling the
function. ``eight``: eight calls that wait 100 ms each, at the same time.
``agent``: making one with every toolset, the first of a process and those after it.

Medians of the runs: time by the clock, and what all threads of this process computed in it. The rest is
waiting, in a turn mostly for the disk to say that a call is written down before it begins.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.conversation.effects import RunTool
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.support.threads import Interrupt
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.tools import Tool, ToolRunner
from fsm_agent.toolsets import TOOLSETS
from fsm_agent.toolsets.agent import AGENT_TOOLSETS


@tool(name="nothing")
def in_a_thread(n: int) -> str:
    """Do nothing."""
    return str(n)


@tool(name="nothing")
async def in_the_loop(n: int) -> str:
    """Do nothing."""
    return str(n)


@tool(name="slow", concurrency="parallel", effect="pure")
def slow(n: int) -> str:
    """Wait for a tenth of a second."""
    time.sleep(0.1)
    return str(n)


async def one_after_the_other(one: Tool, calls: int) -> None:
    runner, interrupted = ToolRunner([one], clock=SystemClock()), Interrupt()
    for n in range(calls):
        outcome: Any = await runner.run(RunTool(str(n), "nothing", {"n": n}, 60.0), interrupted)
        assert outcome.text == str(n)


async def at_the_same_time(calls: int) -> None:
    runner, interrupted = ToolRunner([slow], clock=SystemClock()), Interrupt()
    await asyncio.gather(
        *(runner.run(RunTool(str(n), "slow", {"n": n}, 60.0), interrupted) for n in range(calls))
    )


async def in_a_turn(one: Tool, calls: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        script = [tools(*(call("nothing", {"n": n}) for n in range(calls))), text("done")]
        agent = Agent(ScriptedModel(script), tools=[one], toolsets=[], home=home)
        result = await agent.arun("go")
        await agent.aclose()
        assert sum(row["role"] == "tool" for row in result.messages) == calls


async def plain(calls: int) -> None:
    for n in range(calls):
        in_a_thread(n)


async def made(agents: int, home: str) -> None:
    for _ in range(agents):
        Agent(ScriptedModel([text("done")]), toolsets=[*TOOLSETS, *AGENT_TOOLSETS], home=home, mcp={})


def median(work: Callable[[], Coroutine[Any, Any, None]], runs: int) -> tuple[float, float]:
    """Seconds by the clock, and of computing."""
    taken = []
    for _ in range(runs):
        started, computed = time.perf_counter(), time.process_time()
        asyncio.run(work())
        taken.append((time.perf_counter() - started, time.process_time() - computed))
    return statistics.median(wall for wall, _ in taken), statistics.median(cpu for _, cpu in taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    kinds = (("sync", in_a_thread), ("async", in_the_loop))
    rows: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [("plain", lambda: plain(given.calls))]
    rows += [(f"runner, {kind}", partial(one_after_the_other, one, given.calls)) for kind, one in kinds]
    rows += [(f"turn, {kind}", partial(in_a_turn, one, given.calls)) for kind, one in kinds]
    with tempfile.TemporaryDirectory() as home:
        (first, _), (later, _) = median(lambda: made(1, home), 1), median(lambda: made(1, home), 20)
    print(f"{given.calls:,} trivial calls one after the other, median of {given.runs} runs")
    for name, work in rows:
        wall, cpu = median(work, given.runs)
        print(
            f"  {name:14} {wall / given.calls * 1e3:8.3f} ms a call, {cpu / given.calls * 1e3:.3f} ms of it"
            " computing"
        )
    print(
        "eight calls of 100 ms at the same time:"
        f" {median(lambda: at_the_same_time(8), given.runs)[0] * 1e3:.0f} ms"
    )
    print(
        f"an agent with every toolset: {first * 1e3:.0f} ms, and {later * 1e3:.1f} ms after the first of a"
        " process"
    )


if __name__ == "__main__":
    main()
