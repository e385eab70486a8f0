"""Changes files: writes a whole file or replaces a passage. A crash leaves either the old file or the new
one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from fsm_agent.support.diffs import MAX_COMPARED, NO_FILE, differing, unified_diff, unified_diff_lines
from fsm_agent.support.files import replace_file
from fsm_agent.support.texts import shorten
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.files import Seen, plain_errors, writable

# Finds the intended passage when its text is not in the file verbatim. Three ways, each only if the one
# before finds nothing: the exact text; the same lines ignoring spaces; the most similar lines. Each must find
# exactly one place: two are ambiguous.


SIMILAR = 0.85
"""Share of common characters from which lines match. Below it, lines of one kind (imports, table rows)
begin to match each other."""
EDGE = 0.6
"""Required similarity of the first and the last lines, or one line too many or too few would be replaced."""
DISTANCE = 0.05
"""Lead that the best place needs over the next, or they are ambiguous."""
SHORTEST = 20
"""Minimum non-space characters; a shorter text resembles too many places."""
SPAN = 2
"""Lines by which a place may be longer or shorter than the text: forgotten or invented ones."""
MAX_SCORED = 300
"""Places to compare character by character; those that share no whole line with the text come last."""
MAX_LINES = 100_000
MAX_PLACES = 1_000

How = Literal["exact", "spaces", "similar"]


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Characters ``start`` up to ``end`` of the file, on lines ``first`` to ``last`` (from 1), with a
    similarity ``score``."""

    start: int
    end: int
    first: int
    last: int
    how: How
    score: float = 1.0

    def lines(self) -> str:
        """Return the line range in words."""
        return f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"


def places(text: str, wanted: str) -> list[TextPlace]:
    """Find the places that ``wanted`` may mean: one when it is clear, several when ambiguous, the best
    first."""
    if exact := list(islice(_exact(text, wanted), MAX_PLACES)):
        return exact
    index = FileLines(text)
    if not wanted.strip() or len(index.lines) > MAX_LINES:
        return []
    return (
        list(_by_spaces(index, wanted)) or list(_inside_a_line(text, wanted)) or _by_similarity(index, wanted)
    )


class FileLines:
    """A text as lines with their ends and offsets."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def place(self, first: int, count: int, whole: bool, how: How, score: float = 1.0) -> TextPlace:
        """Return the place of ``count`` lines from index ``first``; without the end of the last line unless
        ``whole``."""
        end = self.starts[first + count]
        if not whole:
            last = self.lines[first + count - 1]
            end -= len(last) - len(last.rstrip("\r\n"))
        return TextPlace(self.starts[first], end, first + 1, first + count, how, score)


def _exact(text: str, wanted: str) -> Iterator[TextPlace]:
    """Find exact matches; overlapping ones count, because they are ambiguous too."""
    at, starts = text.find(wanted), None
    while at >= 0:
        starts = starts or [0, *(match.end() for match in re.finditer("\n", text))]
        first = bisect_right(starts, at)
        last = bisect_right(starts, max(at, at + len(wanted) - 1))
        yield TextPlace(at, at + len(wanted), first, last, "exact")
        at = text.find(wanted, at + 1)


def _by_spaces(index: FileLines, wanted: str) -> Iterator[TextPlace]:
    """Find runs of lines equal to the wanted ones without spaces; blank lines at the ends do not count."""
    lines = _trim(wanted)
    keys = [_pack(line) for line in lines]
    packed = [_pack(line) for line in index.lines]
    for first in range(len(packed) - len(keys) + 1):
        if packed[first] == keys[0] and packed[first : first + len(keys)] == keys:
            yield index.place(first, len(keys), wanted.endswith("\n"), "spaces")


def _inside_a_line(text: str, wanted: str) -> Iterator[TextPlace]:
    """Find a part of a line whose words have different spaces between them."""
    if wanted != wanted.strip() or "\n" in wanted:
        return
    pattern = r"[^\S\n]+".join(re.escape(word) for word in wanted.split())
    for match in islice(re.finditer(pattern, text), MAX_PLACES):
        line = text.count("\n", 0, match.start()) + 1
        yield TextPlace(match.start(), match.end(), line, line, "spaces")


def _by_similarity(index: FileLines, wanted: str) -> list[TextPlace]:
    lines = _trim(wanted)
    target = "\n".join(_normalize_spaces(line) for line in lines)
    if len(_pack(target)) < SHORTEST:
        return []
    scored = []
    for first, count in _candidates(index, lines):
        ends = ((index.lines[first], lines[0]), (index.lines[first + count - 1], lines[-1]))
        if any(
            _similarity(_normalize_spaces(one), _normalize_spaces(other), EDGE) < EDGE for one, other in ends
        ):
            continue
        score = _similarity(
            "\n".join(_normalize_spaces(line) for line in index.lines[first : first + count]), target
        )
        if score >= SIMILAR:
            scored.append(index.place(first, count, wanted.endswith("\n"), "similar", score))
    scored.sort(key=lambda place: -place.score)
    apart: list[TextPlace] = []
    for place in scored:
        if all(place.first > other.last or place.last < other.first for other in apart):
            apart.append(place)
    if not apart:
        return []
    return [place for place in apart if place.score > apart[0].score - DISTANCE]


def _candidates(index: FileLines, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Return candidates: (first line, number of lines). Those that share the most whole lines with the text
    come first."""
    where: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(index.lines):
        where[_pack(line)].append(number)
    votes: dict[int, int] = defaultdict(int)
    for offset, line in enumerate(lines):
        found = where.get(_pack(line), []) if line.strip() else []
        for number in found[:MAX_SCORED]:
            votes[number - offset] += 1
    if not votes:
        votes = dict.fromkeys(_like_a_line(index, lines), 1)
    tried = set()
    for start in sorted(votes, key=lambda start: -votes[start])[:MAX_SCORED]:
        for first in (start, start - 1, start + 1):
            for count in range(len(lines) - SPAN, len(lines) + SPAN + 1):
                inside = first >= 0 and count > 0 and first + count <= len(index.lines)
                if inside and (first, count) not in tried:
                    tried.add((first, count))
                    yield first, count


def _like_a_line(index: FileLines, lines: Sequence[str]) -> list[int]:
    """Return candidates when no line matches exactly: where the longest line has a similar one."""
    offset = max(range(len(lines)), key=lambda number: len(lines[number]))
    target = _normalize_spaces(lines[offset])
    likeness = [
        (_similarity(_normalize_spaces(line), target), number) for number, line in enumerate(index.lines)
    ]
    return [
        number - offset for score, number in sorted(likeness, reverse=True)[:10] if score >= SIMILAR - 0.1
    ]


def _similarity(one: str, other: str, least: float = SIMILAR - 0.1) -> float:
    """Return the similarity, or 0 as soon as it is certainly below ``least``."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return 0.0
    return matcher.ratio()


def _trim(wanted: str) -> list[str]:
    lines = wanted.splitlines()
    while not lines[0].strip():
        del lines[0]
    while not lines[-1].strip():
        del lines[-1]
    return lines


def _pack(line: str) -> str:
    return "".join(line.split())


def _normalize_spaces(line: str) -> str:
    return " ".join(line.split())


def reindent(new: str, wanted: str, found: str) -> str:
    """Return ``new`` with the indentation shift from ``wanted`` to ``found`` if all lines have the same
    one."""
    move = _move(_fill(wanted), _fill(found))
    if move is None:
        return new
    old, own = move
    lines = new.splitlines(keepends=True)
    if not all(line.startswith(old) for line in lines if line.strip()):
        return new
    return "".join(own + line[len(old) :] if line.strip() else line for line in lines)


def _move(wanted: Sequence[str], found: Sequence[str]) -> tuple[str, str] | None:
    """Return the indentation to remove and to add; ``None`` if the lines shift differently or not at all."""
    if len(wanted) != len(found) or not wanted:
        return None
    for cut in range(len(_indent(wanted[0])) + 1):
        old = _indent(wanted[0])[: len(_indent(wanted[0])) - cut]
        kept = _indent(wanted[0])[len(old) :]
        if not _indent(found[0]).endswith(kept):
            continue
        own = _indent(found[0])[: len(_indent(found[0])) - len(kept)]
        if all(
            _indent(w).startswith(old) and _indent(f) == own + _indent(w)[len(old) :]
            for w, f in zip(wanted, found, strict=True)
        ):
            return None if old == own else (old, own)
    return None


def _fill(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


MAX_DIFF = 10_000
"""Maximum characters."""


def diff(before: str, after: str, path: str) -> str:
    """Return a diff like ``diff -u``, cut in the middle if long, or a sentence if it cannot be shown."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return "Changed line ends only." if before != after else "Changed nothing."
    start, removed, added = differing(old, new)
    if removed + added > MAX_COMPARED:
        return f"From line {start + 1} on {removed:,} lines were replaced by {added:,}."
    return shorten("\n".join([f"--- {path}", f"+++ {path}", *unified_diff_lines(old, new)]), MAX_DIFF)


def whole_diff(before: str | None, after: str, path: str) -> str | None:
    """Return the complete diff of a file (``before`` is ``None`` for a new one), with all characters but line
    feeds unchanged; ``None`` when it is too long to compare."""
    hunks = unified_diff(before or "", after)
    if hunks is None:
        return None
    return "\n".join([f"--- {NO_FILE if before is None else path}", f"+++ {path}", *hunks])


Writing = Callable[[], AbstractContextManager[None]]

MAX_PATCHED = 5_000_000
"""Maximum bytes of a file to patch; longer files are data."""
DRIFTED = "was changed from outside since you last read or wrote it"


class Edits:
    """The writing tools of one working directory. ``writing`` is a context manager around each write."""

    def __init__(
        self, root: Path, seen: Seen, protected: Sequence[Path] = (), writing: Writing = nullcontext
    ) -> None:
        self.root, self.seen, self.protected, self.writing = root, seen, protected, writing

    def write_file(self, path: str, content: str) -> str:
        """Write a text file, replacing it if it exists, and show what changed. Missing parent directories are
        made.

        To change a part of a file, use patch_file. A file that was changed from outside since you read it is
        not replaced.

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
            drifted = self.seen.has_changed(real)
            before, after, note = self._plan_patch(real, drifted, path, old_text, new_text, every)
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
        """Return what a call would change now, as the complete unified diff that Git would show. ``None`` for
        another tool, for a call that would fail, and for a change too large to diff."""
        try:
            match name, arguments:
                case "write_file", {"path": str(path), "content": str(after), **others} if not others:
                    real = self._writable(path)
                    before = real.read_bytes().decode() if real.exists() else None
                case "patch_file", {"path": str(path), "old_text": str(old), "new_text": str(new), **others}:
                    real, every = self._writable(path), others.pop("every", False) is True
                    drifted = self.seen.has_changed(real)
                    before, after, _ = self._plan_patch(real, drifted, path, old, new, every)
                    if others:
                        return None
                case _:
                    return None
        except (ToolFailure, OSError, ValueError):
            return None
        return whole_diff(before, after, path)

    def _plan_patch(
        self, real: Path, drifted: bool, path: str, old_text: str, new_text: str, every: bool
    ) -> tuple[str, str, str]:
        """Return (text before, text after, note on how the place was found) of a patch."""
        real.stat()
        if not real.is_file():
            raise ToolFailure(f"{path}: not a regular file.")
        if real.stat().st_size > MAX_PATCHED:
            raise ToolFailure(f"{path}: larger than {MAX_PATCHED:,} bytes, too large to patch.")
        before = _text(real.read_bytes(), path)
        found, old, new = _find(before, old_text, new_text, path)
        if every and found[0].how == "exact":
            return before, before.replace(old, new), f"Replaced {before.count(old):,} places.\n"
        place = _only(found, drifted, path)
        return before, _patch(before, place, old, new), _note(place)

    def _writable(self, path: str) -> Path:
        real = writable(self.root, path, self.protected)
        with plain_errors(path):
            if real.is_dir():
                raise ToolFailure(f"{path}: is a directory.")
            if real.exists() and not real.is_file():
                raise ToolFailure(f"{path}: not a regular file.")
        return real

    def _replace(self, real: Path, data: bytes, path: str) -> None:
        """Check for concurrent changes at the last moment, then write."""
        if self.seen.has_changed(real):
            raise ToolFailure(f"{path}: {DRIFTED}. Nothing was written; read it again and write it then.")
        with self.writing():
            replace_file(real, data)
        self.seen.note(real)


def edit_tools(
    root: Path, seen: Seen, protected: Sequence[Path] = (), writing: Writing = nullcontext
) -> tuple[Tool, ...]:
    """Return write_file and patch_file, which need approval. Nothing is written into ``protected``
    folders."""
    edits = Edits(root, seen, protected, writing)
    writer = tool(concurrency="parallel", effect="idempotent", path_arguments=("path",), approval="ask")
    patcher = tool(concurrency="parallel", effect="unsafe", path_arguments=("path",), approval="ask")
    return (writer(edits.write_file), patcher(edits.patch_file))


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"{path}: not UTF-8 text; patching it would damage it.") from None


def _find(before: str, old: str, new: str, path: str) -> tuple[list[TextPlace], str, str]:
    """Return the candidate places, at least one, and both texts with the file's line ends."""
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


def _patch(before: str, place: TextPlace, old: str, new: str) -> str:
    if place.how == "exact":
        return before[: place.start] + new + before[place.end :]
    found = before[place.start : place.end]
    new = reindent(new, old, found)
    if not found.endswith("\n"):
        new = new.removesuffix("\n").removesuffix("\r")
    return before[: place.start] + new + before[place.end :]


def _note(place: TextPlace) -> str:
    if place.how == "exact":
        return ""
    how = "differs in spaces" if place.how == "spaces" else f"is {place.score:.0%} the same"
    return f"old_text was not found letter for letter; {place.lines()}, which {how}, was replaced:\n"


def _change(old: bytes | None, new: bytes, path: str) -> str:
    """Return the diff of a replaced file if both texts are small enough to compare."""
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
