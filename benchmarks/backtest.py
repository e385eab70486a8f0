"""How many recorded turns are played a second on one core: ``python benchmarks/backtest.py [TURNS]``.

Each turn has three rounds of a model and a tool, and is played twice: unchanged, and with another prompt, so
that every request differs and is described. Reading, playing and comparing are also printed apart, in
milliseconds of CPU a turn."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fsm_agent import Agent, tool
from fsm_agent.backtest import Backtest, Change
from fsm_agent.backtest.playback import RecordedTurn
from fsm_agent.backtest.verdict import verdict_of
from fsm_agent.testing import FakeClock, ScriptedModel, call, text, tools

ROUNDS = 3
CHANGE = Change(prompt="{recorded}\n\nBe brief.")


@tool(effect="pure")
def measure(mile: int) -> str:
    """The height of the river."""
    return f"mile {mile}: {mile % 7} feet"


def record(home: Path, turns: int) -> None:
    rounds = [tools(call("measure", {"mile": number})) for number in range(ROUNDS)]
    for _ in range(turns):
        agent = Agent(
            ScriptedModel([*rounds, text("It is low.")]),
            tools=[measure],
            toolsets=[],
            home=home,
            clock=FakeClock(),
        )
        agent.run_conversation("how high is the river?")
        agent.close()


def main(turns: int = 300) -> None:
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), turns)
        tests = Backtest.of_home(folder)
        tests.sample(20).run(CHANGE, jobs=1)  # loads and compiles what is loaded at first use
        began = time.process_time()
        found = tests.run(CHANGE, jobs=1)
        spent = time.process_time() - began
        assert found.counts["requests"] == turns
        print(f"{turns / spent:,.0f} turns of {ROUNDS} rounds a second on one core")
        began = time.process_time()
        recorded = [RecordedTurn.read(tests.store, turn) for turn in tests.turns]
        read = time.process_time()
        base = [asyncio.run(one.play()) for one in recorded]
        played = time.process_time()
        other = [asyncio.run(one.play(CHANGE)) for one in recorded]
        begun = time.process_time()
        for one in zip(recorded, base, other, strict=True):
            verdict_of(*one)
        parts = {
            "read": read - began, "play unchanged": played - read, "play": begun - played,
            "compare": time.process_time() - begun,
        }  # fmt: skip
        print(", ".join(f"{name} {1000 * part / turns:.2f} ms" for name, part in parts.items()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
