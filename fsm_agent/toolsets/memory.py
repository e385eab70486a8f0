"""The tool that writes MEMORY.md and USER.md."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from fsm_agent.memory.entries import Operation, Refused
from fsm_agent.memory.files import Held, MemoryFile, Notes
from fsm_agent.tools import Tool, ToolFailure, tool

Target = Literal["memory", "user"]


class NoteKeeper:
    """The notes of one agent, in the hands of its model."""

    def __init__(self, notes: Notes) -> None:
        self.files: dict[Target, MemoryFile] = {"memory": notes.memory, "user": notes.user}

    def memory(
        self,
        action: Literal["read", "add", "replace", "remove"] = "read",
        target: Target = "memory",
        content: str = "",
        old_text: str = "",
        operations: Annotated[list[Operation] | None, Field(max_length=50)] = None,
    ) -> dict[str, Any]:
        """Read or change the notes that are kept between sessions. Each note is a short text of its own.

        Notes are part of the prompt from the next session on. The answer shows all of them as they are now, and how much of
        the room they take. When it is full, merge or remove notes in the same call: the list of operations is done whole or
        not at all.

        Args:
            action: What to do with one note.
            target: memory for facts about machine, project and work; user for the person and what they prefer.
            content: The new note; for add and replace, which puts it in place of the whole old note.
            old_text: A part of the old note that no other note has; for replace and remove.
            operations: Several changes at once, instead of action, content and old_text.
        """
        file = self.files[target]
        asked = list(operations or ())
        if action != "read":
            asked.append(Operation(action=action, content=content, old_text=old_text))
        try:
            held = file.change(asked) if asked else file.read()
        except Refused as error:
            raise ToolFailure(f"{error}\n{_now(file)}".strip()) from None
        except OSError as error:
            raise ToolFailure(f"{file.path.name}: {error.strerror or error}. Nothing was changed.") from None
        return {"target": target, **_shown(held)}


def memory_tools(notes: Notes) -> tuple[Tool, ...]:
    """memory."""
    return (tool(concurrency="serial", effect="unsafe")(NoteKeeper(notes).memory),)


def _shown(held: Held) -> dict[str, Any]:
    return {"entries": list(held.entries), "usage": held.usage}


def _now(file: MemoryFile) -> str:
    """The live state for the model that must correct its call; nothing when the file itself is the problem."""
    try:
        return f"Now: {json.dumps(_shown(file.read()), ensure_ascii=False)}"
    except (Refused, OSError):
        return ""
