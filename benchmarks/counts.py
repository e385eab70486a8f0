"""What a round of model and tool costs in calls of functions, and what the first agent loads: figures that
the clock and other programs do not change.

    python benchmarks/counts.py [ROUNDS]

A round is one request over HTTP to a model on this machine and one call of a pure tool, with the journal on
disk and without hooks. Calls are those of the event loop's thread (``cProfile``): what a turn of 100 rounds
makes more than one of 4, a round.
``tests/agent/test_turn.py`` holds the ceilings."""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
from typing import Any

FEW, ROUNDS, TRIES = 4, 100, 5
CEILINGS = {
    "calls a round": 3_090,
    "own calls a round": 1_070,
    "modules of the first Agent": 146,
    "modules of a Workflow": 40,
}
"""More than this is a regression. The aim of the first two is 3,000 and 900."""
COUNTED = (3, 11)
"""The Python whose calls have a ceiling. Others count differently: 3.13 a quarter more for the same code."""
LOADED = "import sys; {make}; print(sum(name.startswith('fsm_agent') for name in sys.modules))"


def calls(rounds: int = ROUNDS) -> dict[str, int]:
    """Calls a round: all of them, and those of functions of this project."""
    made_in(1)  # what is imported and cached for the first turn belongs to no round
    few, many = least_made_in(FEW), least_made_in(rounds)
    return {name: (many[name] - few[name]) // (rounds - FEW) for name in many}


def least_made_in(rounds: int) -> dict[str, int]:
    """The least of some tries: a reply that arrives in more packets costs more calls."""
    return min((made_in(rounds) for _ in range(TRIES)), key=lambda made: made["calls a round"])


def made_in(rounds: int) -> dict[str, int]:
    """Calls in a turn of ``rounds`` rounds."""
    from fsm_agent import Agent, tool
    from fsm_agent.testing import ScriptedServer, call, text, tools

    @tool(effect="pure")
    def look(at: int) -> str:
        """Look at the sky."""
        return f"blue at {at}"

    async def profiled(agent: Agent) -> cProfile.Profile:
        profile = cProfile.Profile()
        with profile:
            await agent.arun("go")
        return profile

    script = [*(tools(call("look", {"at": number}, f"c{number}")) for number in range(rounds)), text("done")]
    with tempfile.TemporaryDirectory() as home, ScriptedServer(script) as server:
        given: dict[str, Any] = {"base_url": server.url, "api_key": "k", "home": home, "tools": [look]}
        with Agent("openai:m", settings={"max_iterations": rounds + 2}, **given) as agent:
            stats = pstats.Stats(asyncio.run(profiled(agent))).stats  # type: ignore[attr-defined]
        assert server.completions == rounds + 1
    own = sum(entry[1] for (file, _, _), entry in stats.items() if "fsm_agent" in file)
    every = sum(entry[1] for entry in stats.values())
    return {"calls a round": every, "own calls a round": own}


def modules() -> dict[str, int]:
    """Modules of this project in a fresh process that made an agent, and in one that named ``Workflow``."""

    def count(make: str) -> int:
        with tempfile.TemporaryDirectory() as home:
            code, env = LOADED.format(make=make), {**os.environ, "FSM_AGENT_HOME": home}
            return int(subprocess.check_output([sys.executable, "-c", code], text=True, env=env))

    return {
        "modules of the first Agent": count("import fsm_agent; fsm_agent.Agent('openai:m', api_key='k')"),
        "modules of a Workflow": count("from fsm_agent import Workflow"),
    }


def main() -> int:
    """Print each figure, beside its ceiling if it has one here; 1 when one is above it."""
    found = calls(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS) | modules()
    ceilings = {
        name: most
        for name, most in CEILINGS.items()
        if "calls" not in name or sys.version_info[:2] == COUNTED
    }
    for name, value in found.items():
        print(f"{name:28} {value:>7,}" + (f"   at most {ceilings[name]:,}" if name in ceilings else ""))
    return int(any(found[name] > most for name, most in ceilings.items()))


if __name__ == "__main__":
    sys.exit(main())
