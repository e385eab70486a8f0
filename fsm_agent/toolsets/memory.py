"""Tools for what an agent keeps between sessions: its notes (MEMORY.md and USER.md) and its skills."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fsm_agent.memory import EntryRefused, Held, MemoryFile, Notes, Operation
from fsm_agent.prompt import SKILL_FILE, Skill, find_skills, introduction
from fsm_agent.support.files import private_folder, replace_file
from fsm_agent.support.untrusted import scan
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.files import MAX_PAGE, NEVER_SPILLED, is_binary, plain_errors, regular_file, resolve
from fsm_agent.toolsets.tool_context import turn_here

Target = Literal["memory", "user"]
MOST_FAILURES = 3
"""Maximum refused changes in one turn: making room is not worth a whole turn (AGT-03)."""
LEAVE = "Leave them as they are now, and continue with what you were asked."


class NoteKeeper:
    """The memory tool over one agent's notes."""

    def __init__(self, notes: Notes) -> None:
        self.files: dict[Target, MemoryFile] = {"memory": notes.memory, "user": notes.user}
        self._failed = "", 0

    def _failures(self, turn: str) -> int:
        """Return the number of refused changes in this turn."""
        return self._failed[1] if self._failed[0] == turn else 0

    def memory(
        self,
        action: Literal["read", "add", "replace", "remove"] = "read",
        target: Target = "memory",
        content: str = "",
        old_text: str = "",
        operations: Annotated[list[Operation] | None, Field(max_length=50)] = None,
    ) -> dict[str, Any]:
        """Read or change the notes that are kept between sessions. Each note is a short text of its own.

        Notes are part of the prompt from the next session on. The answer shows all of them as they are now,
        and how much of the room they take. When it is full, merge or remove notes in the same call: the list
        of operations is done whole or not at all.

        Args:
            action: What to do with one note.
            target: memory for facts about machine, project and work; user for the person and what they
                prefer.
            content: The new note; for add and replace, which puts it in place of the whole old note.
            old_text: A part of the old note that no other note has; for replace and remove.
            operations: Several changes at once, instead of action, content and old_text.
        """
        file, turn = self.files[target], turn_here()
        asked = list(operations or ())
        if action != "read":
            asked.append(Operation(action=action, content=content, old_text=old_text))
        if asked and self._failures(turn) >= MOST_FAILURES:
            raise ToolFailure(f"{MOST_FAILURES} changes of the notes were refused in this turn. {LEAVE}")
        try:
            held = file.change(asked) if asked else file.read()
        except EntryRefused as error:
            self._failed = turn, self._failures(turn) + 1
            raise ToolFailure(f"{error}\n{_now(file)}".strip()) from None
        except OSError as error:
            raise ToolFailure(f"{file.path.name}: {error.strerror or error}. Nothing was changed.") from None
        return {"target": target, **_format_entries(held)}


def memory_tools(notes: Notes) -> tuple[Tool, ...]:
    """Return the memory tool."""
    return (tool(concurrency="serial", effect="unsafe")(NoteKeeper(notes).memory),)


def _format_entries(held: Held) -> dict[str, Any]:
    return {"entries": list(held.entries), "usage": held.usage}


def _now(file: MemoryFile) -> str:
    """Return the current notes, so that the model can correct its call; nothing if the file itself is the
    problem."""
    try:
        return f"Now: {json.dumps(_format_entries(file.read()), ensure_ascii=False)}"
    except (EntryRefused, OSError):
        return ""


# ----------------------------------------------------------------------------------------------------
# The tool that reads skills; the prompt only lists them.

MAX_LISTED = 100


class SkillShelf:
    """The usable skills of one working directory, read at each call."""

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

    def skills(self) -> Sequence[Skill]:
        """Return the viewable skills by name."""
        return find_skills(self.home, self.workdir).found

    def _skill(self, name: str) -> Skill:
        skills = {skill.name: skill for skill in self.skills()}
        if name not in skills:
            raise ToolFailure(f"No skill is called {name!r}. There are: {', '.join(skills) or 'none'}.")
        return skills[name]


def skill_tools(home: Path, workdir: Path) -> tuple[Tool, ...]:
    """Return skill_view, if there is any viewable skill."""
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
        return f"{text[:MAX_PAGE]}\n[the file continues; it is at {real}]"
    return text


def _others(skill: Skill) -> list[str]:
    found = sorted(
        path.relative_to(skill.folder).as_posix()
        for path in skill.folder.rglob("*")
        if path.is_file() and path.name != SKILL_FILE and not path.name.startswith(".")
    )
    more = [f"… and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return [*found[:MAX_LISTED], *more]


# The tool that writes skills: instructions that later sessions find and obey. So a person approves each
# change, and sees the whole new file.


class SkillWriter:
    """The skills in the home of one agent; those of a project are files of that project."""

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
        folder, real = self._place(name, file)
        there = real.is_file()
        if action == "create" and real.exists():
            raise ToolFailure(f"{name}/{file}: is there already; edit replaces it.")
        if action != "create" and not there:
            raise ToolFailure(f"{name}/{file}: no such file of a skill of the user.")
        if action == "delete":
            return self._delete(folder, real)
        _refuse_unusable(name, real == folder / SKILL_FILE, content)
        if not (real == folder / SKILL_FILE or (folder / SKILL_FILE).is_file()):
            raise ToolFailure(f"{name}: has no {SKILL_FILE} yet; create that first.")
        with plain_errors(f"{name}/{file}"):
            private_folder(real.parent)
            replace_file(real, content.encode("utf-8", "replace"), 0o600)
        return f"{'Replaced' if there else 'Created'}: {real}"

    def _place(self, name: str, file: str) -> tuple[Path, Path]:
        """Return the skill's folder and the path of the file; neither may be reached through a link."""
        shelf = self.shelf.resolve()
        folder = shelf / name
        if folder.resolve() != folder:
            raise ToolFailure(f"{name}: leads out of {shelf}; it is changed by the user alone.")
        real = resolve(folder, file)
        if real == folder:
            raise ToolFailure(f"{file}: is not a file of the skill.")
        return folder, real

    def _delete(self, folder: Path, real: Path) -> str:
        with plain_errors(folder.name):
            if real == folder / SKILL_FILE:
                shutil.rmtree(folder)
                return f"Deleted: {folder}"
            real.unlink()
        return f"Deleted: {real}"


def skill_writing_tools(home: Path) -> tuple[Tool, ...]:
    """Return skill_manage."""
    return (tool(approval="ask")(SkillWriter(home).skill_manage),)


def _refuse_unusable(name: str, main: bool, content: str) -> None:
    if not content.strip():
        raise ToolFailure("content is empty: give the whole file.")
    if main:
        front = introduction(content)
        if isinstance(front, str):
            raise ToolFailure(f"{name}: {front}. Nothing was written.")
        if front[0] != name:
            raise ToolFailure(f"{name}: its front matter says name: {front[0]}. Nothing was written.")
    if reasons := scan(content):
        raise ToolFailure(f"{name}: it holds {'; '.join(reasons)}. Nothing was written.")
