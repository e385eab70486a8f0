"""Tools that say where their commands run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.confinement import LEAVES
from fsm_agent.tools import Tool, tool
from fsm_agent.toolsets.sandbox.place import CommandPlace

RUNS = (
    "It runs {inside}: of the machine's files it can change those below the working directory, without"
    " Git's own and those that run or instruct programs later, and the home is hidden."
)
LEAVING = f" What cannot work there can be run with {LEAVES}=true; the user is asked then."


def command_tool(
    handler: Callable[..., Any], place: CommandPlace, timeout: float | None = None, note: str = ""
) -> Tool:
    """A tool that runs commands in ``place`` after a yes, and tells the model what it has to know of it;
    where there is no sandbox, it cannot be left. ``timeout`` in seconds; ``note`` is told besides."""
    held, leaves = place.confinement, LEAVES in inspect.signature(handler).parameters
    words = [note] if note else []
    if held is not None:
        words.append(RUNS.format(inside=held.inside) + (LEAVING if leaves else ""))
    hidden = [LEAVES] if leaves and held is None else []
    options: dict[str, Any] = {"timeout": timeout, "note": "\n\n".join(words), "hidden": hidden}
    return replace(tool(approval="ask", writes_files=True, **options)(handler), confinement=held)
