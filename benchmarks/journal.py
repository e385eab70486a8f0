"""What writing everything down costs: commits a second, and time and bytes a move at any length of the
history.

``python benchmarks/journal.py`` prints: moves and commits a second with 1, 50 and 1,000 turns at once, in
both durabilities; the time that a move takes with the journal on disk and with none; bytes that a move adds
at 10 and at 5,000 messages."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.composition.effect_handler import EffectHandler
from fsm_agent.composition.turn_wiring import MACHINE, STATES
from fsm_agent.fsm.journal import MemoryJournal
from fsm_agent.fsm.runner import Runner
from fsm_agent.sessions.store import Store
from fsm_agent.testing import FakeClock, ScriptedModel, call, text, tools

ROUNDS = 10
"""Tool rounds of a turn: 3 moves each."""


@tool(effect="pure")
def echo(words: str = "x") -> str:
    """Give a text back."""
    return words


def model(rounds: int = ROUNDS) -> ScriptedModel:
    return ScriptedModel(
        [*(tools(call("echo", {"words": str(number)})) for number in range(rounds)), text("done")]
    )


def agent_of(store: Store, number: int, rounds: int = ROUNDS) -> Agent:
    return Agent(
        model(rounds),
        tools=[echo],
        toolsets=[],
        system_prompt="Be short.",
        home=store.home,
        store=store,
        session_id=f"s-{number}",
        clock=FakeClock(),
        settings={"guardrail": {"hard_stop": False}, "prompt": {"context_files": False}},
    )


async def together(count: int, durability: Any, home: Path) -> tuple[float, int, int]:
    """(seconds, moves, commits) of so many turns at once."""
    store = Store(home, durability)
    rounds = ROUNDS if count <= 50 else 2
    turns = [agent_of(store, number, rounds).start("go") for number in range(count)]
    began = time.perf_counter()
    await asyncio.gather(*(turn.arun() for turn in turns))
    return time.perf_counter() - began, sum(len(turn.steps) for turn in turns), store.database.commits


async def one_move(home: Path, stored: bool, history: Sequence[Any]) -> list[float]:
    """Seconds of each move of a turn, the model's and the tools' included (both answer at once)."""
    agent = agent_of(Store(home), 0, 60)
    turn = agent.start("go", conversation_history=history)
    if not stored:
        state: Any = turn._state
        session = agent._store.session("s-0")
        performer = EffectHandler(agent._services, session)
        performer.prompted("Be short.")
        turn._runner = Runner(state, MACHINE, STATES, performer, MemoryJournal())
    found = []
    while True:
        began = time.perf_counter()
        if (await turn._runner.step() if not stored else await turn.step()) is None:
            return found
        found.append(time.perf_counter() - began)


def bytes_a_move(home: Path, history: Sequence[Any]) -> int:
    agent = agent_of(Store(home), 0)
    turn = agent.start("go", conversation_history=history)
    turn.run()
    with agent._store.database.reading() as c:
        sizes = c.execute(
            "SELECT length(delta) + length(guards) + length(changes) FROM transitions WHERE turn = ? AND"
            " seq > 1",
            (turn.id,),
        ).fetchall()
    return int(statistics.mean(size for (size,) in sizes))


def main() -> None:
    print("turns at once   durability   moves/s   commits/s   moves a commit")
    for durability in ("full", "normal"):
        for count in (1, 50, 1000):
            with tempfile.TemporaryDirectory() as folder:
                seconds, moves, commits = asyncio.run(together(count, durability, Path(folder)))
            a_second = f"{moves / seconds:7,.0f}   {commits / seconds:9,.0f}"
            print(f"{count:13,}   {durability:10}   {a_second}   {moves / commits:14.1f}")
    print()
    print("messages   a move in memory   a move on disk   added   bytes a move")
    for rows in (10, 5_000):
        history = [
            {"role": ("user", "assistant")[number % 2], "content": "word " * 20} for number in range(rows)
        ]
        middle = []
        for stored in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                times = asyncio.run(one_move(Path(folder), stored, history))
            middle.append(statistics.median(times[3:]) * 1e6)
        with tempfile.TemporaryDirectory() as folder:
            size = bytes_a_move(Path(folder), history)
        print(
            f"{rows:8,}   {middle[0]:13,.0f} µs   {middle[1]:11,.0f} µs   {middle[1] - middle[0]:5,.0f}  "
            f" {size:12,}"
        )


if __name__ == "__main__":
    main()
