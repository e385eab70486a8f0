"""Changing files: write a whole one, or replace one place in it. A file is either the old one or the new one."""

from __future__ import annotations

import difflib
from pathlib import Path

from fsm_agent.atomic import replace_file
from fsm_agent.texts import shorten
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.files import plain_errors, regular_file, resolve

MAX_PATCHED = 5_000_000
"""Bytes of a file that can be patched; longer ones are data, and a diff of them helps nobody."""
MAX_DIFF = 10_000


class Edits:
    """The writing tools of one working directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_file(self, path: str, content: str) -> str:
        """Write a text file, replacing it if it exists. Missing parent directories are made.

        To change a part of a file, use patch_file.

        Args:
            path: The file, relative to the working directory.
            content: The whole new content of the file.
        """
        real = resolve(self.root, path)
        data = content.encode()
        with plain_errors(path):
            if real.is_dir():
                raise ToolFailure(f"{path}: is a directory.")
            if real.exists() and not real.is_file():
                raise ToolFailure(f"{path}: not a regular file.")
            old = real.stat().st_size if real.exists() else None
            real.parent.mkdir(parents=True, exist_ok=True)
            replace_file(real, data)
        how = "a new file" if old is None else f"replaced {old:,} bytes"
        return f"Wrote {len(data):,} bytes to {path} ({how})."

    def patch_file(self, path: str, old_text: str, new_text: str) -> str:
        """Replace one place in a text file and show the change as a diff.

        Args:
            path: The file, relative to the working directory.
            old_text: The text to replace, exactly as it is in the file, without line numbers. It must occur exactly
                once, so take in enough lines around the place.
            new_text: What to put there. Empty to delete.
        """
        real = regular_file(self.root, path)
        with plain_errors(path):
            if real.stat().st_size > MAX_PATCHED:
                raise ToolFailure(f"{path}: larger than {MAX_PATCHED:,} bytes, too large to patch.")
            before = _text(real.read_bytes(), path)
            after = _replaced(before, old_text, new_text, path)
            replace_file(real, after.encode())
        diff = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="")
        return shorten("\n".join(diff), MAX_DIFF) or "Changed line ends only."


def edit_tools(root: Path) -> tuple[Tool, ...]:
    """write_file and patch_file."""
    edits = Edits(root)
    writer = tool(concurrency="parallel", effect="idempotent", path_arguments=("path",))
    patcher = tool(concurrency="parallel", effect="unsafe", path_arguments=("path",))
    return (writer(edits.write_file), patcher(edits.patch_file))


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"{path}: not UTF-8 text; patching it would damage it.") from None


def _replaced(before: str, old: str, new: str, path: str) -> str:
    if not old:
        raise ToolFailure("old_text is empty; use write_file to write a whole file.")
    if old == new:
        raise ToolFailure("old_text and new_text are the same; nothing to change.")
    if old not in before and "\r\n" in before:  # the reader shows such files with plain line ends
        old, new = ("\r\n".join(text.replace("\r\n", "\n").split("\n")) for text in (old, new))
    places = _places(before, old)
    if not places:
        raise ToolFailure(f"{path}: old_text is not in the file. {_hint(before, old)}")
    if len(places) > 1:
        lines = ", ".join(str(before.count("\n", 0, place) + 1) for place in places[:10])
        raise ToolFailure(f"{path}: old_text occurs {len(places)} times (at lines {lines}); add lines around the one you mean.")
    return before[: places[0]] + new + before[places[0] + len(old) :]


def _places(text: str, part: str) -> list[int]:
    """Where ``part`` begins, overlapping places included, because those are ambiguous too."""
    places: list[int] = []
    at = text.find(part)
    while at >= 0 and len(places) < 1_000:
        places.append(at)
        at = text.find(part, at + 1)
    return places


def _hint(before: str, old: str) -> str:
    wanted = [line.strip() for line in old.splitlines() if line.strip()]
    if wanted:
        for number, line in enumerate(before.splitlines(), start=1):
            if line.strip() == wanted[0]:
                return f"Its first line is like line {number}: {line!r}. Compare spaces and the lines after it."
    return "Read the file again and copy the place exactly."
