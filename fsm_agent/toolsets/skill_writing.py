"""The tool that writes skills: instructions that later sessions find, and obey. So a person says yes to each
change, and is shown the whole file as it will be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fsm_agent.prompt.skills import SKILL_FILE, introduction
from fsm_agent.support.atomic_write import replace_file
from fsm_agent.support.injection_scan import scan
from fsm_agent.support.private_files import private_folder
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.confine import plain_errors, resolve
from fsm_agent.toolsets.files import MAX_PAGE


class SkillWriter:
    """The skills in the home of one agent; those of projects are files of these projects."""

    def __init__(self, home: Path) -> None:
        self.shelf = home / "skills"

    def skill_manage(
        self,
        action: Literal["create", "edit", "delete"],
        name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w .-]*$")],
        content: Annotated[str, Field(max_length=MAX_PAGE)] = "",
        file: str = SKILL_FILE,
    ) -> str:
        """Create, edit or delete a skill of the user: instructions for a kind of task, for later sessions.

        Use it for what took effort to find out and will be needed again, or when a skill turned out to be
        wrong. The user is shown the call and decides. It is listed from the next session on.

        Args:
            action: create makes a file that is not there; edit replaces a whole file; delete takes away the
                whole skill, or the file that is named.
            name: The skill's name, which is that of its folder.
            content: The whole file. SKILL.md begins with front matter: lines "name: ..." and
                "description: ..." (when to use it) between two lines "---".
            file: A file of the skill, relative to its folder.
        """
        folder, real = self._placed(name, file)
        there = real.is_file()
        if action == "create" and real.exists():
            raise ToolFailure(f"{name}/{file}: is there already; edit replaces it.")
        if action != "create" and not there:
            raise ToolFailure(f"{name}/{file}: no such file of a skill of the user.")
        if action == "delete":
            return self._deleted(folder, real)
        _refuse_unusable(name, real == folder / SKILL_FILE, content)
        if not (real == folder / SKILL_FILE or (folder / SKILL_FILE).is_file()):
            raise ToolFailure(f"{name}: has no {SKILL_FILE} yet; create that first.")
        with plain_errors(f"{name}/{file}"):
            private_folder(real.parent)
            replace_file(real, content.encode("utf-8", "replace"), 0o600)
        return f"{'Replaced' if there else 'Created'}: {real}"

    def _placed(self, name: str, file: str) -> tuple[Path, Path]:
        """The folder of the skill and the place of the file; a link leads to neither."""
        shelf = self.shelf.resolve()
        folder = shelf / name
        if folder.resolve() != folder:
            raise ToolFailure(f"{name}: leads out of {shelf}; it is changed by the user alone.")
        real = resolve(folder, file)
        if real == folder:
            raise ToolFailure(f"{file}: is no file of the skill.")
        return folder, real

    def _deleted(self, folder: Path, real: Path) -> str:
        with plain_errors(folder.name):
            if real == folder / SKILL_FILE:
                shutil.rmtree(folder)
                return f"Deleted: {folder}"
            real.unlink()
        return f"Deleted: {real}"


def skill_writing_tools(home: Path) -> tuple[Tool, ...]:
    """skill_manage."""
    return (tool(approval="ask")(SkillWriter(home).skill_manage),)


def _refuse_unusable(name: str, main: bool, content: str) -> None:
    if not content.strip():
        raise ToolFailure("content is empty: give the whole file.")
    if main:
        told = introduction(content)
        if isinstance(told, str):
            raise ToolFailure(f"{name}: {told}. Nothing was written.")
        if told[0] != name:
            raise ToolFailure(f"{name}: its front matter says name: {told[0]}. Nothing was written.")
    if reasons := scan(content):
        raise ToolFailure(f"{name}: it holds {'; '.join(reasons)}. Nothing was written.")
