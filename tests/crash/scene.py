"""A turn through all eight states whose model has no memory of its own, and a world that notes what was done
to it.

The model answers from what it is sent, as a real one does, so a turn can be continued in another process. The
tools write to a file, so that what really happened can be compared with what the journal says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from fsm_agent import Agent, Settings, tool
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog
from fsm_agent.testing import FakeClock, ScriptedModel, blank, call, overflow, repeat, text, tools
from tests.helpers.on_postgres import database_class

SESSION = "s-crash"
HISTORY = [
    {"role": role, "content": f"{role} {number} " + "word " * 60}
    for number in range(10)
    for role in ("user", "assistant")
]
SUMMARY = "the summary of it all"


class Crash:
    """Ends this process at one point: ``("before", 3)`` the third commit, ``("after", 3)``, in the middle of
    the second model call ``("model", 2)`` or of a tool ``("tool", 1)``."""

    def __init__(self, point: tuple[str, int] | None = None) -> None:
        self.point = point
        self.counts: dict[str, int] = {}

    def __call__(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        if self.point == (what, self.counts[what]):
            os.kill(os.getpid(), signal.SIGKILL)


KEPT_IN: type[Any] = database_class()


class CrashingDatabase(KEPT_IN):
    """Ends the process before or after a commit. Commits each job separately, and puts off what no caller
    waits for until one does, so that the points are the same each time, and nothing is stored early."""

    crash = Crash()
    group, late = 1, 60.0

    def committing(self) -> None:
        self.crash("before")

    def committed(self) -> None:
        self.crash("after")


class PromptDatabase(CrashingDatabase):
    """Writes each job at once, even if no caller waits for it: what a crash leaves of a turn that
    takes its time."""

    def submit(self, job: Job, alone: bool = False, late: bool = False) -> Future[Any]:
        future = super().submit(job, alone)
        wait([future])
        return future


class GroupingDatabase(CrashingDatabase):
    """With several jobs a commit, as it really is."""

    group, late = KEPT_IN.group, KEPT_IN.late


def logging_with(log: type[ConversationLog]) -> type[Agent]:
    """Agents that write down what happens as this class does."""

    class Logging(Agent):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._turns.log_class = log

    return Logging


def assert_takes_the_place(*faults: type, new: str = "") -> None:
    """A class with a fault has only methods of the class that it inherits from: else it has no fault."""
    for fault in faults:
        own = {name for name in vars(fault) if not name.startswith("__")} - {new}
        assert all(hasattr(fault.__base__, name) for name in own), (
            f"{fault.__name__} takes the place of nothing"
        )


def note(home: Path, *words: str) -> None:
    """A line in the file of the world, safe at once."""
    with (home / "world.log").open("a") as file:
        file.write(" ".join(words) + "\n")
        file.flush()
        os.fsync(file.fileno())


def world(home: Path) -> list[list[str]]:
    path = home / "world.log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


class Place:
    """Where the tools act, and what may end them in the middle of it; one a process, so that tools are made
    only once."""

    home = Path()
    crash = Crash()


def tools_of(here: Place) -> list[Any]:
    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Do what cannot be undone."""
        note(here.home, "begin", "put", key)
        here.crash("tool")
        note(here.home, "end", "put", key)
        return f"put {key}"

    @tool(effect="idempotent")
    def mark(key: str, idempotency_key: str = "") -> str:
        """Do what may be done twice under one key."""
        note(here.home, "begin", "mark", idempotency_key)
        here.crash("tool")
        note(here.home, "end", "mark", idempotency_key)
        return f"marked {key}"

    @tool(effect="pure")
    def look(key: str) -> str:
        """Look at something."""
        note(here.home, "begin", "look", key)
        here.crash("tool")
        return f"saw {key}"

    return [put, mark, look]


HERE = Place()
TOOLS = tools_of(HERE)
SETTINGS = Settings.of(
    {"prompt": {"context_files": False}, "poll": {"control": 0.005}, "store": {"index": False}}
)


def model(crash: Crash) -> ScriptedModel:
    def answer(body: dict[str, Any]) -> Any:
        note(HERE.home, "sent", "model", "request")
        crash("model")
        said = json.dumps(body["messages"])
        if "tools" not in body:
            return text(SUMMARY)
        if SUMMARY in said:
            return blank() if body["messages"][-1]["role"] == "tool" else text("all done")
        if '"role": "tool"' in said:
            return overflow()
        both = call("put", {"key": "a"}, "c1"), call("mark", {"key": "b"}, "c2")
        return tools(*both, call("look", {"key": "c"}, "c3"))

    return ScriptedModel(repeat(answer))


def agent_of(
    home: Path,
    crash: Crash,
    durability: Any = "full",
    session: str = SESSION,
    kind: Callable[..., Agent] = Agent,
    database: type[CrashingDatabase] = CrashingDatabase,
    store: Store | None = None,
    heard: list[str] | None = None,
    port: ScriptedModel | None = None,
) -> Agent:
    CrashingDatabase.crash = HERE.crash = crash
    HERE.home = home
    given: dict[str, Any] = {"tools": TOOLS, "toolsets": [], "system_prompt": "You are a test.", "home": home}
    given |= {"session_id": session, "context_window": 100_000, "clock": FakeClock(), "settings": SETTINGS}
    given |= {"callbacks": {} if heard is None else {"status": lambda line: heard.append(line)}}
    return kind(port or model(crash), store=store or Store(home, durability, database), **given)
