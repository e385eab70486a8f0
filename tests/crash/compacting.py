"""A turn that is compacted by an engine of the user's, and killed meanwhile. Run as a program:
``compacting.py HOME PLACE``; the place is ``model``, while the summary is asked for, or a step of the
engine's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.compaction import LongContext, summary_row
from fsm_agent.conversation.messages import Message
from fsm_agent.testing import ScriptedModel, repeat, silence, text
from tests.crash import kill

SESSION = "s-compacting"
WORDS = ("first", "second", "third", "fourth", "fifth")
HISTORY = [
    {"role": ("user", "assistant")[number % 2], "content": f"{said} {'word ' * 1_500}"}
    for number, said in enumerate(WORDS)
] + [{"role": "assistant", "content": "sixth"}]


class Notes:
    """Keeps the first row and what was said last, and notes in the home what it was asked."""

    def __init__(self, home: Path, dies: str) -> None:
        self._home, self._dies = home, dies

    def cut(self, context: LongContext) -> Sequence[int]:
        self._asked("cut")
        return range(1, len(context.rows) - 2)

    def prompt(self, context: LongContext, goes: Sequence[int], window: int) -> str:
        self._asked("prompt")
        return "What happened?"

    def rows(self, context: LongContext, goes: Sequence[int], summary: str) -> Sequence[Message]:
        self._asked("rows")
        return [context.rows[0], summary_row(summary), Message("assistant", "I see."), context.rows[-1]]

    def _asked(self, step: str) -> None:
        with (self._home / "asked").open("a") as file:
            file.write(step + "\n")
        if step == self._dies:
            kill()


def agent_of(home: Path, dies: str, *, engine: bool = True) -> Agent:
    def reply(body: dict[str, Any]) -> Any:
        if "What happened?" not in str(body["messages"]):
            return text("done")
        if dies == "model":
            threading.Timer(0.3, kill).start()
            return silence()
        return text("this and that")

    given = {"toolsets": [], "home": home, "session_id": SESSION, "context_window": 9_000}
    return Agent(ScriptedModel(repeat(reply)), context_engine=Notes(home, dies) if engine else None, **given)


if __name__ == "__main__":
    agent_of(Path(sys.argv[1]), sys.argv[2]).run_conversation("go", conversation_history=HISTORY)
