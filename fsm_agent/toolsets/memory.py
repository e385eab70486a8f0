"""The tool that writes MEMORY.md and USER.md."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from fsm_agent.memory import EntryRefused, Held, MemoryFile, Notes, Operation
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import turn_here

Target = Literal["memory", "user"]
MOST_FAILURES = 3
"""Refused changes in one turn before no more are tried: making room is not worth a whole turn (AGT-03)."""
LEAVE = "Leave them as they are now, and continue with what you were asked."


class NoteKeeper:
    """The tool over one agent's notes."""

    def __init__(self, notes: Notes) -> None:
        self.files: dict[Target, MemoryFile] = {"memory": notes.memory, "user": notes.user}
        self._failed = "", 0

    def _failures(self, turn: str) -> int:
        """Refused changes in this turn."""
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
    """memory."""
    return (tool(concurrency="serial", effect="unsafe")(NoteKeeper(notes).memory),)


def _format_entries(held: Held) -> dict[str, Any]:
    return {"entries": list(held.entries), "usage": held.usage}


def _now(file: MemoryFile) -> str:
    """Return the current notes, with which the model can correct its call; nothing when the file itself is
    the problem."""
    try:
        return f"Now: {json.dumps(_format_entries(file.read()), ensure_ascii=False)}"
    except (EntryRefused, OSError):
        return ""
