"""An editor that speaks the Debug Adapter Protocol over a pipe in memory. Every message, both ways, is
checked by the schema."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.debug import DebugSession
from fsm_agent.debug.dap import LaunchOptions, talk
from fsm_agent.debug.dap.protocol import ByteReader, ByteWriter, read_message, write_message
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel
from fsm_agent_states import table as table_module
from tests.helpers.dap_schema import check
from tests.helpers.waiting import PATIENCE

TABLE = Path(str(table_module.__file__))


class Refused(Exception):
    """The server said no; the text is what a person sees."""


class Editor:
    """``ask`` sends a request and waits for its answer; ``event`` waits for one, older ones first."""

    def __init__(self, reading: ByteReader, writing: ByteWriter) -> None:
        self._writing, self._seq = writing, 0
        self._broken: Exception | None = None
        self._came: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.events: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, reading: ByteReader) -> None:
        try:
            while (message := read_message(reading)) is not None:
                self._came.put(message)
        except (OSError, ValueError) as error:  # cut off in the middle: seen by what is missing
            self._broken = error
        self._came.put(None)

    def send(self, command: str, arguments: dict[str, Any] | None = None, *, sound: bool = True) -> int:
        """``sound``: it is to be a request that the protocol has."""
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments or {}}
        if sound:
            check(message)
        write_message(self._writing, message)
        return self._seq

    def ask(self, command: str, *, sound: bool = True, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.send(command, arguments, sound=sound))

    def answer(self, seq: int) -> dict[str, Any]:
        """The body of the answer to a request."""
        while seq not in self._answers:
            self._next()
        message = self._answers.pop(seq)
        if not message["success"]:
            error = message["body"]["error"]
            raise Refused(error["format"].format(**error["variables"]))
        body: dict[str, Any] = message.get("body", {})
        return body

    def refuses(self, words: str, command: str, *, sound: bool = True, **arguments: Any) -> None:
        """Assert that the server refuses a request in such words."""
        with pytest.raises(Refused, match=words):
            self.ask(command, sound=sound, **arguments)

    def event(self, name: str, **values: Any) -> dict[str, Any]:
        """The body of the next event of this name with these values."""
        while True:
            for number, message in enumerate(self.events):
                body: dict[str, Any] = message.get("body", {})
                if message["event"] == name and all(body.get(key) == value for key, value in values.items()):
                    del self.events[: number + 1]
                    return body
            self._next()

    def outputs(self) -> list[str]:
        """Everything the debug console has shown."""
        return [one["body"]["output"].rstrip("\n") for one in self.messages if one.get("event") == "output"]

    def over(self) -> bool:
        """Wait until the server has closed the connection."""
        while (message := self._came.get(timeout=PATIENCE)) is not None:
            check(message)
        return True

    def _next(self) -> dict[str, Any]:
        message = self._came.get(timeout=PATIENCE)
        assert message is not None, f"the server has left: {self._broken}"
        check(message)
        self.messages.append(message)
        assert [one["seq"] for one in self.messages] == list(range(1, len(self.messages) + 1))
        if message["type"] == "event":
            self.events.append(message)
        else:
            self._answers[message["request_seq"]] = message
        return message

    # What an editor does often

    def begin(self, how: str = "launch", **options: Any) -> dict[str, Any]:
        """Initialize, configure, start; breakpoints are those of ``lines``, ``functions`` and ``filters``."""
        lines, functions = options.pop("lines", None), options.pop("functions", None)
        filters = options.pop("filters", ["failed", "crashed", "approval", "unknown"])
        found = self.initialize()
        started = self.send(how, options)
        self.event("initialized")
        made: list[dict[str, Any]] = []
        if lines:
            made += self.ask("setBreakpoints", source={"path": str(TABLE)}, breakpoints=lines)["breakpoints"]
        if functions:
            made += self.ask("setFunctionBreakpoints", breakpoints=functions)["breakpoints"]
        self.ask("setExceptionBreakpoints", filters=filters)
        self.ask("configurationDone")
        self.answer(started)
        return {"capabilities": found, "breakpoints": made}

    def initialize(self) -> dict[str, Any]:
        lines = {"linesStartAt1": True, "columnsStartAt1": True}
        return self.ask("initialize", adapterID="fsm-agent", pathFormat="path", **lines)

    def stopped(self, **values: Any) -> dict[str, Any]:
        return self.event("stopped", **values)

    def moved(self, command: str = "continue", thread: int = 1, **values: Any) -> dict[str, Any]:
        """Ask for a movement; return the stop after it."""
        self.ask(command, threadId=thread)
        return self.stopped(**values)

    def ends(self) -> int:
        """Continue to the end of the turn; return its exit code."""
        self.ask("continue", threadId=1)
        code: int = self.event("exited")["exitCode"]
        self.event("terminated")
        return code

    def stack(self, thread: int = 1, **window: int) -> list[dict[str, Any]]:
        frames: list[dict[str, Any]] = self.ask("stackTrace", threadId=thread, **window)["stackFrames"]
        return frames

    def scope(self, name: str, frame: int) -> dict[str, Any]:
        scopes = self.ask("scopes", frameId=frame)["scopes"]
        return next(one for one in scopes if one["name"] == name)

    def values(self, reference: int, **window: Any) -> dict[str, dict[str, Any]]:
        """Variables by name."""
        found = self.ask("variables", variablesReference=reference, **window)["variables"]
        return {one["name"]: one for one in found}

    def evaluate(self, expression: str, frame: int | None = None, context: str = "watch") -> str:
        where = {"frameId": frame} if frame is not None else {}
        return str(self.ask("evaluate", expression=expression, context=context, **where)["result"])


@tool(effect="pure")
def look_up(what: str) -> str:
    """Look something up."""
    return f"{what}: 42"


@tool(approval="ask")
def remove(key: str) -> str:
    """Remove something."""
    return f"removed {key}"


def agent_of(home: Path, script: Any, **options: Any) -> Agent:
    made = {"tools": [look_up, remove], "toolsets": [], "clock": FakeClock(), **options}
    return Agent(ScriptedModel(script), home=home, store=store_for(home, "normal"), **made)


def workshop_of(home: Path, script: Any, **options: Any) -> DebugSession:
    """``script`` starts from the beginning for each agent."""
    return DebugSession(store_for(home, "normal"), lambda hint: agent_of(home, script, **options))


@contextmanager
def editing(
    workshop: DebugSession, first: str | None = None, secrets: tuple[str, ...] = (), opener: Any = None
) -> Iterator[Editor]:
    """A server on the other end of a pipe in memory; it must have ended well afterwards."""
    ours, theirs = socket.socketpair()
    problems: list[BaseException] = []

    def refuse(options: LaunchOptions) -> DebugSession:
        raise AssertionError("no workshop of its own was to be asked for")

    def serve() -> None:
        try:
            with theirs, theirs.makefile("rb", 0) as reading, theirs.makefile("wb") as writing:
                talk(reading, writing, workshop, first, opener or refuse, secrets)
                theirs.shutdown(socket.SHUT_RDWR)
        except BaseException as error:
            logging.getLogger(__name__).exception("the server failed")
            problems.append(error)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        with ours, ours.makefile("rb", 0) as reading, ours.makefile("wb") as writing:
            yield Editor(reading, writing)
            ours.shutdown(socket.SHUT_WR)
            server.join(PATIENCE)
            assert not server.is_alive(), "the server outlived its editor"
        assert not problems, problems
    finally:
        workshop.close()


def line_of(text: str) -> int:
    """The number of the line of the table that begins so."""
    lines = TABLE.read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def column_of(line: int, text: str) -> int:
    return TABLE.read_text("utf-8").splitlines()[line - 1].index(text) + 1
