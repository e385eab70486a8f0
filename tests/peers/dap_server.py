"""What Microsoft's client starts: a server over standard input and output. With ``FSM_AGENT_SCENE=cli`` it is
the command, else one whose turns are scripted, and whose tool writes to standard output, as tools do, and
starts a process that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.cli import main
from fsm_agent.debug import DebugSession
from fsm_agent.debug.dap import LaunchOptions, serve_stdio
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, status, text, tools


@tool(effect="pure")
def look_up(what: str) -> str:
    """Look something up, loudly."""
    print("a tool writes to standard output", flush=True)
    subprocess.run(
        [sys.executable, "-c", "import sys; print('so does its child', len(sys.stdin.read()))"], check=True
    )
    return f"{what}: 42"


def provider() -> Any:
    """Fails twice after the tool has run, then says what the tool's result was."""
    failed = 0

    def answer(body: dict[str, Any]) -> Any:
        nonlocal failed
        last = body["messages"][-1]
        if last["role"] == "user":
            return tools(call("look_up", {"what": "x"}, id="c1"))
        failed += 1
        return status(503) if failed < 3 else text(f"found {last['content']}")

    return repeat(answer)


def workshop(home: Path) -> DebugSession:
    store = store_for(home, "normal")

    def make(hint: str | None) -> Agent:
        return Agent(
            ScriptedModel(provider()), home=home, store=store, tools=[look_up], toolsets=[], clock=FakeClock()
        )

    return DebugSession(store, make)


def nothing_else(options: LaunchOptions) -> DebugSession:
    raise AssertionError("no workshop of its own was to be asked for")


if __name__ == "__main__":
    if os.environ.get("FSM_AGENT_SCENE") == "cli":
        sys.exit(main(["debug", "--stdio"]))
    made = workshop(Path(os.environ["FSM_AGENT_HOME"]))
    try:
        code = serve_stdio(made, None, nothing_else)
    finally:
        made.close()
    sys.exit(code)
