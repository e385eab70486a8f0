"""The toolsets of a general agent: read files, change them, run commands, tell the time, calculate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fsm_agent.tools import Tool
from fsm_agent.toolsets.edit import edit_tools
from fsm_agent.toolsets.files import Seen, file_tools
from fsm_agent.toolsets.sandbox import LOCAL, CommandPlace
from fsm_agent.toolsets.search import search_tools
from fsm_agent.toolsets.small import small_tools
from fsm_agent.toolsets.terminal import terminal_tools

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside


def files(
    root: Path, results: Path | None = None, protected: Sequence[Path] = (), aside: Aside | None = None
) -> tuple[Tool, ...]:
    """Tools to read, search and change files, confined to ``root`` by ``confine.resolve``; ``read_file``
    also reads saved ``results``, and nothing is written into ``protected`` folders. ``aside`` is notified
    of writes."""
    seen, writing = Seen(), nullcontext if aside is None else aside.writing
    edits = edit_tools(root, seen, protected, writing)
    return (*file_tools(root, results, seen), *search_tools(root), *edits)


def core(
    root: Path,
    results: Path | None = None,
    protected: Sequence[Path] = (),
    place: CommandPlace = LOCAL,
    aside: Aside | None = None,
) -> tuple[Tool, ...]:
    """Return ``files``, the terminal (which runs commands in ``place``), the time and a calculator."""
    return (
        *files(root, results, protected, aside),
        *terminal_tools(root, place, aside),
        *small_tools(),
    )
