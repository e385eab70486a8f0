"""What an editor is shown of a tool call: its kind, a title, the files, and what it changes.

Editors read titles and texts as Markdown, so whatever others wrote stands in code, from which nothing leads
out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acp.helpers import ToolCallContentVariant, text_block, tool_content, tool_diff_content
from acp.schema import ToolCallLocation, ToolKind

from fsm_agent.approvals.visible import visible
from fsm_agent.support.texts import clean, one_line, shorten

KINDS: Mapping[str, ToolKind] = {
    "list_directory": "read", "read_file": "read", "skill_view": "read", "ask_image": "read",
    "search_files": "search", "session_search": "search", "look_back": "search", "tool_search": "search",
    "write_file": "edit", "patch_file": "edit", "skill_manage": "edit", "memory": "edit",
    "terminal": "execute", "execute_code": "execute", "job_start": "execute", "job_list": "execute",
    "job_output": "execute", "job_wait": "execute", "job_stop": "execute",
    "web_fetch": "fetch", "ask_page": "fetch",
    "todo": "think", "delegate_task": "think",
    "clarify": "other", "tool_call": "other", "get_time": "other", "calculate": "other",
}  # fmt: skip
"""Of the built-in tools; every other one is ``other``."""
TELLING = ("command", "path", "pattern", "query", "url", "goal", "question", "code", "name")
"""Arguments that say most about a call; the first that is there stands in its title."""
LONGEST = 20_000
"""Characters of a result that are shown; the model gets what it always gets."""
LARGEST = 1_000_000
"""Bytes of a file that an editor is shown the whole of, as it was before it is replaced."""
_TICKS = re.compile("`+")


def kind_of(name: str) -> ToolKind:
    """Return which of the protocol's kinds a tool is of."""
    return KINDS.get(name, "other")


def title_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return one line: the tool, and what it is called with."""
    told = next((arguments[one] for one in TELLING if one in arguments), "")
    words = one_line(visible(told if isinstance(told, str) else repr(told), lines=False), 120)
    tool = one_line(visible(name, lines=False), 80)
    return f"{tool} {inline(words)}" if words else tool


def inline(text: str) -> str:
    """Return a line as code in Markdown."""
    ticks = "`" * (_longest(text) + 1)
    return f"{ticks} {text} {ticks}" if text[:1] == "`" or text[-1:] == "`" else f"{ticks}{text}{ticks}"


def fenced(text: str) -> str:
    """Return a text as a block of code in Markdown."""
    ticks = "`" * max(3, _longest(text) + 1)
    return f"{ticks}\n{text}\n{ticks}"


def locations_of(arguments: Mapping[str, Any], workdir: Path) -> list[ToolCallLocation]:
    """Return the file or folder that a call is about, with the line that it reads from."""
    path, line = arguments.get("path"), arguments.get("start_line")
    if not isinstance(path, str) or not path:
        return []
    begins = line if isinstance(line, int) and 0 < line < 1_000_000_000 else None
    return [ToolCallLocation(path=clean(str(workdir / path)), line=begins)]


def changes_of(
    name: str, arguments: Mapping[str, Any], workdir: Path, *, begins: bool
) -> list[ToolCallContentVariant]:
    """Return the change of a file that a call makes. When it ``begins``, a file that it replaces is read as
    it is now."""
    match name, arguments:
        case "patch_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return [tool_diff_content(clean(str(workdir / path)), clean(new), clean(old))]
        case "write_file", {"path": str(path), "content": str(new)}:
            before = _text_of(workdir, path) if begins else None
            return [tool_diff_content(clean(str(workdir / path)), clean(new), before)]
    return []


def result_of_call(text: str) -> list[ToolCallContentVariant]:
    """Return what a call brought."""
    return [tool_content(text_block(fenced(shorten(clean(text), LONGEST))))] if text.strip() else []


def raw(value: Any) -> Any:
    """Return JSON values that every editor can read."""
    return json.loads(clean(json.dumps(value, ensure_ascii=False, default=repr)))


def _text_of(workdir: Path, path: str) -> str | None:
    """A file of the working directory; ``None`` when there is none, or none that can be shown."""
    try:
        root, real = workdir.resolve(), (workdir / path).resolve()
        if not real.is_relative_to(root) or not real.is_file() or real.stat().st_size > LARGEST:
            return None
        return clean(real.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
