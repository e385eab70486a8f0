"""What a compaction carries over word for word: the things that are still to be done (COMP-32)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fsm_agent.conversation.compaction.assemble import END
from fsm_agent.conversation.messages import Message

TITLE = "[Still to be done, by the list of things to do:]"
TODO = "todo"
ACTIVE = ("pending", "in_progress")


def carried_todos(middle: Sequence[Message], tail: Sequence[Message]) -> str:
    """The active items of the newest list among the rows that go, or of the summary before; nothing when the
    list stays in sight among the rows that are kept."""
    if _newest(tail) is not None:
        return ""
    lines = _newest(middle)
    if lines is None:
        lines = next((_of_summary(row.text) for row in reversed(middle) if row.summary), [])
    return "\n".join([TITLE, *lines]) if lines else ""


def active(result: str) -> list[str] | None:
    """The items of a list that are to be done, one line each; ``None`` for a text that is no list."""
    try:
        items = json.loads(result)["todos"]
        return [
            f"- [{item['status']}] {item['id']}: {item['content']}"
            for item in items
            if item["status"] in ACTIVE
        ]
    except (ValueError, KeyError, TypeError):
        return None


def _newest(rows: Sequence[Message]) -> list[str] | None:
    """Of the newest result that has its call; one without is somebody's invention."""
    calls = {call.id for row in rows for call in row.tool_calls if call.name == TODO}
    lists = (active(row.text) for row in reversed(rows) if row.role == "tool" and row.tool_call_id in calls)
    return next((lines for lines in lists if lines is not None), None)


def _of_summary(text: str) -> list[str]:
    _, found, rest = text.partition(TITLE)
    return (
        [line for line in rest.partition(END)[0].strip().splitlines() if line.startswith("- ")]
        if found
        else []
    )
