"""Running Python that a model wrote: in a process of its own, with limits, without the agent's
environment."""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fsm_agent.tools import Tool, ToolFailure
from fsm_agent.toolsets.call_line import CallLine
from fsm_agent.toolsets.process import TERM_GRACE, ProcessEnded, run, run_errors
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.programs import PROGRAM_DOOR
from fsm_agent.toolsets.sandbox import LOCAL, CommandPlace
from fsm_agent.toolsets.sandbox.confined import command_tool

MAX_SECONDS = 300
MAX_CODE = 200_000
"""Characters."""
MEMORY = 1 << 30
FILE = 50_000_000
OPEN_FILES = 128
PROCESSES = 32
"""Processes and threads besides those that the user has already. The system counts by user, and not at all
for root."""
SCRIPT = "main.py"
LONGEST = 3_600.0
"""Seconds of a program with all that it waits for: its own limit stands still while a tool runs for it."""
CALLS = (
    "The program can call your other tools: tools.NAME(argument=value, ...), for instance"
    " tools.read_file(path='a.txt'). A call gives the result as text, or as a Python value where that is a"
    " JSON object or array; one that fails raises tools.ToolError. Each call needs what it would need outside"
    " the program, a yes of the user included, so prefer programs that make many calls whose results you"
    " need not see."
)


class CodeRunner:
    """Runs code in a folder that is thrown away. The limits are against accidents; what keeps harm away is
    the sandbox, or, without one, that a person reads the code first: it can then read the user's files and
    use the network."""

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
                order, environ = _prepared(code, folder, timeout, self.place, line)
                ended = await run(order, environ, timeout, None if line is None else line.serve)
        output = ended.output.strip("\n") or "(no output)"
        made = f"\n[{line.made}]" if line and line.made else ""
        if ended.timed_out:
            raise ToolFailure(f"Killed after {timeout:g} seconds.{made} Output so far:\n{output}")
        return f"{_how(ended)}{made}\n{output}"


def code_tools(place: CommandPlace = LOCAL) -> tuple[Tool, ...]:
    """execute_code, run in ``place``."""
    note = CALLS if place.hands_on else ""
    return (command_tool(CodeRunner(place).execute_code, place, LONGEST, note),)


def _prepared(
    code: str, folder: str, timeout: float, place: CommandPlace, line: CallLine | None
) -> tuple[SupervisorOrder, dict[str, str]]:
    """What to run, and its environment, after the program was written down."""
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
    return place.entered(order, _environment(str(root)), root)


def _environment(folder: str) -> dict[str, str]:
    """Nothing of this process's own: no keys, no paths, no settings."""
    return {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}


def _running() -> int | None:
    """Processes and threads of this user; ``None`` where the system does not show them."""
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
