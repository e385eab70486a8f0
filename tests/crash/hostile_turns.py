"""Plays turns with everybody against them, each process a fork of this one, and prints a JSON line a turn.

Started as a program: ``hostile_turns.py PORT FIRST COUNT STEP [FAULT]``, with the port of the server. What a turn meets is in its seed (``hostile_plan``); the server kills the process that a request came from, and
knows it by the key."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.result import TurnResult
from fsm_agent.options import AgentOptions
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedServer, call, repeat, text, tools
from tests.crash.driver import folder, in_process, say, warm_up
from tests.crash.hostile_engines import FAULTS
from tests.crash.hostile_plan import MODES, Kill, Plan
from tests.crash.scene import Crash, CrashingDatabase
from tests.helpers.harness import echo, fail

PATIENCE = 60
"""Seconds after which a process hangs, and its turn is a failure."""
Found = dict[str, Any]


class HurriedClock:
    """The time of day, but without waits."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time() + self._skipped

    async def sleep(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)
        await asyncio.sleep(0)


def addressed(spec: Any, plan: Plan, port: int, life: int, name: str) -> dict[str, Any]:
    """An entry of the chain with the address and the keys of this process."""
    keys = [f"{key}-{os.getpid()}-{life}" for key in spec["api_key"]]
    path = "/".join((str(plan.seed), "root", name, "v1"))
    return {**spec, "base_url": f"http://127.0.0.1:{port}/{path}", "api_key": keys}


def agent_of(plan: Plan, port: int, home: Path, life: int, crash: Crash) -> Agent:
    CrashingDatabase.crash = crash
    first, *rest = [addressed(spec, plan, port, life, f"m{n}") for n, spec in enumerate(plan.entries)]
    auxiliary = [addressed(spec, plan, port, life, f"a{n}") for n, spec in enumerate(plan.auxiliary)]
    given: dict[str, Any] = {
        "fallbacks": rest, "auxiliary": auxiliary, "callbacks": interrupting(plan), "settings": plan.limits,
    }  # fmt: skip
    given |= {
        "tools": [echo, fail], "toolsets": ["delegate"], "system_prompt": "You are a test.", "home": home,
    }  # fmt: skip
    given |= {"clock": HurriedClock(), "store": Store(home, "full", CrashingDatabase)}
    return Agent(first.pop("model"), session_id="s-hostile", **first, **given)


def interrupting(plan: Plan) -> dict[str, Any]:
    """A person who breaks the turn off a moment after its n-th request began."""
    begun = itertools.count(1)

    def thinking(on: bool) -> None:
        if on and plan.interrupt and next(begun) == plan.interrupt[0]:
            agent = HERE[0]
            asyncio.get_running_loop().call_later(plan.interrupt[1], agent.interrupt, "enough")

    return {"thinking": thinking}


HERE: list[Agent] = []


def name_children() -> None:
    """Each child's requests go to addresses of its own, so that they are counted for its turn."""
    made = Agent.of

    def of(options: AgentOptions) -> Agent:
        def own(url: str) -> str:
            before, _, entry = url.removesuffix("/v1").rpartition("/")
            seed, _ = before.rsplit("/", 1)
            return f"{seed}/{options['session_id']}/{entry}/v1"

        def entry(spec: Any) -> dict[str, Any]:
            return {**spec, "base_url": own(spec["base_url"])}

        lists: Any = {name: options.get(name) or () for name in ("fallbacks", "auxiliary")}
        named = {name: [entry(one) for one in entries] for name, entries in lists.items()}
        changed: Any = {**options, "base_url": own(options["base_url"] or ""), **named}
        return made(changed)

    Agent.of = of


def lived(plan: Plan, port: int, home: Path, life: int, kill: Kill | None) -> Found:
    """One process of the turn: it begins it, or continues what another one left."""
    signal.alarm(PATIENCE)
    crash = Crash(kill if kill and kill[0] in ("before", "after") else None)
    agent = agent_of(plan, port, home, life, crash)
    HERE[:] = [agent]
    mine = [turn for turn in agent.journal.recent() if turn.parent is None]
    if not mine:
        turn = agent.start("go", conversation_history=plan.history)
        return told(agent, turn.id, turn.run())
    if mine[0].ended is None:
        return told(agent, mine[0].id, agent.resume(mine[0].id).run())
    return told(agent, mine[0].id, None)


def told(agent: Agent, turn: str, result: TurnResult | None) -> Found:
    """The turn and its children as the journal has them: what each says that it sent, and its limits."""
    journal = agent.journal
    said = journal.result(turn) or {}
    if result is not None:
        assert result.attempts == said["attempts"]
    family = [
        {
            "session": "root" if one.parent is None else one.session,
            "attempts": (journal.result(one.id) or {}).get("attempts"),
            "limits": journal.snapshot(one.id, 1)["limits"] if one.seq else {},
            "last": journal.snapshot(one.id)["limits"],
        }
        for one in journal.recent(1_000)
    ]
    return {"exit": said["turn_exit_reason"], "family": family, "error": said["error"]}


def played(seed: int, port: int) -> Found:
    """The turn of a seed, in as many processes as it takes."""
    plan = Plan.of(seed)
    with folder() as home:
        for life, kill in enumerate((*plan.kills, None)):
            ended, found = in_process(partial(lived, plan, port, home, life, kill))
            if not ended or ended == signal.SIGALRM:
                break
    return {"seed": seed, "signal": ended, "lives": life + 1, **found}


def practise() -> None:
    """Ask once on each wire, so that what an SDK does only once is done before the forks."""

    async def ask(mode: str, home: Path, url: str) -> None:
        agent = Agent("openai:m", base_url=url, api_key="k", api_mode=mode, home=home, toolsets=["delegate"])
        await agent.arun("go")
        await agent.aclose()
        agent.store.close()

    with ScriptedServer(repeat(tools(call("nope")), text("done"))) as server:
        for mode in MODES:
            with folder() as home:
                asyncio.run(ask(mode, home, server.url))


if __name__ == "__main__":
    port, first, count, step = map(int, sys.argv[1:5])
    practise()
    warm_up()
    name_children()
    if sys.argv[5:]:
        FAULTS[sys.argv[5]]()
    for seed in range(first, first + count * step, step):
        say(played(seed, port))
