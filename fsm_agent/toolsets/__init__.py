"""Named groups of built-in tools.

>>> from fsm_agent.toolsets import toolset
>>> [tool.spec.name for tool in toolset("core")]  # doctest: +ELLIPSIS
['list_directory', 'read_file', ...]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fsm_agent.errors import ConfigError
from fsm_agent.tools import Tool
from fsm_agent.toolsets.core import core

TOOLSETS: dict[str, Callable[[Path, Path | None], tuple[Tool, ...]]] = {"core": core}
"""Each makes its tools for one working directory."""

__all__ = ["TOOLSETS", "toolset"]


def toolset(name: str, root: str | Path | None = None, results: Path | None = None) -> tuple[Tool, ...]:
    """The tools of a group, bound to the working directory ``root`` (default: the process's own). ``results`` is where long
    tool results are saved; they can be read there.

    Raises ``ConfigError`` for an unknown name, and for a root that is no directory.
    """
    if name not in TOOLSETS:
        raise ConfigError("unknown toolset", name, ", ".join(sorted(TOOLSETS)))
    directory = Path.cwd() if root is None else Path(root)
    if not directory.is_dir():
        raise ConfigError("the working directory of a toolset cannot be used", str(directory), "an existing directory")
    return TOOLSETS[name](directory.resolve(), results)
