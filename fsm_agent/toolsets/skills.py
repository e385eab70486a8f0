"""The tool that reads skills, which the prompt only lists."""

from __future__ import annotations

from pathlib import Path

from fsm_agent.prompt.skills import SKILL_FILE, Skill, find_skills
from fsm_agent.support.injection_scan import scan
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.confine import plain_errors
from fsm_agent.toolsets.files import MAX_PAGE, NEVER_SPILLED, is_binary, regular_file

MAX_LISTED = 100


class SkillShelf:
    """The skills that can be used in one working directory, as they are when they are read."""

    def __init__(self, home: Path, workdir: Path) -> None:
        self.home, self.workdir = home, workdir

    def skill_view(self, name: str, file: str | None = None) -> str:
        """Read a skill: instructions for a kind of task. Without file, its SKILL.md and the list of its other
        files.

        Args:
            name: The skill's name, as it is listed.
            file: A file of the skill, relative to its folder, when SKILL.md points to one.
        """
        skill = self._skill(name)
        if file is not None:
            return _text(skill, file)
        text = _text(skill, SKILL_FILE)
        if reasons := scan(text):
            raise ToolFailure(f"Skill {skill.name} was not read: it holds {'; '.join(reasons)}.")
        others = _others(skill)
        return (
            f"{text}\n\n[Folder of this skill:"
            f" {skill.folder}{''.join(f'{chr(10)}- {other}' for other in others)}]"
        )

    def _skill(self, name: str) -> Skill:
        skills = {skill.name: skill for skill in find_skills(self.home, self.workdir).found}
        if name not in skills:
            raise ToolFailure(f"No skill is called {name!r}. There are: {', '.join(skills) or 'none'}.")
        return skills[name]


def skill_tools(home: Path, workdir: Path) -> tuple[Tool, ...]:
    """skill_view, when there is any skill to be viewed."""
    if not find_skills(home, workdir).found:
        return ()
    reader = tool(concurrency="parallel", effect="pure", max_result_chars=NEVER_SPILLED)
    return (reader(SkillShelf(home, workdir).skill_view),)


def _text(skill: Skill, file: str) -> str:
    real = regular_file(skill.folder, file)
    with plain_errors(file):
        if is_binary(real):
            raise ToolFailure(f"{file}: a binary file, not text; it is at {real}.")
        with real.open(encoding="utf-8-sig", errors="replace") as opened:
            text = opened.read(MAX_PAGE + 1)
    if len(text) > MAX_PAGE:
        return f"{text[:MAX_PAGE]}\n[the file goes on; it is at {real}]"
    return text


def _others(skill: Skill) -> list[str]:
    found = sorted(
        path.relative_to(skill.folder).as_posix()
        for path in skill.folder.rglob("*")
        if path.is_file() and path.name != SKILL_FILE and not path.name.startswith(".")
    )
    more = [f"… and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return [*found[:MAX_LISTED], *more]
