"""An agent's memory between sessions: two files that it maintains itself, and optionally an external service.

>>> from fsm_agent.memory import MemoryFile, MemoryProvider

MEMORY.md and USER.md are files that people may read and edit. A change locks the file, reads it again, and
replaces it atomically. Other agents and people may write at the same time. The lock file records what was
last written, which reveals an edit by hand: then the store keeps a copy of the file and refuses the change
with the current entries. The next change applies on top of the edit."""

# A manual edit of a memory file causes one refusal. The lock file records what an agent wrote last; other
# content is a manual edit. A copy is kept, and the change is refused together with the current entries, which
# then are the state. People may edit these files, and nothing of theirs is lost.

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import hashlib
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from fsm_agent.conversation.messages import Message
from fsm_agent.prompt import SMALLEST_CAP, Recalled, cap_text
from fsm_agent.runtime.clock import UsersCode, answer_of, require_method
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings import Memory, Settings
from fsm_agent.support.files import lock_file, private_folder, replace_file
from fsm_agent.support.texts import clean, one_line
from fsm_agent.support.threads import LOOP, Interrupt
from fsm_agent.support.untrusted import scan
from fsm_agent.tools import Tool

# ----------------------------------------------------------------------------------------------------
# The entries of a memory file as values: parsing them, and changing all of them or none.


SEPARATOR = "§"
"""The line between two entries."""


class Operation(BaseModel):
    """One change: add ``content``; put ``content`` in place of the entry that holds ``old_text``; or remove
    that entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["add", "replace", "remove"]
    content: Annotated[str, Field(description="The new entry; for add and replace.")] = ""
    old_text: Annotated[
        str, Field(description="A part of the old entry that no other entry has; for replace and remove.")
    ] = ""


class EntryRefused(Exception):  # a result, not a bug
    """The change cannot be made, in words for the model; nothing was changed."""


def entries_of(text: str) -> list[str]:
    """Return the entries in a file's text, without blank ones."""
    entries: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == SEPARATOR:
            entries.append([])
        else:
            entries[-1].append(line)
    return [entry for lines in entries if (entry := "\n".join(lines).strip())]


def text_of(entries: Sequence[str]) -> str:
    """Return the text that ``entries_of`` parses; its length counts against the limit."""
    return f"\n{SEPARATOR}\n".join(entries)


def apply_operations(entries: Sequence[str], operations: Sequence[Operation], limit: int) -> list[str]:
    """Return the entries after all operations. ``limit`` in characters applies to the result, so the same
    list can make room; a file over its limit may still shrink. Raises ``EntryRefused``."""
    after = list(entries)
    for operation in operations:
        _apply(after, operation)
    size = len(text_of(after))
    if size > limit and size >= len(text_of(entries)):
        raise EntryRefused(
            f"That would take {size:,} of {limit:,} characters. Shorten, merge or remove entries that matter"
            " less, in the same call (operations) or before it."
        )
    return after


def _apply(entries: list[str], operation: Operation) -> None:
    if operation.action == "remove":
        del entries[_find_entry(entries, operation)]
        return
    entry = _entry(operation)
    if operation.action == "replace":
        entries[_find_entry(entries, operation)] = entry
    elif entry not in entries:
        entries.append(entry)


def _entry(operation: Operation) -> str:
    entry = clean(operation.content).strip()
    if not entry:
        raise EntryRefused(f"{operation.action} needs content: the text of the entry.")
    if any(line.strip() == SEPARATOR for line in entry.splitlines()):
        raise EntryRefused(
            f"An entry cannot hold a line with only {SEPARATOR}, which separates entries. Add two entries"
            " instead."
        )
    if reasons := scan(entry, strict=True):
        raise EntryRefused(
            f"Not stored, because every later session would read it as its own: {'; '.join(reasons)}."
        )
    return entry


def _find_entry(entries: Sequence[str], operation: Operation) -> int:
    part = clean(operation.old_text).strip()
    if not part:
        raise EntryRefused(f"{operation.action} needs old_text: a part of the entry that is meant.")
    places = [index for index, entry in enumerate(entries) if part in entry]
    if not places:
        raise EntryRefused(f"No entry holds {one_line(part, 120)!r}.")
    if len(places) > 1 and entries[places[0]] != part:
        some = "; ".join(one_line(entries[place], 60) for place in places[:5])
        raise EntryRefused(f"{len(places)} entries hold {one_line(part, 120)!r}: {some}. Take a longer part.")
    return places[0]


MAX_FILE = 1_000_000
"""Bytes; a larger file is not a memory file, and is left alone."""


@dataclass(frozen=True, slots=True)
class Held:
    """The live entries and how much of the limit they take, in characters."""

    entries: tuple[str, ...]
    used: int
    limit: int

    @property
    def usage(self) -> str:
        """The used share of the file, in words."""
        return f"{self.used:,} of {self.limit:,} characters ({self.used * 100 // max(1, self.limit)} %)"


class MemoryFile:
    """One memory file. ``limit`` in characters. Safe to use from several threads, agents and processes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._seen: set[str] = set()

    def read(self) -> Held:
        """Return the current entries; empty if there is no file. Raises ``OSError``, and ``EntryRefused`` for
        a file that is not text or far too large."""
        content = self._content()
        self._seen.add(_digest(content))
        return self._read_held(entries_of(_text(content, self.path.name)))

    def change(self, operations: Sequence[Operation]) -> Held:
        """Make all changes or none, and return the resulting entries. Raises ``EntryRefused`` and
        ``OSError``."""
        private_folder(self.path.parent)
        with lock_file(self.path.with_name(f".{self.path.name}.lock")) as handle:
            content = self._content()
            entries = entries_of(_text(content, self.path.name))
            if self._edited_by_hand(content, handle):
                self._refuse(content)
            after = apply_operations(entries, operations, self.limit)
            if after != entries:
                new = text_of(after).encode() + b"\n" * bool(after)
                replace_file(self.path.resolve(), new, mode=0o600)
                self._note(new, handle)
            return self._read_held(after)

    def _read_held(self, entries: Sequence[str]) -> Held:
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
        """Return whether the content is neither what this agent has read nor what any agent wrote last.
        Content from before the first write is accepted."""
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
            f"{name} is not UTF-8 text; it is left as it is until a person repairs or removes it."
        ) from None


# ----------------------------------------------------------------------------------------------------
# Memory as the prompt of a new session shows it: frozen there, whatever is written later


MOST_EXTERNAL = SMALLEST_CAP
"""Maximum characters of an external memory in the prompt."""


def recall_files(notes: Notes | None, external: str | None = "", problem: str = "") -> Recalled:
    """Return both files, and the block of an external memory, for the prompt. What cannot be used is left out
    with a notice. ``external`` is ``None``, with the ``problem`` in words, if that memory did not answer."""
    notices = [problem] if problem else []
    return Recalled(
        _layer("# Memory: what you noted in earlier sessions", notes.memory, notices) if notes else "",
        _layer("# The user: what you noted about them in earlier sessions", notes.user, notices)
        if notes
        else "",
        _block((external or "").strip(), notices),
        tuple(notices),
        whole=external is not None,
    )


def _block(text: str, notices: list[str]) -> str:
    if not text:
        return ""
    if len(text) > MOST_EXTERNAL:
        notices.append(
            f"the block of the external memory is too long ({len(text):,} characters): the prompt holds its"
            f" beginning and its end, {MOST_EXTERNAL:,} characters"
        )
    shown = cap_text(_safe(text, "the external memory", notices), MOST_EXTERNAL)
    return f"# External memory\n\n{shown}"


def _layer(title: str, file: MemoryFile, notices: list[str]) -> str:
    try:
        held = file.read()
    except (OSError, EntryRefused) as error:
        notices.append(f"{file.path.name} could not be used: {error}")
        return ""
    shown = _visible_entries(held, file.path.name, notices)
    return f"{title} ({held.usage})\n\n{text_of(shown)}" if shown else ""


def _visible_entries(held: Held, name: str, notices: list[str]) -> list[str]:
    """Return the entries up to the limit; one that would take over the agent is replaced, in the snapshot
    only (MEM-04)."""
    shown: list[str] = []
    left = held.limit
    for entry in held.entries:
        left -= len(entry) + (len(SEPARATOR) + 2 if shown else 0)
        if left < 0:
            notices.append(
                f"{name} is over its limit ({held.usage}): the prompt holds the first {len(shown)} entries"
            )
            break
        shown.append(_safe(entry, name, notices))
    return shown


def _safe(entry: str, name: str, notices: list[str]) -> str:
    if not (reasons := scan(entry, strict=True)):
        return entry
    why = "; ".join(reason.rpartition(" (line")[0] for reason in reasons)
    notices.append(f"an entry of {name} was left out of the prompt: {why}")
    return f"[an entry was left out: it holds {why}]"


# ----------------------------------------------------------------------------------------------------
# Calls to an external memory: with limits, and stores in the background. It can never delay or fail a turn.
#
# External memory runs on the engine's own loop. Its methods would otherwise run on the caller's loop, and a
# connection cannot move between loops. Pending writes survive the end of `asyncio.run`, and delay the end of
# the process up to a time limit.


# ----------------------------------------------------------------------------------------------------
# Memory outside the home directory: a service that is asked before a turn and notified after it. At most one
# per agent.


class MemoryProvider(Protocol):
    """The interface of an external memory. Every method but ``tools`` may be asynchronous, or block (then it
    runs in a thread).

    The asynchronous ones always run on the engine's own event loop, so a connection may be kept between them.
    A method that raises or takes too long costs its own result and a line for people, never the turn."""

    def initialize(self, session_id: str) -> Awaitable[None] | None:
        """Start the memory. Called once, before anything else but ``tools``."""

    def prompt_block(self) -> Awaitable[str] | str:
        """Return this memory's text for the system prompt: what it knows of the user in general, how to use
        its tools; empty for nothing. Called when a session's prompt is built, and frozen in it; scanned for
        prompt injection. A provider without this method has no block."""

    def prefetch(self, text: str) -> Awaitable[str] | str:
        """Return what is worth knowing for this user message; empty for nothing. The model reads it with the
        message. It is neither stored as the user's words nor shown."""

    def sync(self, user: str, answer: str) -> Awaitable[None] | None:
        """Store a completed turn. Called in the background, one call at a time, in order; not after an
        interrupt."""

    def tools(self) -> Sequence[Tool]:
        """Return tools for the model. Called once, when the agent is made."""

    def pre_compress(self, rows: Sequence[Message]) -> Awaitable[str] | str:
        """Return what the summary of these messages must keep, or an empty string."""

    def session_switch(self, session_id: str, previous: str) -> Awaitable[None] | None:
        """Switch to the session of the next turn."""

    def shutdown(self) -> Awaitable[None] | None:
        """Release resources. Called once, after everything was stored."""


log = logging.getLogger(__name__)

MEMORIES: weakref.WeakSet[ExternalMemory] = weakref.WeakSet()
"""Memories in use, to wait for when the process ends."""
METHODS = ("initialize", "prefetch", "sync", "tools", "pre_compress", "session_switch", "shutdown")


class ExternalMemory:
    """An agent's provider. Its asynchronous methods all run on the engine's loop, whichever loop a turn runs
    on. Answers come with a problem in words, empty if there was none."""

    def __init__(self, provider: MemoryProvider, clock: Clock, settings: Settings) -> None:
        self._provider, self._limits = provider, settings.memory
        self._code = UsersCode("the external memory", clock, settings.poll.control)
        self._session: str | None = None
        self._pending: set[concurrent.futures.Future[None]] = set()
        self._in_order = asyncio.Lock()

    def tools(self) -> list[Tool]:
        return list(self._provider.tools())

    async def prompt_block(self, session_id: str, interrupted: Interrupt) -> tuple[str | None, str]:
        """Return the memory's block for the prompt of this session; ``None`` if it did not answer."""
        if (asked := getattr(self._provider, "prompt_block", None)) is None:
            return "", ""
        work = self._ask(session_id, asked)
        return await self._code.within(work, self._limits.prefetch_timeout, interrupted)

    async def prefetch(self, session_id: str, text: str, interrupted: Interrupt) -> tuple[str, str]:
        """Return what to know for this message. Earlier turns are stored first, so that they can be found."""
        late = await self.drain(interrupted)
        work = self._ask(session_id, self._provider.prefetch, text)
        found, problem = await self._code.within(work, self._limits.prefetch_timeout, interrupted)
        return found or "", "; ".join(filter(None, (late, problem)))

    async def pre_compress(self, rows: Sequence[Message], interrupted: Interrupt) -> tuple[str, str]:
        """Return what a summary of these rows must keep; empty if the provider was never used."""
        if self._session is None:
            return "", ""
        work = answer_of(self._provider.pre_compress, rows)
        kept, problem = await self._code.within(work, self._limits.prefetch_timeout, interrupted)
        return str(kept or ""), problem

    def sync(self, user: str, answer: str) -> None:
        """Store a completed turn, after those before it, without waiting."""
        MEMORIES.add(self)
        future = LOOP.submit(self._store(user, answer))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    async def drain(self, interrupted: Interrupt | None = None) -> str:
        """Wait until everything is stored, at most up to the limit; then cancel the rest."""
        if not self._pending:
            return ""
        waiting = list(self._pending)
        _, problem = await self._code.within(_all_of(waiting), self._limits.drain_timeout, interrupted)
        for future in waiting:
            future.cancel()
        return problem

    async def aclose(self) -> None:
        """Store what is left and shut the provider down, if it was ever used."""
        problems = [await self.drain()]
        if self._session is not None:
            self._session = None
            problems.append(
                (await self._code.within(answer_of(self._provider.shutdown), self._limits.drain_timeout))[1]
            )
        for problem in filter(None, problems):
            log.warning(problem)

    def wait(self) -> None:
        """Wait as ``drain`` does, when the process ends."""
        concurrent.futures.wait(list(self._pending), timeout=self._limits.drain_timeout)

    async def _ask(self, session_id: str, method: Callable[..., Any], *values: Any) -> str:
        """Ask for a text, after setting the provider's session."""
        if self._session is None:
            await answer_of(self._provider.initialize, session_id)
        elif self._session != session_id:
            await answer_of(self._provider.session_switch, session_id, self._session)
        self._session = session_id
        return str(await answer_of(method, *values) or "")

    async def _store(self, user: str, answer: str) -> None:
        async with self._in_order:
            try:
                await answer_of(self._provider.sync, user, answer)
            except Exception:
                log.warning("the external memory could not store a turn", exc_info=True)


def check_provider(provider: object) -> None:
    """Raise ``ConfigError`` for an object that is not a ``MemoryProvider``."""
    require_method(provider, "a memory provider", METHODS, "one object with the methods of MemoryProvider")


async def _all_of(futures: Sequence[concurrent.futures.Future[None]]) -> None:
    await asyncio.wait({asyncio.wrap_future(future) for future in futures})


@atexit.register
def _store_what_is_left() -> None:
    for memory in list(MEMORIES):
        memory.wait()
