"""Named groups of built-in tools.

>>> from fsm_agent.toolsets import toolset
>>> [tool.spec.name for tool in toolset("core")]  # doctest: +ELLIPSIS
['list_directory', 'read_file', ...]
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.errors import ConfigError
from fsm_agent.home import home_of
from fsm_agent.memory.files import Notes
from fsm_agent.settings import Memory
from fsm_agent.tools import Tool
from fsm_agent.toolsets.core import core
from fsm_agent.toolsets.memory import memory_tools
from fsm_agent.toolsets.skills import skill_tools


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tools of an agent work. Without ``home``, the default one is looked up by the tools that need it."""

    root: Path
    results: Path | None = None
    home: Path | None = None
    notes: Notes | None = None

    def at_home(self) -> Path:
        return self.home or home_of(None, os.environ)


TOOLSETS: dict[str, Callable[[Place], tuple[Tool, ...]]] = {
    "core": lambda place: core(place.root, place.results),
    "memory": lambda place: memory_tools(place.notes or Notes.at(place.at_home(), Memory())),
    "skills": lambda place: skill_tools(place.at_home(), place.root),
}
"""Each makes its tools for one place. ``skills`` has none where there are no skills."""

__all__ = ["TOOLSETS", "Place", "toolset"]


def toolset(
    name: str,
    root: str | Path | None = None,
    results: Path | None = None,
    home: Path | None = None,
    notes: Notes | None = None,
) -> tuple[Tool, ...]:
    """The tools of a group, bound to the working directory ``root`` (default: the process's own). ``results`` is where long
    tool results are saved; they can be read there. ``home`` holds skills and, unless ``notes`` are given, the memory files.

    Raises ``ConfigError`` for an unknown name, and for a root that is no directory.
    """
    if name not in TOOLSETS:
        raise ConfigError("unknown toolset", name, ", ".join(sorted(TOOLSETS)))
    directory = Path.cwd() if root is None else Path(root)
    if not directory.is_dir():
        raise ConfigError("the working directory of a toolset cannot be used", str(directory), "an existing directory")
    return TOOLSETS[name](Place(directory.resolve(), results, home, notes))
