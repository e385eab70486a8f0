"""A workshop with scripted agents, for the tests of the debugger's core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.debug import DebugEvent, Debugger, DebugSession
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.helpers.debugging import give


def looks_once(body: dict[str, Any]) -> Any:
    """A model that looks, and then says what it saw."""
    return text("blue") if body["messages"][-1]["role"] == "tool" else tools(call("look", {"at": "sky"}))


class Desk:
    """A workshop over scripted agents, and what its debuggers told."""

    def __init__(self, home: Path) -> None:
        self.home, self.ran = home, list[str]()
        self.script: Any = repeat(looks_once)
        self.workshop = DebugSession(store_for(home, "normal"), self.make_agent)
        self.events: list[DebugEvent] = []

    def make_agent(self, hint: str | None = None, **options: Any) -> Agent:
        @tool(effect="pure")
        def look(at: str) -> str:
            """Look."""
            self.ran.append(f"look {at}")
            return f"the {at} is blue"

        @tool(approval="ask")
        def paint(thing: str) -> str:
            """Paint."""
            self.ran.append(f"paint {thing}")
            return "painted"

        usual: dict[str, Any] = {"tools": [look, paint], "toolsets": [], "clock": FakeClock()}
        usual |= {"home": self.home, "store": store_for(self.home, "normal")}
        return Agent(ScriptedModel(self.script), **{**usual, **options})

    def start(self, message: str = "what color?") -> Debugger:
        debugger = self.workshop.start(message)
        debugger.listen(self.events.append)
        return debugger

    def finished(self) -> Debugger:
        """A debugger whose turn has run to its end."""
        debugger = self.start()
        assert give(debugger, "continue").phase == "ended"
        return debugger

    def held(self, *kinds: str) -> tuple[Debugger, dict[str, Any]]:
        """A debugger that holds such requests back, and the first of them."""
        debugger = self.start()
        debugger.order("hold", {"kinds": [*kinds]})
        return debugger, give(debugger, "continue").held[0]

    def told(self, kind: str) -> list[Any]:
        return [event.data for event in self.events if event.kind == kind]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "home")
    yield made
    made.workshop.close()
