"""Sessions in memory: the rows of a conversation, its prompt, and who is running a turn on it.

Agents of one process that name the same home and session share it. Rows are kept by identity, so storing one twice stores
it once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from fsm_agent.compaction.guard import CompactionGuard
from fsm_agent.context import ContextMeter
from fsm_agent.errors import SessionBusy
from fsm_agent.messages import NO_USAGE, Message, Usage
from fsm_agent.prompt import StoredPrompt
from fsm_agent.wire import WireCopy


@dataclass(slots=True)
class Session:
    """``rows`` is the transcript in use; ``archived`` what compactions put aside; ``wire`` the bytes already made of it."""

    id: str
    rows: list[Message] = field(default_factory=list)
    archived: list[Message] = field(default_factory=list)
    prompts: dict[str, StoredPrompt] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    exits: list[str] = field(default_factory=list)
    wire: WireCopy = field(default_factory=WireCopy)
    meter: ContextMeter = field(default_factory=ContextMeter)
    guard: CompactionGuard = field(default_factory=CompactionGuard)
    parent: str | None = None
    title: str = ""
    end_reason: str = ""
    successor: Session | None = None
    holder: str | None = None
    _known: set[Message] = field(default_factory=set)
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
            if row not in self._known:
                self._known.add(row)
                self.rows.append(row)

    def replace(self, rows: Iterable[Message]) -> None:
        """These rows are the transcript from now on; rows that are not among them are archived."""
        kept = list(rows)
        staying = set(kept)
        self.archived += [row for row in self.rows if row not in staying]
        self.rows, self._known = kept, self._known | staying
        self.wire = WireCopy()

    def child(self, child: Session, rows: Iterable[Message]) -> None:
        """End this session by compaction: ``child`` goes on with these rows, under the same turn."""
        child.parent, child.prompts, child.guard, child.meter = self.id, dict(self.prompts), self.guard, self.meter
        child.title = next_title(self.title or self.id)
        child.holder, child.usage = self.holder, self.usage
        self.successor, self.end_reason = child, "compression"
        child.replace(rows)


def next_title(title: str) -> str:
    """``name`` becomes ``name #2``, ``name #2`` becomes ``name #3``."""
    name, _, number = title.rpartition(" #")
    return f"{name} #{int(number) + 1}" if name and number.isdigit() else f"{title} #2"


class MemoryStore:
    """All sessions of one home, for as long as the process lives."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def session(self, session_id: str) -> Session:
        with self._lock:
            return self._sessions.setdefault(session_id, Session(session_id))


_STORES: dict[str, MemoryStore] = {}
_STORES_LOCK = threading.Lock()


def store_for(home: str) -> MemoryStore:
    with _STORES_LOCK:
        return _STORES.setdefault(home, MemoryStore())
