"""Named groups of built-in tools.

>>> from fsm_agent.toolsets import toolset
>>> [tool.spec.name for tool in toolset("core")]  # doctest: +ELLIPSIS
['list_directory', 'read_file', ...]

===========  =================================================================================================
core         files, terminal without jobs, time, calculator: what an agent has when nothing else is said
files        list_directory, read_file, search_files, write_file, patch_file
terminal     terminal, and jobs in the background: job_start, job_list, job_output, job_wait, job_stop
web          web_fetch
code         execute_code
memory       memory: the notes that are kept between sessions
skills       skill_view, where there are skills
learn        skill_manage: writes skills, each change with approval
===========  =================================================================================================

``fsm_agent.toolsets.agent`` has those that are a part of the agent itself: todo, sessions, clarify, delegate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fsm_agent.errors import ConfigError
from fsm_agent.memory import Notes
from fsm_agent.settings import Memory, SandboxSettings, Web
from fsm_agent.support.files import home_of
from fsm_agent.tools import Tool
from fsm_agent.toolsets.calculator import small_tools
from fsm_agent.toolsets.edit import edit_tools
from fsm_agent.toolsets.files import Seen, file_tools, search_tools
from fsm_agent.toolsets.memory import memory_tools, skill_tools, skill_writing_tools
from fsm_agent.toolsets.sandbox import CommandPlace, aside_of, usable_sandbox
from fsm_agent.toolsets.terminal import job_tools, terminal_tools

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside


@dataclass(frozen=True, slots=True)
class ToolsetPlace:
    """The place where an agent's tools work. Without ``home``, tools that need it use the default home.
    ``aside`` moves away files that sandboxed commands may not leave behind."""

    root: Path
    results: Path | None = None
    home: Path | None = None
    notes: Notes | None = None
    web: Web = field(default_factory=Web)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    aside: Aside | None = None

    def at_home(self) -> Path:
        """Return the home directory: the given one or the default."""
        return self.home or home_of(None, os.environ)

    def commands(self) -> CommandPlace:
        """Return where commands run. Raises ``ConfigError`` for a sandbox that does not work here."""
        return usable_sandbox(self.sandbox, self.root, self.home)

    @property
    def protected(self) -> tuple[Path, ...]:
        """Folders that the agent's tools may not write: its own notes, sessions and settings."""
        return () if self.home is None else (self.home,)


def _files(place: ToolsetPlace) -> tuple[Tool, ...]:
    """Return the tools that read, search and change files, confined to the root; ``read_file`` also reads
    saved results. ``aside`` is notified of writes."""
    seen, writing = Seen(), nullcontext if place.aside is None else place.aside.writing
    edits = edit_tools(place.root, seen, place.protected, writing)
    return (*file_tools(place.root, place.results, seen), *search_tools(place.root), *edits)


def _core(place: ToolsetPlace) -> tuple[Tool, ...]:
    return (*_files(place), *terminal_tools(place.root, place.commands(), place.aside), *small_tools())


def _terminal(place: ToolsetPlace) -> tuple[Tool, ...]:
    commands = place.commands()
    return (
        *terminal_tools(place.root, commands, place.aside),
        *job_tools(place.root, commands, place.aside),
    )


def _web(settings: Web) -> tuple[Tool, ...]:
    from fsm_agent.toolsets.web import web_tools

    return web_tools(settings)


def _code(place: CommandPlace) -> tuple[Tool, ...]:
    from fsm_agent.toolsets.code import code_tools

    return code_tools(place)


TOOLSETS: dict[str, Callable[[ToolsetPlace], tuple[Tool, ...]]] = {
    "core": _core,
    "files": _files,
    "terminal": _terminal,
    "web": lambda place: _web(place.web),
    "code": lambda place: _code(place.commands()),
    "memory": lambda place: memory_tools(place.notes or Notes.at(place.at_home(), Memory())),
    "skills": lambda place: skill_tools(place.at_home(), place.root),
    "learn": lambda place: skill_writing_tools(place.at_home()),
}
"""Factories by toolset name. Each builds its tools for one place and imports rarely used ones lazily.
``skills`` is empty if there are no skills."""

__all__ = ["TOOLSETS", "ToolsetPlace", "toolset", "toolsets"]


def toolset(
    name: str,
    root: str | Path | None = None,
    results: Path | None = None,
    home: Path | None = None,
    notes: Notes | None = None,
    web: Web | None = None,
    sandbox: SandboxSettings | None = None,
) -> tuple[Tool, ...]:
    """Return the tools of a group, bound to the working directory ``root`` (default: that of the process).
    Long tool results are saved in ``results`` and can be read there. ``home`` holds skills and, unless
    ``notes`` are given, the memory files.

    Commands run where ``sandbox`` says.

    Raises ``ConfigError`` for an unknown name, for a root that is not a directory, and for a sandbox that
    does not work here.
    """
    return toolsets([name], root, results, home, notes, web, sandbox)


def toolsets(
    names: Iterable[str],
    root: str | Path | None = None,
    results: Path | None = None,
    home: Path | None = None,
    notes: Notes | None = None,
    web: Web | None = None,
    sandbox: SandboxSettings | None = None,
) -> tuple[Tool, ...]:
    """Return the tools of several groups, each once: two groups may share one, such as the terminal."""
    directory = Path.cwd() if root is None else Path(root)
    if not directory.is_dir():
        raise ConfigError(
            "the working directory of a toolset cannot be used", str(directory), "an existing directory"
        )
    root, rules = directory.resolve(), sandbox or SandboxSettings()
    aside = aside_of(rules, root, home)
    place = ToolsetPlace(root, results, home, notes, web or Web(), rules, aside)
    found: dict[str, Tool] = {}
    for name in names:
        if name not in TOOLSETS:
            raise ConfigError("unknown toolset", name, ", ".join(sorted(TOOLSETS)))
        for one in TOOLSETS[name](place):
            found.setdefault(one.spec.name, one)
    return tuple(found.values())
