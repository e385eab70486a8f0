"""A conversation that passes from one agent to another, which asks a third: killed at every point, continued.
Run as a program, it prints one JSON line a case."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.crash.driver import folder, killed, undisturbed, warm_up
from tests.crash.scene import HERE, SESSION, SETTINGS, TOOLS, Crash, CrashingDatabase, PromptDatabase, note


def model(crash: Crash) -> ScriptedModel:
    """It has no memory: it answers from who it is and what the conversation ends with."""

    def answer(body: dict[str, Any]) -> Any:
        first, last = body["messages"][0]["content"], body["messages"][-1]
        who = next(name for name in ("triage", "billing", "clerk") if first.startswith(f"You are {name}."))
        note(HERE.home, "sent", "model", who)
        crash("model")
        if who == "clerk":
            return text("12 francs")
        if who == "triage":
            both = call("put", {"key": "a"}, "c1"), call("transfer_to_billing", {"note": "invoice 5"}, "c2")
            return tools(*both)
        if last["role"] == "tool":
            return text(f"You paid {last['content']}.")
        return tools(call("clerk", {"task": "What was paid?"}, "c3"))

    return ScriptedModel(repeat(answer))


def crew(home: Path, crash: Crash, database: type[CrashingDatabase]) -> Agent:
    CrashingDatabase.crash = HERE.crash = crash
    HERE.home = home
    port, clock = model(crash), FakeClock()

    def one(name: str, **options: Any) -> Agent:
        return Agent(
            port, name=name, system_prompt=f"You are {name}.", toolsets=[], home=home, settings=SETTINGS, clock=clock,
            context_window=100_000, **options,
        )  # fmt: skip

    billing = one("billing", tools=[one("clerk").as_tool()])
    return one(
        "triage", tools=TOOLS, handoffs=[billing], session_id=SESSION, store=Store(home, "full", database)
    )


def first(home: Path, crash: Crash, database: type[CrashingDatabase]) -> dict[str, Any]:
    agent = crew(home, crash, database)
    agent.run_conversation("What did I pay?")
    return {**told(agent), "counts": dict(crash.counts)}


def again(home: Path, crash: Crash, database: type[CrashingDatabase]) -> dict[str, Any]:
    """Continue after a crash, as long as there is something to continue."""
    agent = crew(home, crash, database)
    if not agent.journal.recent(session=SESSION):
        agent.run_conversation("What did I pay?")
    while True:
        try:
            turn = agent.resume(SESSION)
        except ConfigError:
            return told(agent)
        turn.run()


def told(agent: Agent) -> dict[str, Any]:
    """The contents of the file, read by another store."""
    journal = agent.journal
    turns = []
    for info in reversed(journal.recent()):
        said = journal.result(info.id) or {}
        turns.append([said.get("agent"), info.exit, len(said.get("handoffs", ())), info.id])
    rows = Store(agent.home).session(SESSION).rows
    return {"turns": turns, "rows": [[row.role, row.text] for row in rows]}


def main() -> None:
    warm_up()
    for database in (CrashingDatabase, PromptDatabase):
        begin = partial(first, database=database)
        base = undisturbed(begin, folder())
        print(json.dumps({**base, "base": True}), flush=True)
        killed(begin, partial(again, database=database), base["counts"])


if __name__ == "__main__":
    main()
