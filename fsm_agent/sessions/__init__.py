"""Continuing conversations: the session (here), the turn as its caller sees it, a turn's claim on its
session, and the store.

A ``Session`` is read when a turn claims it, and belongs to that turn alone. Every change is recorded in
``unwritten``, in order; the store writes it with the next move. Rows are identified by object identity and
numbered as they are added, so storing one twice stores it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsm_agent.conversation.messages import NO_USAGE, Message, StoredPrompt, Usage
from fsm_agent.conversation.token_meter import CompactionGuard, ContextMeter

if TYPE_CHECKING:
    from fsm_agent.conversation.wire import WireCopy


@dataclass(frozen=True, slots=True)
class Appended:
    """A new row, and the transcript version that it extends; ``None`` for a row that the next
    ``RowsReplaced`` lists."""

    number: int
    version: int | None
    row: Message


@dataclass(frozen=True, slots=True)
class RowsReplaced:
    """A new version of the transcript that begins with the rows of these numbers; ``dropped`` rows are set
    aside."""

    version: int
    numbers: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continued:
    """The session ended by compaction and continues as ``child``."""

    child: Session


Note = Appended | RowsReplaced | Continued


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """``rows`` is the current transcript, ``version`` counts how often it was replaced, ``wire`` holds the
    bytes encoded from it if it was sent to a model. ``turns`` counts the turns that have ended. ``revision``
    is the stored revision when the session was read; every stored change increments it, and a copy with
    another revision is not written. ``source``: what started the session (cli, chat, debugger, python, child,
    fork). ``owner``: the process that holds it. ``successor``: the session that a compaction during this turn
    created from it."""

    id: str
    rows: list[Message] = field(default_factory=list)
    prompts: dict[str, StoredPrompt] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    turns: int = 0
    wire: WireCopy | None = None
    meter: ContextMeter = field(default_factory=ContextMeter)
    guard: CompactionGuard = field(default_factory=CompactionGuard)
    kind: str = "root"
    parent: str | None = None
    title: str = ""
    source: str = ""
    end_reason: str = ""
    successor: Session | None = None
    version: int = 0
    revision: int = 0
    numbers: dict[Message, int] = field(default_factory=dict)
    next_number: int = 1
    unwritten: list[Note] = field(default_factory=list)
    owner: str | None = None

    def onward(self) -> Iterator[Session]:
        """Yield the session, then the successors that compactions during this turn created."""
        session: Session | None = self
        while session is not None:
            yield session
            session = session.successor

    def forget(self) -> None:
        """Reset to an empty session of which nothing is stored."""
        self.rows, self.numbers, self.next_number, self.unwritten = [], {}, 1, []
        self.prompts, self.usage, self.turns, self.version, self.revision = {}, NO_USAGE, 0, 0, 0
        self.wire, self.successor, self.end_reason = None, None, ""

    def append(self, rows: Iterable[Message]) -> None:
        """Append rows to the transcript; rows that it already has stay where they are."""
        for row in rows:
            if row not in self.numbers:
                self.rows.append(row)
                self.unwritten.append(Appended(self._number(row), self.version, row))

    def replace(self, rows: Iterable[Message]) -> None:
        """Make these rows the transcript, as a new version; rows that are not among them are set aside."""
        kept = list(rows)
        staying = set(kept)
        for row in kept:
            if row not in self.numbers:
                self.unwritten.append(Appended(self._number(row), None, row))
        dropped = tuple(self.numbers[row] for row in self.rows if row not in staying)
        self.rows, self.version = kept, self.version + 1
        if self.wire is not None:
            self.wire.replace(kept)
        self.unwritten.append(RowsReplaced(self.version, tuple(self.numbers[row] for row in kept), dropped))

    def child(self, child: Session, rows: Iterable[Message]) -> None:
        """End this session by compaction: ``child`` continues with these rows, under the same turn."""
        child.parent, child.prompts, child.guard, child.meter = (
            self.id,
            dict(self.prompts),
            self.guard,
            self.meter,
        )
        child.title, child.kind = next_title(self.title or self.id), "compression"
        child.usage, child.source = self.usage, self.source
        self.successor, self.end_reason = child, "compression"
        self.unwritten.append(Continued(child))
        child.replace(rows)

    def numbers_of(self, rows: Sequence[Message]) -> list[int]:
        """Return the numbers under which rows are stored. Raises ``KeyError`` for a row without a number."""
        return [self.numbers[row] for row in rows]

    def _number(self, row: Message) -> int:
        number = self.numbers[row] = self.next_number
        self.next_number += 1
        return number


def next_title(title: str) -> str:
    """Return the title of the successor: ``name`` becomes ``name #2``, ``name #2`` becomes ``name #3``."""
    name, _, number = title.rpartition(" #")
    return f"{name} #{int(number) + 1}" if name and number.isdigit() else f"{title} #2"
