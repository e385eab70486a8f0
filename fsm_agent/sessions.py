"""A conversation as it is held while an agent works on it: its rows, its prompt, and who is running a turn on it.

A ``Session`` is the live copy; what is done to it is noted in ``unwritten``, in order, for the store to write with the next
move. Rows are kept by identity and numbered as they come, so storing one twice stores it once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.compaction.guard import CompactionGuard
from fsm_agent.context import ContextMeter
from fsm_agent.errors import SessionBusy
from fsm_agent.messages import NO_USAGE, Message, Usage
from fsm_agent.prompt import StoredPrompt
from fsm_agent.wire import WireCopy


@dataclass(frozen=True, slots=True)
class Appended:
    """A new row, and the version of the transcript that it continues; ``None`` for a row that only a list names."""

    number: int
    version: int | None
    row: Message


@dataclass(frozen=True, slots=True)
class Replaced:
    """A new version of the transcript begins with the rows of these numbers; ``dropped`` ones are put aside."""

    version: int
    numbers: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continued:
    """The session ended by compaction, and goes on as ``child``."""

    child: Session


Note = Appended | Replaced | Continued


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """``rows`` is the transcript in use, ``version`` counts how often it was replaced, ``wire`` is the bytes already made of it.
    ``turns`` is how many have ended; ``revision`` what the store said of it when it was read; ``unsaved`` are writes that a
    failing store did not take. ``source``: what began it (cli, chat, debugger, python, child, fork)."""

    id: str
    rows: list[Message] = field(default_factory=list)
    prompts: dict[str, StoredPrompt] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    turns: int = 0
    wire: WireCopy = field(default_factory=WireCopy)
    meter: ContextMeter = field(default_factory=ContextMeter)
    guard: CompactionGuard = field(default_factory=CompactionGuard)
    kind: str = "root"
    parent: str | None = None
    title: str = ""
    source: str = ""
    end_reason: str = ""
    successor: Session | None = None
    holder: str | None = None
    version: int = 0
    revision: int = 0
    numbers: dict[Message, int] = field(default_factory=dict)
    next_number: int = 1
    unwritten: list[Note] = field(default_factory=list)
    unsaved: list[Callable[[Any], Any]] = field(default_factory=list)
    owner: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, turn_id: str) -> None:
        """One running turn a session. Raises ``SessionBusy`` with the turn that holds it."""
        with self._lock:
            if self.holder not in (None, turn_id):
                raise SessionBusy(f"session {self.id} is busy: turn {self.holder} is still running; wait for it or interrupt it")
            self.holder = turn_id

    def release(self, turn_id: str) -> None:
        with self._lock:
            if self.holder == turn_id:
                self.holder = None
        if self.successor is not None:
            self.successor.release(turn_id)

    def newest(self) -> Session:
        """The session that goes on after compactions: itself, or the last of its descendants."""
        return self if self.successor is None else self.successor.newest()

    def append(self, rows: Iterable[Message]) -> None:
        for row in rows:
            if row not in self.numbers:
                self.rows.append(row)
                self.unwritten.append(Appended(self._number(row), self.version, row))

    def replace(self, rows: Iterable[Message]) -> None:
        """These rows are the transcript from now on; rows that are not among them are put aside."""
        kept = list(rows)
        staying = set(kept)
        for row in kept:
            if row not in self.numbers:
                self.unwritten.append(Appended(self._number(row), None, row))
        dropped = tuple(self.numbers[row] for row in self.rows if row not in staying)
        self.rows, self.version, self.wire = kept, self.version + 1, WireCopy()
        self.unwritten.append(Replaced(self.version, tuple(self.numbers[row] for row in kept), dropped))

    def child(self, child: Session, rows: Iterable[Message]) -> None:
        """End this session by compaction: ``child`` goes on with these rows, under the same turn."""
        child.parent, child.prompts, child.guard, child.meter = self.id, dict(self.prompts), self.guard, self.meter
        child.title, child.kind = next_title(self.title or self.id), "compression"
        child.holder, child.usage, child.source = self.holder, self.usage, self.source
        self.successor, self.end_reason = child, "compression"
        self.unwritten.append(Continued(child))
        child.replace(rows)

    def numbered(self, rows: Sequence[Message]) -> list[int]:
        """The numbers of rows that were stored. Raises ``KeyError`` for one that was not."""
        return [self.numbers[row] for row in rows]

    def _number(self, row: Message) -> int:
        number = self.numbers[row] = self.next_number
        self.next_number += 1
        return number


def next_title(title: str) -> str:
    """``name`` becomes ``name #2``, ``name #2`` becomes ``name #3``."""
    name, _, number = title.rpartition(" #")
    return f"{name} #{int(number) + 1}" if name and number.isdigit() else f"{title} #2"
