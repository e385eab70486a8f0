"""Running shell commands, each after a person has agreed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.files import plain_errors, resolve
from fsm_agent.toolsets.policy import hard_line
from fsm_agent.toolsets.process import run_shell

MAX_SECONDS = 600


class Terminal:
    """The shell of one working directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def terminal(
        self,
        command: Annotated[str, Field(min_length=1)],
        directory: str = ".",
        timeout: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 120,
    ) -> str:
        """Run a shell command and return its exit code and output (standard output and error together).

        Nothing can be typed into the command, so use options that answer its questions. Each call is a new shell. Very
        long output is cut in the middle. Redirect the output of programs that you start in the background.

        Args:
            command: The command line.
            directory: Where to run it, relative to the working directory.
            timeout: Seconds after which the command and all that it started are killed.
        """
        if os.name != "posix":
            raise ToolFailure("The terminal tool works on POSIX systems only.")
        if reason := hard_line(command):
            raise ToolFailure(f"Refused, and no approval can change that: {reason}.")
        if "\0" in command:
            raise ToolFailure("A command cannot contain a NUL character.")
        place = resolve(self.root, directory)
        with plain_errors(directory):
            ended = await run_shell(command, place, timeout)
        output = ended.output.strip("\n") or "(no output)"
        if ended.timed_out:
            raise ToolFailure(f"Killed after {timeout:g} seconds, with all that it started. Output so far:\n{output}")
        how = f"exit code {ended.code}" if ended.code >= 0 else f"killed by signal {-ended.code}"
        return f"{how}\n{output}"


def terminal_tools(root: Path) -> tuple[Tool, ...]:
    """The terminal. Its own limit ends before the turn's, so that the output so far is not lost."""
    return (tool(approval="ask", timeout=MAX_SECONDS + 60)(Terminal(root).terminal),)
