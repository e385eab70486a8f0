"""The toolset that a general agent starts with: look at files, change them, run commands, tell the time, reckon."""

from __future__ import annotations

from pathlib import Path

from fsm_agent.tools import Tool
from fsm_agent.toolsets.edit import edit_tools
from fsm_agent.toolsets.files import file_tools
from fsm_agent.toolsets.search import search_tools
from fsm_agent.toolsets.small import small_tools
from fsm_agent.toolsets.terminal import terminal_tools


def core(root: Path, results: Path | None = None) -> tuple[Tool, ...]:
    """All core tools, confined to ``root`` as ``files.resolve`` describes; ``read_file`` also reads saved ``results``."""
    return (
        *file_tools(root, results),
        *search_tools(root),
        *edit_tools(root),
        *terminal_tools(root),
        *small_tools(),
    )
