"""Reading files that people put beside the work: as much as may enter the prompt, whatever is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.support.untrusted import scan

SMALLEST_CAP, LARGEST_CAP, SHARE = 20_000, 500_000, 0.06
"""Characters that a context file always gets and never exceeds, and its share of the window (PROMPT-05)."""
CHARS_PER_TOKEN = 4
HEAD, TAIL = 0.7, 0.2
BROKEN = 0.05
"""Share of characters that are not UTF-8 from which a file counts as no text."""


def cap_of(window: int | None, configured: int | None = None) -> int:
    """Characters that one context file may take; ``window`` in tokens, ``None`` when unknown."""
    if configured is not None:
        return configured
    return max(SMALLEST_CAP, min(int(SHARE * (window or 0) * CHARS_PER_TOKEN), LARGEST_CAP))


@dataclass(frozen=True, slots=True)
class Reading:
    """The contribution of one file to the prompt. ``notice``: a line for people when the text differs from
    the file; ``usable`` is false when none of it may be used."""

    text: str = ""
    notice: str = ""
    usable: bool = True


def read(path: Path, name: str, cap: int, inside: Path | None = None) -> Reading:
    """The file called ``name``, capped and looked over. One that cannot be read, is no text, or is a link
    that leads out of the folder ``inside``, is empty with a notice; one that tries to give the agent other
    instructions is replaced by a note that says so."""
    try:
        if not path.is_file():
            return Reading()
        if inside is not None and leads_out(path, inside):
            return Reading(notice=f"{name} is a link that leads out of the project; it was left out")
        text, size = _head_and_tail(path, cap)
    except OSError as error:
        return Reading(notice=f"{name} could not be read: {error.strerror or error}")
    if "\0" in text or text.count("\ufffd") > len(text) * BROKEN:
        return Reading(notice=f"{name} is not text; it was left out")
    if reasons := scan(text):
        why = "; ".join(reasons)
        return Reading(
            f"[{name} was left out: it holds {why}]",
            f"{name} was left out of the prompt: {why}",
            usable=False,
        )
    notice = (
        f"{name} is too long ({size}): the prompt holds its beginning and its end, {cap:,} characters"
        if size
        else ""
    )
    return Reading(text.strip(), notice)


def leads_out(path: Path, folder: Path) -> bool:
    """Is the file behind the path outside of the folder? A repository can hold links to whatever its user can
    read. Raises ``OSError``."""
    return not path.resolve().is_relative_to(folder.resolve())


def cap_text(text: str, cap: int) -> str:
    """Head and tail of a text that is longer than ``cap`` characters, around a mark."""
    if len(text) <= cap:
        return text
    return _around(text[: int(cap * HEAD)], text[-int(cap * TAIL) :], f"{len(text):,} characters")


def _head_and_tail(path: Path, cap: int) -> tuple[str, str]:
    """The text, and how long the file is if that is too long. Of a huge file only the two ends are read."""
    with path.open("rb") as file:
        content = file.read(cap * 4 + 1)
        if len(content) <= cap * 4:
            text = content.decode("utf-8-sig", "replace")
            return cap_text(text, cap), f"{len(text):,} characters" if len(text) > cap else ""
        size = path.stat().st_size
        file.seek(max(0, size - int(cap * TAIL) * 4))
        tail = file.read(int(cap * TAIL) * 4).decode("utf-8", "replace")[-int(cap * TAIL) :]
    head = content.decode("utf-8-sig", "replace")[: int(cap * HEAD)]
    return _around(head, tail, f"{size:,} bytes"), f"{size:,} bytes"


def _around(head: str, tail: str, size: str) -> str:
    return f"{head}\n\n[… {size} in all; the middle is left out …]\n\n{tail}"


# ----------------------------------------------------------------------------------------------------
# What the project says to agents that work in it: one kind of file wins (PROMPT-03).


OWN = "FSM_AGENT.md"
"""Looked for in the working directory and above it, up to the root of the git repository."""
KINDS = ("AGENTS.md", "CLAUDE.md")
"""Then these, in the working directory only; then the rules of Cursor."""


@dataclass(frozen=True, slots=True)
class Project:
    """The text of the winning kind, empty without one, and lines for people about changes to it."""

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
            return Project(cap_text("\n\n".join(parts), cap + 1_000), tuple(notices))
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
