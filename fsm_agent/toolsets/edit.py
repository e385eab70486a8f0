"""Changing files: write a whole one, or replace a place in it. A file is either the old one or the new
one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fsm_agent.support.atomic_write import replace_file
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.anchors import TextPlace, places
from fsm_agent.toolsets.confine import plain_errors, writable
from fsm_agent.toolsets.diff import diff, whole_diff
from fsm_agent.toolsets.indent import reindented
from fsm_agent.toolsets.seen import Seen

Writing = Callable[[], AbstractContextManager[None]]

MAX_PATCHED = 5_000_000
"""Bytes of a file that can be patched; longer ones are data, and a diff of them helps nobody."""
DRIFTED = "was changed by somebody else since you last read or wrote it"


class Edits:
    """The writing tools of one working directory. ``writing`` goes around each write."""

    def __init__(
        self, root: Path, seen: Seen, protected: Sequence[Path] = (), writing: Writing = nullcontext
    ) -> None:
        self.root, self.seen, self.protected, self.writing = root, seen, protected, writing

    def write_file(self, path: str, content: str) -> str:
        """Write a text file, replacing it if it exists, and show what changed. Missing parent directories are
        made.

        To change a part of a file, use patch_file. A file that somebody else changed since you read it is not
        replaced.

        Args:
            path: The file, relative to the working directory.
            content: The whole new content of the file.
        """
        real = self._writable(path)
        data = content.encode("utf-8", "replace")
        with plain_errors(path):
            old = real.read_bytes() if real.exists() and real.stat().st_size <= MAX_PATCHED else None
            size = real.stat().st_size if real.exists() else None
            if size is None:
                real.parent.mkdir(parents=True, exist_ok=True)
            self._replace(real, data, path)
        if size is None:
            return f"Wrote {len(data):,} bytes to {path} (a new file)."
        return f"Wrote {len(data):,} bytes to {path} (replaced {size:,} bytes).{_change(old, data, path)}"

    def patch_file(self, path: str, old_text: str, new_text: str, every: bool = False) -> str:
        """Replace a place in a text file and show the change as a diff.

        When old_text is not in the file letter for letter, the lines that differ from it only in spaces are
        taken, or else those that are most similar, if there is one such place; the answer says so. Check the
        diff then.

        Args:
            path: The file, relative to the working directory.
            old_text: The text to replace, as it is in the file, without line numbers. It must occur exactly
                once, so take in enough lines around the place.
            new_text: What to put there. Empty to delete.
            every: Replace every place where old_text is letter for letter.
        """
        real = self._writable(path)
        with plain_errors(path):
            drifted = self.seen.changed(real)
            before, after, note = self._planned(real, drifted, path, old_text, new_text, every)
            if real.read_bytes() != before.encode():
                raise ToolFailure(f"{path}: {DRIFTED}, just now. Nothing was changed; read it again.")
            with self.writing():
                replace_file(real, after.encode())
            self.seen.note(real)
        warning = (
            f"\n[{path} {DRIFTED}; the place was still there. Read it again before you rely on the rest.]"
            if drifted
            else ""
        )
        return note + diff(before, after, path) + warning

    def change(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return what a call of these tools would change now, as a unified diff of which nothing is left out.
        ``None`` for another tool, for a call that would fail, and where too much changes for a diff."""
        try:
            match name, arguments:
                case "write_file", {"path": str(path), "content": str(after), **others} if not others:
                    real = self._writable(path)
                    before = real.read_bytes().decode() if real.exists() else ""
                case "patch_file", {"path": str(path), "old_text": str(old), "new_text": str(new), **others}:
                    real, every = self._writable(path), others.pop("every", False) is True
                    drifted = self.seen.changed(real)
                    before, after, _ = self._planned(real, drifted, path, old, new, every)
                    if others:
                        return None
                case _:
                    return None
        except (ToolFailure, OSError, ValueError):
            return None
        return whole_diff(before, after, path)

    def _planned(
        self, real: Path, drifted: bool, path: str, old_text: str, new_text: str, every: bool
    ) -> tuple[str, str, str]:
        """(text before, text after, a note how the place was found) of a patch."""
        real.stat()
        if not real.is_file():
            raise ToolFailure(f"{path}: not a regular file.")
        if real.stat().st_size > MAX_PATCHED:
            raise ToolFailure(f"{path}: larger than {MAX_PATCHED:,} bytes, too large to patch.")
        before = _text(real.read_bytes(), path)
        found, old, new = _found(before, old_text, new_text, path)
        if every and found[0].how == "exact":
            return before, before.replace(old, new), f"Replaced {before.count(old):,} places.\n"
        place = _only(found, drifted, path)
        return before, _patched(before, place, old, new), _note(place)

    def _writable(self, path: str) -> Path:
        real = writable(self.root, path, self.protected)
        with plain_errors(path):
            if real.is_dir():
                raise ToolFailure(f"{path}: is a directory.")
            if real.exists() and not real.is_file():
                raise ToolFailure(f"{path}: not a regular file.")
        return real

    def _replace(self, real: Path, data: bytes, path: str) -> None:
        """Drift is looked for at the last moment."""
        if self.seen.changed(real):
            raise ToolFailure(f"{path}: {DRIFTED}. Nothing was written; read it again and write it then.")
        with self.writing():
            replace_file(real, data)
        self.seen.note(real)


def edit_tools(
    root: Path, seen: Seen, protected: Sequence[Path] = (), writing: Writing = nullcontext
) -> tuple[Tool, ...]:
    """write_file and patch_file, which need a yes. Nothing is written into ``protected`` folders."""
    edits = Edits(root, seen, protected, writing)
    writer = tool(concurrency="parallel", effect="idempotent", path_arguments=("path",), approval="ask")
    patcher = tool(concurrency="parallel", effect="unsafe", path_arguments=("path",), approval="ask")
    return (writer(edits.write_file), patcher(edits.patch_file))


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"{path}: not UTF-8 text; patching it would damage it.") from None


def _found(before: str, old: str, new: str, path: str) -> tuple[list[TextPlace], str, str]:
    """The places that may be meant, at least one, and both texts with the file's line ends."""
    if not old:
        raise ToolFailure("old_text is empty; use write_file to write a whole file.")
    if old == new:
        raise ToolFailure("old_text and new_text are the same; nothing to change.")
    if old not in before and "\r\n" in before:  # the reader shows such files with plain line ends
        old, new = ("\r\n".join(text.replace("\r\n", "\n").split("\n")) for text in (old, new))
    found = places(before, old)
    if not found:
        raise ToolFailure(f"{path}: old_text is not in the file. {_hint(before, old)}")
    return found, old, new


def _only(found: Sequence[TextPlace], drifted: bool, path: str) -> TextPlace:
    if len(found) > 1:
        where = ", ".join(
            f"{place.first}" if place.first == place.last else f"{place.first}-{place.last}"
            for place in found[:10]
        )
        how = {"exact": "occurs", "spaces": "occurs, apart from spaces,", "similar": "is similar to"}[
            found[0].how
        ]
        times = f"{len(found)} times" if found[0].how != "similar" else f"{len(found)} places"
        raise ToolFailure(
            f"{path}: old_text {how} {times} (at lines {where}); add lines around the one you mean."
        )
    if drifted and found[0].how != "exact":
        raise ToolFailure(f"{path}: {DRIFTED}, and old_text is not in it letter for letter. Read it again.")
    return found[0]


def _patched(before: str, place: TextPlace, old: str, new: str) -> str:
    if place.how == "exact":
        return before[: place.start] + new + before[place.end :]
    found = before[place.start : place.end]
    new = reindented(new, old, found)
    if not found.endswith("\n"):
        new = new.removesuffix("\n").removesuffix("\r")
    return before[: place.start] + new + before[place.end :]


def _note(place: TextPlace) -> str:
    if place.how == "exact":
        return ""
    how = "differs in spaces" if place.how == "spaces" else f"is {place.score:.0%} the same"
    return f"old_text was not found letter for letter; {place.lines()}, which {how}, was replaced:\n"


def _change(old: bytes | None, new: bytes, path: str) -> str:
    """The diff of a replaced file, when both are text of a size that can be compared."""
    if old is None or b"\0" in old or len(new) > MAX_PATCHED:
        return ""
    return "\n" + diff(old.decode("utf-8", "replace"), new.decode(), path)


def _hint(before: str, old: str) -> str:
    wanted = [line.strip() for line in old.splitlines() if line.strip()]
    if wanted:
        for number, line in enumerate(before.splitlines(), start=1):
            if line.strip() == wanted[0]:
                return f"Its first line is like line {number}: {line!r}. Compare the lines after it."
    return "Read the file again and copy the place exactly."
