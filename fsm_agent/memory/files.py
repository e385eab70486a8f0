"""MEMORY.md and USER.md: what an agent keeps between sessions, in files that people may read and edit.

A change locks, reads the file anew, and replaces it at once. Other agents may write meanwhile; a person too.
An edit by hand is recognised because the lock file remembers what was last written: then a copy of the file
is kept, the change is refused with the entries as they are now, and the next one is made on top of the edit.
(Why: decision 24.)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.memory.entries import EntryRefused, Operation, changed, entries_of, text_of
from fsm_agent.settings.model import Memory
from fsm_agent.support.atomic_write import replace_file
from fsm_agent.support.file_lock import locked
from fsm_agent.support.private_files import private_folder

MAX_FILE = 1_000_000
"""Bytes; a larger file is no memory file, and is left alone."""


@dataclass(frozen=True, slots=True)
class Held:
    """The live entries and how much of the limit they take, in characters."""

    entries: tuple[str, ...]
    used: int
    limit: int

    @property
    def usage(self) -> str:
        """Return in words how full the file is."""
        return f"{self.used:,} of {self.limit:,} characters ({self.used * 100 // max(1, self.limit)} %)"


class MemoryFile:
    """One file. ``limit`` in characters. Safe to use from several threads, agents and processes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._seen: set[str] = set()

    def read(self) -> Held:
        """The entries as they are now; none when there is no file. Raises ``OSError``, and ``EntryRefused``
        for a file that is no text or far too large."""
        content = self._content()
        self._seen.add(_digest(content))
        return self._held(entries_of(_text(content, self.path.name)))

    def change(self, operations: Sequence[Operation]) -> Held:
        """Make all the changes or none, and give what is there afterwards. Raises ``EntryRefused`` and
        ``OSError``."""
        private_folder(self.path.parent)
        with locked(self.path.with_name(f".{self.path.name}.lock")) as handle:
            content = self._content()
            entries = entries_of(_text(content, self.path.name))
            if self._edited_by_hand(content, handle):
                self._refuse(content)
            after = changed(entries, operations, self.limit)
            if after != entries:
                new = text_of(after).encode() + b"\n" * bool(after)
                replace_file(self.path.resolve(), new, mode=0o600)
                self._note(new, handle)
            return self._held(after)

    def _held(self, entries: Sequence[str]) -> Held:
        return Held(tuple(entries), len(text_of(entries)), self.limit)

    def _content(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return b""
        if len(content) > MAX_FILE:
            raise EntryRefused(f"{self.path.name} is larger than {MAX_FILE:,} bytes; it is left as it is.")
        return content

    def _edited_by_hand(self, content: bytes, handle: int) -> bool:
        """Known content is what this agent has read, or what any agent wrote last. Nothing written yet: it is
        taken over."""
        os.lseek(handle, 0, os.SEEK_SET)
        written = os.read(handle, 64).decode("ascii", "replace")
        return bool(written or self._seen) and _digest(content) not in (self._seen | {written})

    def _refuse(self, content: bytes) -> None:
        digest = _digest(content)
        copy = self.path.with_name(f"{self.path.name}.{digest[:8]}.bak")
        replace_file(copy, content, mode=0o600)
        self._seen.add(digest)
        raise EntryRefused(
            f"{self.path.name} was edited by hand since it was last written, so nothing was changed; a copy"
            f" is in {copy.name}. Look at the entries as they are now and make the change again if it still"
            " fits."
        )

    def _note(self, content: bytes, handle: int) -> None:
        digest = _digest(content)
        self._seen.add(digest)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, digest.encode())


@dataclass(frozen=True, slots=True)
class Notes:
    """The two files of an agent: about machine, project and work, and about the user."""

    memory: MemoryFile
    user: MemoryFile

    @classmethod
    def at(cls, home: Path, limits: Memory) -> Notes:
        """Return the notes of a home directory."""
        return cls(
            MemoryFile(home / "MEMORY.md", limits.memory_chars),
            MemoryFile(home / "USER.md", limits.user_chars),
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise EntryRefused(
            f"{name} is not UTF-8 text; it is left as it is until somebody repairs or removes it."
        ) from None
