"""Reading files that people put beside the work: as much as may enter the prompt, whatever is in them; and
finding the skills among them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.support.texts import clean
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


# ----------------------------------------------------------------------------------------------------
# Skills: folders with a ``SKILL.md`` that say how something is done. The prompt lists them; they are read on
# demand.
#
# A ``SKILL.md`` begins with front matter: lines ``key: value`` between two lines ``---``, of which ``name``
# and ``description`` are used (https://agentskills.io).


SKILL_FILE = "SKILL.md"
MAX_NAME, MAX_DESCRIPTION = 64, 1_024
"""Characters, as the format allows."""
MAX_SKILLS = 200
MAX_FRONT = 20_000
"""Characters of a ``SKILL.md`` that are looked at for its front matter."""

_KEY = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*)|)$")
_BLOCK = re.compile(r"[|>][+-]?\d?$")
_NAME = re.compile(r"[^\s/\\:](?:[^\n/\\:]*[^\s/\\:])?")


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that the prompt offers: its name, when to use it, and the folder that it is read from."""

    name: str
    description: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Skills:
    """What was found, by name, and lines for people about what cannot be used."""

    found: tuple[Skill, ...] = ()
    notices: tuple[str, ...] = ()


def folders_of(home: Path, workdir: Path) -> tuple[Path, ...]:
    """Where skills are looked for. The user's own come first and win over those of a project with the same
    name."""
    return (home / "skills", workdir / ".agents" / "skills", workdir / ".claude" / "skills")


def find_skills(home: Path, workdir: Path) -> Skills:
    """Every folder with a usable ``SKILL.md``, sorted by name; of two with one name the first."""
    found: dict[str, Skill] = {}
    notices: list[str] = []
    for folder in folders_of(home, workdir):
        for path in _skill_files(folder):
            skill = _skill(path, None if folder.is_relative_to(home) else workdir)
            if isinstance(skill, str):
                notices.append(f"skill {path.parent.name} cannot be used: {skill}")
            elif len(found) < MAX_SKILLS:
                found.setdefault(skill.name, skill)
    return Skills(tuple(found[name] for name in sorted(found)), tuple(notices))


def front_matter(text: str) -> dict[str, str]:
    """The keys of the front matter; a value that continues over indented lines is folded into one line.
    Empty without front matter."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}
    values: dict[str, list[str]] = {}
    key = ""
    for line in lines[1:]:
        if line.rstrip() in ("---", "..."):
            return {name: _read_scalar(parts) for name, parts in values.items()}
        if match := _KEY.match(line):
            key = match[1].lower()
            values[key] = [match[2] or ""]
        elif key and line[:1] in (" ", "\t"):
            values[key].append(line.strip())
    return {}


def _read_scalar(parts: list[str]) -> str:
    """``>`` and ``|`` only say that a text follows; quotes and comments are dropped as YAML does."""
    first = parts[0].strip()
    if _BLOCK.match(first):
        return " ".join(part for part in parts[1:] if part)
    text = " ".join(part for part in (first, *parts[1:]) if part)
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('\\"', '"')
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()


def _skill_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for entry in folder.iterdir() if os.path.isfile(path := entry / SKILL_FILE))
    except OSError:
        return []


def _skill(path: Path, inside: Path | None) -> Skill | str:
    """The skill, or why it cannot be used. ``inside``: the folder that it must not lead out of."""
    try:
        if inside is not None and leads_out(path, inside):
            return f"its {SKILL_FILE} is a link that leads out of the project"
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            told = introduction(file.read(MAX_FRONT))
    except OSError as error:
        return f"its {SKILL_FILE} could not be read: {error.strerror or error}"
    return told if isinstance(told, str) else Skill(*told, path.parent)


def introduction(text: str) -> tuple[str, str] | str:
    """(name, description) that a ``SKILL.md`` gives itself, or why it cannot be used."""
    values = front_matter(text)
    name, description = values.get("name", ""), " ".join(clean(values.get("description", "")).split())
    if not name or not description:
        return f"its {SKILL_FILE} has no front matter with name and description"
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        return f"its name must have 1 to {MAX_NAME} characters, without slashes and colons"
    if reasons := scan(f"{name}\n{description}", strict=True):
        return "; ".join(reasons)
    return name, description[:MAX_DESCRIPTION]
