"""Skills: folders with a ``SKILL.md`` that say how something is done. The prompt lists them; they are read on
demand.

A ``SKILL.md`` begins with front matter: lines ``key: value`` between two lines ``---``, of which ``name`` and
``description`` are used (https://agentskills.io).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.prompt.files import leads_out
from fsm_agent.support.texts import clean
from fsm_agent.support.untrusted import scan

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
