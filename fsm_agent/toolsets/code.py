"""Runs Python code written by a model in a process of its own, with limits and without the agent's
environment."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections import Counter
from contextlib import nullcontext
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import Field

from fsm_agent.conversation.effects import ToolOutcome
from fsm_agent.support.threads import send
from fsm_agent.tools import Tool, ToolFailure
from fsm_agent.toolsets.process import TERM_GRACE, ProcessEnded, run, run_errors
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.sandbox import LOCAL, CommandPlace, command_tool
from fsm_agent.toolsets.tool_context import PROGRAM_DOOR, ProgramDoor

# The channel on which a program requests tool calls: an unnamed socket pair whose far end is open in that
# program only, so holding that end identifies the program. The channel closes when the program ends.
#
# One JSON object a line: ``{"name": …, "arguments": {…}}`` from the program, ``{"status": …, "value": …}``
# back.


MOST = 2_000_000
"""Maximum bytes of one call; a program that exceeds it gets no further answers."""
UNREADABLE = "a call is a JSON object with name and arguments, of at most 2,000,000 bytes"


class CallLine:
    """Serves tool calls of the program at ``door`` and counts them."""

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
        """Return the calls with their counts, in words."""
        calls = [name if count == 1 else f"{name} ×{count:,}" for name, count in self._calls.items()]
        return f"tools called: {', '.join(calls)}" if calls else ""

    def words(self, script: str) -> tuple[list[str], list[int]]:
        """Return the Python arguments that run ``script`` at the far end, and that end's descriptor."""
        number = self._far.fileno()
        return ["-c", PROGRAM, str(number), script], [number]

    async def serve(self, clock: asyncio.Timeout) -> None:
        """Answer calls until the channel closes. Each pauses ``clock``, the program's time limit."""
        self._far.close()
        reader, writer = await asyncio.open_connection(sock=self._near, limit=MOST)
        loop = asyncio.get_running_loop()
        try:
            while line := await reader.readline():
                left = (clock.when() or loop.time()) - loop.time()
                clock.reschedule(None)
                answer = await self._answer(line)
                clock.reschedule(loop.time() + left)
                await send(writer, json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError):  # the program is gone or sent an invalid line
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
        return _outcome_json(await self._door.call(name, arguments))


def _outcome_json(outcome: ToolOutcome) -> dict[str, Any]:
    """Return an outcome for the program: its text, or the object or array that it encodes as JSON."""
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
                raise ToolError("the agent no longer answers")
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
"""Python prelude of each program; it defines ``tools``."""


MAX_SECONDS = 300
MAX_CODE = 200_000
"""Maximum characters."""
MEMORY = 1 << 30
FILE = 50_000_000
OPEN_FILES = 128
PROCESSES = 32
"""Processes and threads besides those that the user already has. The system counts them per user, and not for
root."""
SCRIPT = "main.py"
LONGEST = 3_600.0
"""Maximum seconds of a program including its tool calls, during which its own limit is paused."""
CALLS = (
    "The program can call your other tools: tools.NAME(argument=value, ...), for instance"
    " tools.read_file(path='a.txt'). A call gives the result as text, or as a Python value where that is a"
    " JSON object or array; one that fails raises tools.ToolError. Each call needs what it would need outside"
    " the program, the user's approval included, so prefer programs that make many calls whose results you"
    " need not see."
)


class CodeRunner:
    """Runs code in a temporary folder. The limits protect against accidents. Protection from harm comes from
    the sandbox or, without one, from a person who reads the code first: without a sandbox it can read the
    user's files and use the network."""

    def __init__(self, place: CommandPlace = LOCAL) -> None:
        self.place = place

    async def execute_code(
        self,
        code: Annotated[str, Field(min_length=1, max_length=MAX_CODE)],
        timeout: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 30,
    ) -> str:
        """Run a Python program and return its exit code and what it printed (standard output and error
        together).

        It starts in an empty folder that is deleted afterwards, without environment variables, input or
        anything from earlier runs. Print what you want to see; the value of the last line is not shown.

        Args:
            code: The program.
            timeout: Seconds after which it and all that it started are killed.
        """
        if os.name != "posix":
            raise ToolFailure("Code can be run on POSIX systems only.")
        with (
            tempfile.TemporaryDirectory(prefix="fsm-agent-code-", ignore_cleanup_errors=True) as folder,
            run_errors(),
        ):
            door = PROGRAM_DOOR.get(None) if self.place.hands_on else None
            with CallLine(door) if door is not None else nullcontext() as line:
                order, environ = _prepare(code, folder, timeout, self.place, line)
                ended = await run(order, environ, timeout, None if line is None else line.serve)
        output = ended.output.strip("\n") or "(no output)"
        made = f"\n[{line.made}]" if line and line.made else ""
        if ended.timed_out:
            raise ToolFailure(f"Killed after {timeout:g} seconds.{made} Output so far:\n{output}")
        return f"{_how(ended)}{made}\n{output}"


def code_tools(place: CommandPlace = LOCAL) -> tuple[Tool, ...]:
    """Return execute_code, which runs code in ``place``."""
    note = CALLS if place.hands_on else ""
    return (command_tool(CodeRunner(place).execute_code, place, LONGEST, note),)


def _prepare(
    code: str, folder: str, timeout: float, place: CommandPlace, line: CallLine | None
) -> tuple[SupervisorOrder, dict[str, str]]:
    """Write the program to a file; return the command line and its environment."""
    root = Path(folder).resolve()
    (root / SCRIPT).write_text(code, encoding="utf-8", errors="replace")
    limits = {"CPU": ceil(timeout) + 1, "AS": MEMORY, "FSIZE": FILE, "NOFILE": OPEN_FILES, "CORE": 0}
    if (running := _running()) is not None:
        limits["NPROC"] = running + PROCESSES
    words, passed = ([SCRIPT], []) if line is None else line.words(SCRIPT)
    command = [place.python, "-I", "-B", "-u", "-X", "utf8", *words]
    longest = timeout + 5 if line is None else LONGEST
    order = SupervisorOrder(
        command, str(root), TERM_GRACE, limits=limits, sweep=True, limit=longest, passed=passed
    )
    # nothing of this process: no keys, paths or settings
    environment = {"PATH": os.defpath, "HOME": str(root), "TMPDIR": str(root), "LANG": "C.UTF-8"}
    return place.enter(order, environment, root)


def _running() -> int | None:
    """Count processes and threads of this user; ``None`` where the system does not show them."""
    try:
        processes = [entry for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return None
    count = 0
    for entry in processes:
        try:
            if entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"{entry.path}/task"))
        except OSError:  # it has ended meanwhile
            continue
    return count


def _how(ended: ProcessEnded) -> str:
    if ended.code >= 0:
        return f"exit code {ended.code}"
    why = {24: " (its CPU time was used up)", 25: " (a file became too large)"}.get(-ended.code, "")
    return f"killed by signal {-ended.code}{why}"
