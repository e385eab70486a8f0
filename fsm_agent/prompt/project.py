"""What the project says to agents that work in it: one kind of file wins (PROMPT-03)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.prompt.readers import capped, read

OWN = "FSM_AGENT.md"
"""Looked for in the working directory and above it, up to the root of the git repository."""
KINDS = ("AGENTS.md", "CLAUDE.md")
"""Then these, in the working directory only; then the rules of Cursor."""


@dataclass(frozen=True, slots=True)
class Project:
    """The text of the winning kind, empty when there is none, and lines for people about what is not as it
    stands."""

    text: str = ""
    notices: tuple[str, ...] = ()


def project(workdir: Path, cap: int) -> Project:
    """A file that is empty or cannot be read does not win."""
    notices: list[str] = []
    root = _up_to_git_root(workdir)[-1]
    for files in _kinds(workdir):
        parts: list[str] = []
        for path in files:
            name = _name(path, workdir)
            reading = read(path, name, cap, inside=root)
            notices += [reading.notice] if reading.notice else []
            if reading.text:
                parts.append(f"From {name}:\n\n{reading.text}")
        if parts:
            return Project(capped("\n\n".join(parts), cap + 1_000), tuple(notices))
    return Project(notices=tuple(notices))


def _kinds(workdir: Path) -> Iterator[list[Path]]:
    yield [folder / OWN for folder in _up_to_git_root(workdir) if os.path.isfile(folder / OWN)][:1]
    for name in KINDS:
        yield [workdir / name]
    yield [workdir / ".cursorrules", *_rules(workdir / ".cursor" / "rules")]


def _up_to_git_root(workdir: Path) -> list[Path]:
    """The working directory and its parents up to the one with ``.git``; only itself outside a repository."""
    above = [workdir, *workdir.parents]
    for index, folder in enumerate(above):
        if os.path.exists(folder / ".git"):
            return above[: index + 1]
    return [workdir]


def _rules(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".mdc")
    except OSError:
        return []


def _name(path: Path, workdir: Path) -> str:
    return path.relative_to(workdir).as_posix() if path.is_relative_to(workdir) else str(path)
