"""A conversation as it is held while an agent works on it: its rows, its prompt, and who is running a turn on
it.

A ``Session`` is the live copy; what is done to it is noted in ``unwritten``, in order, for the store to write
with the next move. Rows are kept by identity and numbered as they come, so storing one twice stores it once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.compaction.engine import CompactionGuard
from fsm_agent.conversation.messages import NO_USAGE, Message, Usage
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.errors import OwnershipLost, SessionBusy
from fsm_agent.prompt import StoredPrompt


@dataclass(frozen=True, slots=True)
class Appended:
    """A new row, and the version of the transcript that it continues; ``None`` for a row that only a list
    names."""

    number: int
    version: int | None
    row: Message


@dataclass(frozen=True, slots=True)
class RowsReplaced:
    """A new version of the transcript begins with the rows of these numbers; ``dropped`` ones are put
    aside."""

    version: int
    numbers: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continued:
    """The session ended by compaction, and goes on as ``child``."""

    child: Session


Note = Appended | RowsReplaced | Continued
_CLAIMS = itertools.count(1)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """``rows`` is the transcript in use, ``version`` counts how often it was replaced, ``wire`` is the bytes
    already made of it. ``turns`` is how many have ended. ``revision`` is what the store said of it when it
    was read: whatever changes the session there counts it up, so a copy with another revision is not
    believed. ``unsaved`` are writes that a failing store did not take. ``source``: what began it (cli, chat,
    debugger, python, child, fork).

    ``holder`` is the turn that has it in this process, and ``claim`` the number of that hold: a turn that is
    resumed while an older ``Turn`` of it stands still takes it over, and the older one finds another number.
    ``moving`` while a step is made."""

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
    claim: int = 0
    moving: bool = False
    version: int = 0
    revision: int = 0
    numbers: dict[Message, int] = field(default_factory=dict)
    next_number: int = 1
    unwritten: list[Note] = field(default_factory=list)
    unsaved: list[Callable[[Any], Any]] = field(default_factory=list)
    owner: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, turn_id: str) -> int:
        """Give the session, and what it went on as, to a turn of this process, and return the claim to call
        ``release`` with. Raises ``SessionBusy`` when another turn has it; a turn that stands still between
        two steps may be taken over under its own id."""
        with contextlib.ExitStack() as locks:
            line = list(self.onward())
            for session in line:
                locks.enter_context(session._lock)
                if session.holder not in (None, turn_id) or (session.holder is not None and session.moving):
                    raise SessionBusy(
                        f"session {session.id} is busy: turn {session.holder} is still running; wait for it"
                        " or interrupt it"
                    )
            claim = next(_CLAIMS)
            for session in line:
                session.holder, session.claim = turn_id, claim
            return claim

    def release(self, claim: int) -> None:
        """Let the session go, unless somebody else has claimed it since."""
        for session in self.onward():
            with session._lock:
                if session.claim == claim:
                    session.holder = None

    def onward(self) -> Iterator[Session]:
        """Yield the session, and those that it went on as after compactions in this process."""
        session: Session | None = self
        while session is not None:
            yield session
            session = session.successor

    @property
    def idle(self) -> bool:
        """True when no turn of this process has it, and nothing of it is still to be stored."""
        return all(session.holder is None and not session.unsaved for session in self.onward())

    def newest(self) -> Session:
        """Return the session that goes on after compactions: itself, or the last of those that it went on
        as."""
        *_, newest = self.onward()
        return newest

    def handed_to(self, successor: Session) -> None:
        """Give ``successor``, which a compaction in another process made of this session, to whoever holds
        this one. Raises ``SessionBusy`` when a turn of this process has it."""
        with successor._lock:
            if successor.holder not in (None, self.holder):
                raise SessionBusy(
                    f"session {successor.id} is busy: turn {successor.holder} is still running; wait for it"
                )
            successor.holder, successor.claim, successor.moving = self.holder, self.claim, self.moving
        self.successor = successor

    def forget(self) -> None:
        """Make it a session in which nothing was said, and of which nothing is stored."""
        self.rows, self.numbers, self.next_number, self.unwritten = [], {}, 1, []
        self.prompts, self.usage, self.turns, self.version, self.revision = {}, NO_USAGE, 0, 0, 0
        self.wire, self.successor, self.end_reason = WireCopy(), None, ""

    def append(self, rows: Iterable[Message]) -> None:
        """Add rows to the transcript; those that it has already are left where they are."""
        for row in rows:
            if row not in self.numbers:
                self.rows.append(row)
                self.unwritten.append(Appended(self._number(row), self.version, row))

    def replace(self, rows: Iterable[Message]) -> None:
        """Make these rows the transcript, as a new version of it; rows that are not among them are put
        aside."""
        kept = list(rows)
        staying = set(kept)
        for row in kept:
            if row not in self.numbers:
                self.unwritten.append(Appended(self._number(row), None, row))
        dropped = tuple(self.numbers[row] for row in self.rows if row not in staying)
        self.rows, self.version = kept, self.version + 1
        self.wire.replaced(kept)
        self.unwritten.append(RowsReplaced(self.version, tuple(self.numbers[row] for row in kept), dropped))

    def child(self, child: Session, rows: Iterable[Message]) -> None:
        """End this session by compaction: ``child`` goes on with these rows, under the same turn."""
        child.parent, child.prompts, child.guard, child.meter = (
            self.id,
            dict(self.prompts),
            self.guard,
            self.meter,
        )
        child.title, child.kind = next_title(self.title or self.id), "compression"
        child.holder, child.claim, child.moving = self.holder, self.claim, self.moving
        child.usage, child.source = self.usage, self.source
        self.successor, self.end_reason = child, "compression"
        self.unwritten.append(Continued(child))
        child.replace(rows)

    def numbered(self, rows: Sequence[Message]) -> list[int]:
        """Return the numbers under which rows are stored. Raises ``KeyError`` for one that is not."""
        return [self.numbers[row] for row in rows]

    def _number(self, row: Message) -> int:
        number = self.numbers[row] = self.next_number
        self.next_number += 1
        return number


class Moving:
    """A block in which a step of the turn with this ``claim`` is made, and nobody can take its session over.
    Raises ``OwnershipLost`` when somebody has already."""

    __slots__ = ("_claim", "_session")

    def __init__(self, session: Session, claim: int) -> None:
        self._session, self._claim = session, claim

    def __enter__(self) -> None:
        session = self._session
        with session._lock:
            for one in session.onward():
                if one.claim != self._claim:
                    raise OwnershipLost(
                        f"turn {session.holder} was taken over in this process; this one stops here"
                    )
            session.moving = True

    def __exit__(self, *_: object) -> None:
        for one in self._session.onward():
            one.moving = False


def next_title(title: str) -> str:
    """Return the title of what goes on: ``name`` becomes ``name #2``, ``name #2`` becomes ``name #3``."""
    name, _, number = title.rpartition(" #")
    return f"{name} #{int(number) + 1}" if name and number.isdigit() else f"{title} #2"
