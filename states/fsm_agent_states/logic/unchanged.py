"""Files that a tool was to change and did not: a person who reads "done" must not believe it (EXEC-33)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.support.texts import one_line
from fsm_agent_states.logic.calls import Checked
from fsm_agent_states.turn import TurnState

SHOWN = 10
"""Files that are named; of more the number is told."""


def note_files(turn: TurnState, calls: Sequence[Checked]) -> None:
    """Remember the files of calls that failed; a later call that changes the same file supersedes them."""
    for item in calls:
        if (
            item.spec is None
            or item.arguments is None
            or item.outcome is None
            or not changes_files(item.spec)
        ):
            continue
        for path in _paths(item.spec, item.arguments):
            where = posixpath.normpath(posixpath.join(turn.setup.workdir, path))
            status = item.outcome.status
            problem = "" if status == "ok" else f"{one_line(path, 200)} ({item.spec.name}: {status})"
            turn.tooling.note_file(where, problem)


def changes_files(tool: ToolSpec) -> bool:
    """Say whether the tool may change files that its arguments name."""
    return bool(tool.path_arguments) and tool.effect != "pure"


def footer(turn: TurnState) -> str:
    """What to add to the final answer, or nothing."""
    if not turn.tooling.unchanged_files or not turn.settings.tool.failed_files_footer:
        return ""
    lines = [f"- {line}" for line in turn.tooling.unchanged_files.values()]
    more = [f"- and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return (
        "\n\n[Files that were not changed, or perhaps not, because a tool failed:\n"
        + "\n".join(lines[:SHOWN] + more)
        + "]"
    )


def _paths(tool: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    return [value for name in tool.path_arguments if isinstance(value := arguments.get(name), str) and value]
