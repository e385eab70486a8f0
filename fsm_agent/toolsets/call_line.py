"""The line on which one program asks for calls of tools: a pair of sockets without a name, whose far end is
open in that program and nowhere else. Whoever holds it is the program; it dies with it.

One JSON object a line: ``{"name": …, "arguments": {…}}`` there, ``{"status": …, "value": …}`` back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from types import TracebackType
from typing import Any, Self

from fsm_agent.conversation.effects import ToolOutcome
from fsm_agent.support.pipes import sent
from fsm_agent.toolsets.programs import ProgramDoor

MOST = 2_000_000
"""Bytes of one call; a program that says more at once is not heard any longer."""
UNREADABLE = "a call is a JSON object with name and arguments, of at most 2,000,000 bytes"


class CallLine:
    """Serves a program at ``door``. ``made`` says which calls it made, for the result."""

    def __init__(self, door: ProgramDoor) -> None:
        self._door, self._calls = door, Counter[str]()
        self._near, self._far = socket.socketpair()

    def __enter__(self) -> Self:
        self._door.closed.clear()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._near.close()
        self._far.close()
        self._door.closed.set()

    @property
    def made(self) -> str:
        """In words, with how often."""
        calls = [name if count == 1 else f"{name} ×{count:,}" for name, count in self._calls.items()]
        return f"tools called: {', '.join(calls)}" if calls else ""

    def words(self, script: str) -> tuple[list[str], list[int]]:
        """Return what Python is called with to run ``script`` at the far end, and that end's number."""
        number = self._far.fileno()
        return ["-c", PROGRAM, str(number), script], [number]

    async def serve(self, clock: asyncio.Timeout) -> None:
        """Answer call after call; ``clock``, the program's time limit, stands still meanwhile."""
        self._far.close()
        reader, writer = await asyncio.open_connection(sock=self._near, limit=MOST)
        loop = asyncio.get_running_loop()
        try:
            while line := await reader.readline():
                left = (clock.when() or loop.time()) - loop.time()
                clock.reschedule(None)
                answer = await self._answer(line)
                clock.reschedule(loop.time() + left)
                await sent(writer, json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError):  # the program is gone, or says what is no line
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            name, arguments = str(asked["name"]), json.dumps(dict(asked["arguments"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"status": "error", "value": UNREADABLE}
        self._calls[name[:100]] += 1
        return _told(await self._door.call(name, arguments))


def _told(outcome: ToolOutcome) -> dict[str, Any]:
    """An outcome for the program: its text, or the object or array that this is the JSON of."""
    value: Any = outcome.text
    if outcome.status == "ok" and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = outcome.text
    return {"status": outcome.status, "value": value}


PROGRAM = r'''
import json, os, socket, sys, threading, types

class ToolError(Exception):
    """A call that brought no result; ``status`` says how it ended."""
    def __init__(self, text, status="error"):
        super().__init__(text)
        self.status = status

class Tools(types.ModuleType):
    """The tools of the conversation: tools.NAME(argument=value, ...)."""
    def __init__(self, number):
        super().__init__("tools", self.__doc__)
        line, lock, owner = socket.socket(fileno=number), threading.Lock(), os.getpid()
        line.set_inheritable(False)
        answers = line.makefile("rb")
        def ask(name, arguments):
            asked = json.dumps({"name": name, "arguments": arguments}).encode() + b"\n"
            if os.getpid() != owner:
                raise ToolError("tools are called by the program itself, not by processes that it starts")
            with lock:
                line.sendall(asked)
                said = answers.readline()
            if not said:
                raise ToolError("nobody answers any more")
            said = json.loads(said)
            if said["status"] != "ok":
                raise ToolError(said["value"], said["status"])
            return said["value"]
        self.__dict__.update(_ask=ask, ToolError=ToolError)
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        def call(**arguments):
            return self._ask(name, arguments)
        call.__name__ = call.__qualname__ = name
        return call

def excepthook(kind, error, trace):
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)

number, script = int(sys.argv[1]), sys.argv[2]
sys.argv, sys.excepthook = [script], excepthook
main = types.ModuleType("__main__")
main.__dict__.update(__file__=os.path.abspath(script), __builtins__=__builtins__, tools=Tools(number))
sys.modules["__main__"], sys.modules["tools"] = main, main.tools
with open(script, "rb") as opened:
    source = opened.read()
exec(compile(source, script, "exec"), main.__dict__)
'''
"""What Python runs before the program, and then the program, which finds ``tools``."""
