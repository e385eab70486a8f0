"""Running Python that a model wrote: in a process of its own, with limits, without the agent's
environment."""

from __future__ import annotations

import os
import tempfile
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fsm_agent.tools import Tool, ToolFailure
from fsm_agent.toolsets.process import TERM_GRACE, ProcessEnded, run, run_errors
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
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
            ended = await run(*_prepared(code, folder, timeout, self.place), timeout)
        output = ended.output.strip("\n") or "(no output)"
        if ended.timed_out:
            raise ToolFailure(f"Killed after {timeout:g} seconds. Output so far:\n{output}")
        return f"{_how(ended)}\n{output}"


def code_tools(place: CommandPlace = LOCAL) -> tuple[Tool, ...]:
    """execute_code, run in ``place``."""
    return (command_tool(CodeRunner(place).execute_code, place, MAX_SECONDS + 60),)


def _prepared(
    code: str, folder: str, timeout: float, place: CommandPlace
) -> tuple[SupervisorOrder, dict[str, str]]:
    """What to run, and its environment, after the program was written down."""
    root = Path(folder).resolve()
    (root / SCRIPT).write_text(code, encoding="utf-8", errors="replace")
    limits = {"CPU": ceil(timeout) + 1, "AS": MEMORY, "FSIZE": FILE, "NOFILE": OPEN_FILES, "CORE": 0}
    if (running := _running()) is not None:
        limits["NPROC"] = running + PROCESSES
    command = [place.python, "-I", "-B", "-u", "-X", "utf8", SCRIPT]
    order = SupervisorOrder(command, str(root), TERM_GRACE, limits=limits, sweep=True, limit=timeout + 5)
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
