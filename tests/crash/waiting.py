"""A turn that is killed while it waits: for a person, or for its children. Run as a program: ``waiting.py
HOME MARK KIND``; the kind ``begun`` is that of ``approval``, killed later."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.crash import kill

SESSION = "s-waiting"
TASKS = [{"goal": "one"}, {"goal": "two"}]
PLAN = [{"id": "a", "content": "ask first", "status": "in_progress"}]


def answers(body: dict[str, Any]) -> Any:
    """One script for parent and children, by what was said so far."""
    asked = next(row["content"] for row in body["messages"] if row["role"] == "user")
    rounds = sum(row["role"] == "assistant" for row in body["messages"])
    scripts = {
        "approval": [tools(call("todo", {"todos": PLAN})), tools(call("danger", {"name": "users"})),
                     text("done")],
        "clarify": [tools(call("clarify", {"question": "Which?"})), text("done")],
        "children": [tools(call("delegate_task", {"tasks": TASKS})), text("done")],
        "one": [text("ONE")],
        "two": [tools(call("look")), text("TWO")],
    }  # fmt: skip
    return scripts[asked][rounds]


def agent_of(
    home: Path,
    mark: Path,
    *,
    dies: bool,
    attended: bool = True,
    begun: bool = False,
    gone: bool = False,
    **options: Any,
) -> Agent:
    """``mark`` collects what was really done, one line each. ``begun``: it dies when the tool has begun
    instead of when the person is asked. ``gone``: it has that tool no longer; ``options`` of it otherwise."""

    def note(line: str) -> None:
        with mark.open("a") as file:
            file.write(line + "\n")

    def person(*asked: Any) -> str:
        note("asked")
        if dies and not begun:
            kill()
        return "once"

    settings = options.pop("settings", None)

    @tool(**{"approval": "ask", **options})
    def danger(name: str) -> str:
        """Danger."""
        note(f"ran {name}")
        if dies:
            kill()
        return "dropped"

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        note("looked")
        if dies:
            while not any(turn.asked == "one" and turn.ended for turn in agent.journal.recent()):
                time.sleep(0.01)
            kill()
        return "seen"

    agent = Agent(
        ScriptedModel(repeat(answers)), home=home, session_id=SESSION, tools=[look] if gone else [danger, look],
        settings=settings, toolsets=["todo", "delegate", "clarify"],
        callbacks={"approval": person, "clarify": person} if attended else {},
    )  # fmt: skip
    return agent


if __name__ == "__main__":
    kind = sys.argv[3]
    one = agent_of(Path(sys.argv[1]), Path(sys.argv[2]), dies=True, begun=kind == "begun")
    one.chat("approval" if kind == "begun" else kind)
