"""Reads the sessions of one home, and finds them by name. No copy of a session outlives the turn that read
it; only decoded messages stay, with their wire bytes, in one bounded cache."""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fsm_agent.conversation.messages import Message
from fsm_agent.errors import ConfigError, StoreError, expect, expect_name
from fsm_agent.sessions import Session
from fsm_agent.sessions.store.database import Database, Durability, SqlConnection
from fsm_agent.sessions.store.fence import Fences, Owners
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.rows import (
    GUARD,
    METER,
    PROMPTS,
    UNREAD,
    USAGE,
    count_revision,
    first_user_words,
    loads,
    message_of,
    newest_number,
    newest_of,
    stored_rows,
)
from fsm_agent.sessions.store.schema import FILE
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.support.redaction import mask

if TYPE_CHECKING:
    from fsm_agent.conversation.wire import WireCopy
    from fsm_agent.fsm.pause_point import PausePoint
    from fsm_agent.runtime.budget import IterationBudget
    from fsm_agent.runtime.clock import WorkTime

# A turn reads its session in the transaction that claims it. Copies that lasted from turn to turn needed a
# guard for each way in which they could be stale: a holder and a number for each hold, retries when the
# revision differed, copies handed on after a compaction, writes kept in the copy. Reading 2,000 messages
# takes 13 ms, nearly all of it for decoding, so the store keeps decoded messages and their wire bytes in one
# cache of 5,000 (`RowCache`); of a transcript that grew, only the new rows are decoded.


Opened = Callable[[Path, Durability], Database]
CACHED_ROWS = 5_000
"""Maximum rows in the cache, over all sessions; the most recently used session stays, however long it is."""


@dataclass(slots=True)
class CachedRows:
    """The transcript of a session, valid while ``at`` (its revision, transcript version, and newest row
    number) is current, and its wire bytes, if it was sent to a model, which the next turn takes."""

    at: tuple[int, int, int]
    rows: list[Message]
    numbers: dict[Message, int]
    wire: WireCopy | None


class RowCache:
    """Decoded rows by session, least recently used sessions evicted first. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, CachedRows] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def get(self, session_id: str) -> CachedRows | None:
        """Return the cached rows of a session."""
        with self._lock:
            if (known := self._kept.get(session_id)) is not None:
                self._kept.move_to_end(session_id)
            return known

    def put(self, session_id: str, known: CachedRows) -> None:
        """Replace the cached rows of a session; evict the least recently used sessions."""
        with self._lock:
            self._drop(session_id)
            self._kept[session_id] = known
            self._count += 1 + len(known.rows)
            while self._count > CACHED_ROWS and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def _drop(self, session_id: str) -> None:
        if (before := self._kept.pop(session_id, None)) is not None:
            self._count -= 1 + len(before.rows)

    def take_wire(self, session_id: str) -> WireCopy | None:
        """Remove and return the wire bytes of a session's rows: only one turn may use them."""
        with self._lock:
            if (known := self._kept.get(session_id)) is None:
                return None
            wire, known.wire = known.wire, None
            return wire


OPEN: weakref.WeakSet[StoredSessions] = weakref.WeakSet()
"""All stores of this process."""


class StoredSessions:
    """The sessions of one home in its database. ``pause_points``: the turns of the home that run in this
    process, ``fences`` their right to write. ``at_work``: background children by session, so that two agents
    never work on one; changed on the engine's loop only. ``trees``: the budgets of turns with children, by
    turn id, as long as one turn of the tree is at work. ``reservations``: amounts of shared limits that
    in-flight requests may use."""

    def __init__(
        self,
        home: Path,
        durability: Durability = "full",
        opened: Opened = SqliteDatabase,
        now: Callable[[], float] = time.time,
        database_url: str | None = None,
    ) -> None:
        self.home, self.now = home, now
        self._opened, self._durability, self.database_url = opened, durability, database_url
        self._inherited: list[object] = []
        self._start()
        OPEN.add(self)

    def _start(self) -> None:
        self.fences = Fences()
        self._rows = RowCache()
        self._instead: dict[str, str] = {}
        self.pause_points = CommandPoller(self)
        self.at_work: dict[str, Any] = {}
        self.trees: weakref.WeakValueDictionary[str, IterationBudget] = weakref.WeakValueDictionary()
        self.reservations = Reservations()

    def start_after_fork(self) -> None:
        """Start without turns, threads and connections in a forked process: those are the parent's. They are
        kept, because closing a connection here would disturb the parent. A SQLite file that is open in the
        parent cannot be opened here."""
        if (owners := self.__dict__.pop("owners", None)) is not None:
            owners.leave_to_parent()
        self._inherited += [owners, self.__dict__.pop("database", None)]
        self._start()

    @cached_property
    def database(self) -> Database:
        """The database of the home, created and opened when first needed."""
        if self.database_url is None:
            return self._opened(self.home / FILE, self._durability)
        from fsm_agent.sessions.store.postgres import database_at

        return database_at(self.database_url)

    @cached_property
    def owners(self) -> Owners:
        """The registry of processes that run turns of the home."""
        if self.database_url is None:
            return Owners(self.home)
        from fsm_agent.sessions.store.postgres import owners_of

        return owners_of(weakref.ref(self))

    def new_session(self) -> Session:
        """Return a session with a new id. Nothing is read."""
        return Session(f"s-{uuid.uuid4().hex[:12]}")

    def session(self, session_id: str) -> Session:
        """Return a session in its stored state, or a new one if the database has none with this id."""
        session = Session(session_id)
        with self.database.reading() as c:
            self.read(c, session)
        return session

    def newest(self, session_id: str) -> Session:
        """Return the session in which a conversation continues after compactions (SESS-07)."""
        session = Session(session_id)
        with self.database.reading() as c:
            self.follow(c, session)
            self.read(c, session)
        return session

    def follow(self, c: SqlConnection, session: Session) -> None:
        """Point ``session`` at the newest session of its conversation; if that is another one, mark it
        unread."""
        if (newest := self.newest_id(c, session.id)) != session.id:
            session.id, session.revision = newest, UNREAD

    def newest_id(self, c: SqlConnection, session_id: str) -> str:
        """Return the id of ``newest``. A compaction whose turn was lost before it was stored created a
        session that does not exist; the conversation continues where the turn began."""
        first = self._instead.get(session_id)
        if first and not c.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone():
            session_id = first
        return newest_of(c, session_id)

    def mark_lost(self, line: Sequence[str]) -> None:
        """Record that a turn in these sessions was lost: those never stored lead back to the first one."""
        self._instead |= dict.fromkeys(line[1:], line[0])

    def read(self, c: SqlConnection, session: Session) -> None:
        """Read a session into ``session``, unless it has the current revision already. Cached rows are not
        read again."""
        row = c.execute(
            "SELECT version, revision, turns, title, kind, parent, end_reason, source, prompts,"
            " prompts_crc, meter, meter_crc, guard, guard_crc, usage, usage_crc FROM sessions"
            " WHERE id = ?",
            (session.id,),
        ).fetchone()
        if row is None:  # nothing of it was ever stored
            session.forget()
            return
        last = newest_number(c, session.id)
        at = (row[1], row[0], last)
        if session.revision > 0 and (session.revision, session.version, session.next_number - 1) == at:
            return
        known = self._rows.get(session.id)
        if known is None or known.at != at:
            known = self._read_rows(c, session.id, at, known)
        session.version, session.revision, session.turns = row[:3]
        session.title, session.kind, session.parent, session.end_reason, session.source = row[3:8]
        session.prompts = PROMPTS.decode(loads(*row[8:10]))
        _copy(METER.decode(loads(*row[10:12])), session.meter)
        _copy(GUARD.decode(loads(*row[12:14])), session.guard)
        session.usage = USAGE.decode(loads(*row[14:]))
        session.rows, session.numbers = list(known.rows), dict(known.numbers)
        session.next_number = last + 1
        session.wire, session.unwritten, session.successor = None, [], None

    def read_again(self, session: Session) -> None:
        """Read a session into ``session``, whatever its revision."""
        session.revision = UNREAD
        with self.database.reading() as c:
            self.read(c, session)

    def _read_rows(
        self, c: SqlConnection, session_id: str, at: tuple[int, int, int], before: CachedRows | None
    ) -> CachedRows:
        """Read the transcript; row numbers are never reused, so known rows are not decoded again."""
        decoded = {} if before is None else {number: row for row, number in before.numbers.items()}
        numbers = {
            decoded.get(number) or message_of(body, crc): number
            for number, body, crc in stored_rows(c, session_id, at[1])
        }
        rows = list(numbers)
        grown = before is not None and before.rows == rows[: len(before.rows)]
        wire = before.wire if before is not None and grown else None
        known = CachedRows(at, rows, numbers, wire)
        self._rows.put(session_id, known)
        return known

    def keep_rows(self, session: Session) -> None:
        """Cache the rows of a session, stored exactly as ``session`` has them, for the next reader."""
        at = (session.revision, session.version, session.next_number - 1)
        numbers = {row: session.numbers[row] for row in session.rows}
        self._rows.put(session.id, CachedRows(at, list(session.rows), numbers, session.wire))

    def archived(self, session_id: str) -> list[Message]:
        """Return the messages that compactions and undos set aside, oldest first."""
        sql = "SELECT body, body_crc FROM messages WHERE session = ? AND active = 0 ORDER BY number"
        return [message_of(*row) for row in self.database.select(sql, session_id)]


def _start_after_fork() -> None:
    for store in list(OPEN):
        store.start_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_after_fork)


def _copy(source: Any, target: Any) -> None:
    """Copy the fields of one slotted dataclass into another instance, to which others hold references."""
    for name in type(source).__slots__:
        setattr(target, name, getattr(source, name))


# ----------------------------------------------------------------------------------------------------
# The amounts of shared limits that in-flight model requests may use.


class Reserved(NamedTuple):
    """An amount reserved in the named pots."""

    pots: frozenset[str]
    usd: float
    tokens: int


class Reservations:
    """Amounts that in-flight model requests may still cost, for all turns of a home in this process. Shared
    limits hold because each turn reserves the cost of its next request before sending it, until the actual
    cost is on its way to the store. A reservation ends with its owner. ``released`` counts releases: a
    reader of the store whose read precedes the last release must read again. Take ``lock`` to check and
    reserve atomically. ``clocks``: working times of running turns, by id."""

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[object, Reserved] = weakref.WeakKeyDictionary()
        self.lock, self.released = threading.RLock(), 0
        self.clocks: weakref.WeakValueDictionary[str, WorkTime] = weakref.WeakValueDictionary()

    def hold(self, owner: object, pots: Iterable[str], usd: float, tokens: int) -> None:
        """Reserve these amounts, replacing the owner's earlier reservation."""
        with self.lock:
            self._held[owner] = Reserved(frozenset(pots), usd, tokens)

    def release(self, owner: object) -> None:
        """Release the owner's reservation."""
        with self.lock:
            self.released += self._held.pop(owner, None) is not None

    def of_others(self, owner: object, pot: str) -> tuple[float, int]:
        """Return the dollars and tokens reserved in this pot by everyone but ``owner``."""
        with self.lock:
            there = [held for one, held in self._held.items() if one is not owner and pot in held.pots]
        return sum(held.usd for held in there), sum(held.tokens for held in there)


# ----------------------------------------------------------------------------------------------------
# Messages from other processes to turns that run here: rows of the table ``controls``, and takeovers of
# turns; polled a few times a second.
#
# One thread per home, only while turns run, polls for rows that no process has taken; the turns themselves
# never poll. A row that attaches a debugger attaches a ``RemoteDebugServer`` to the turn's gate, which
# carries out the commands of the following rows.


log = logging.getLogger(__name__)

POLL, ATTACHED_POLL = 0.25, 0.02
"""Seconds between two polls, without and with a debugger in another process."""
NOTIFIED_POLL = 5.0
"""Seconds between two polls where the database sends notifications."""
IDLE = 2.0
"""Seconds without a running turn after which the thread ends."""
_OPEN = "SELECT id, turn, command, body FROM controls WHERE taken IS NULL ORDER BY id"


class Obeys(Protocol):
    """Carries out commands at a gate for a remote debugger."""

    @property
    def attached(self) -> bool:
        """True while a debugger controls the turn."""
        ...

    def obey(self, name: str, body: dict[str, Any]) -> None:
        """Carry out the command ``name``; ``body`` is JSON."""
        ...


_TAKE = (
    "UPDATE controls SET taken = ? WHERE id = ? AND taken IS NULL AND EXISTS (SELECT 1 FROM turns WHERE id ="
    " controls.turn AND epoch = ?)"
)
"""Only for the turn's owner: a process that ran the turn earlier must not receive its commands."""


class Home(Protocol):
    """The home whose commands are read."""

    fences: Fences

    @property
    def database(self) -> Database:
        """The database that stores commands to turns."""
        ...

    @property
    def owners(self) -> Owners:
        """The registry of live processes."""
        ...


class CommandPoller:
    """The turns of one home that run in this process, and the commands addressed to them."""

    def __init__(self, home: Home) -> None:
        self._home = weakref.ref(home)  # the thread must not keep it open
        self._lock = threading.Lock()
        self._gates: weakref.WeakValueDictionary[str, PausePoint] = weakref.WeakValueDictionary()
        self._servers: dict[str, tuple[PausePoint, Obeys]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def opened(self, gate: PausePoint) -> None:
        """Poll for commands to this turn from now on."""
        with self._lock:
            self._gates[gate.turn.turn_id] = gate
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, daemon=True, name="fsm-agent-controls")
                self._thread.start()

    def closed(self, gate: PausePoint) -> None:
        with self._lock:
            if self._gates.get(gate.turn.turn_id) is gate:  # but not the gate of a turn object that took over
                del self._gates[gate.turn.turn_id]

    def running(self, turn_id: str) -> PausePoint | None:
        """Return the gate of a turn that this process runs."""
        with self._lock:
            return self._gates.get(turn_id)

    def _look_on(self) -> None:
        idle_since = time.monotonic()
        while True:
            try:
                self.look()
            except StoreError as error:
                log.warning("the commands of debuggers cannot be read: %s", error)
                time.sleep(IDLE)
            with self._lock:
                if self._gates:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE:
                    self._thread = None
                    self._servers.clear()
                    return
                attached = any(server.attached for _, server in self._servers.values())
            if self._wake.wait(self._pause(attached)):
                self._wake.clear()

    def _pause(self, attached: bool) -> float:
        """Return the seconds until the next poll, unless a notification arrives earlier."""
        home = self._home()
        if home is None or not home.database.listen(self._on_command):
            return ATTACHED_POLL if attached else POLL
        return NOTIFIED_POLL

    def _on_command(self, table: str) -> None:
        self._wake.set()

    def look(self) -> None:
        """Read the commands that have come, and give them to their turns."""
        if (home := self._home()) is None or (database := home.database).closed:
            return
        with database.reading() as c:
            home.fences.look(c)
            rows = c.execute(_OPEN).fetchall()
        with self._lock:
            mine = [(gate, row) for row in rows if (gate := self._gates.get(row[1])) is not None]
        if not mine:
            return

        def take(c: SqlConnection) -> list[bool]:
            of = [(time.time(), number, home.fences.get(turn).epoch) for _, (number, turn, _, _) in mine]
            return [c.execute(_TAKE, one).rowcount == 1 for one in of]

        for (gate, (_, _, command, body)), taken in zip(mine, database.write(take), strict=True):
            if not taken:
                continue
            try:
                self._server(gate, home).obey(command, json.loads(body))
            except Exception:  # one bad command must not end the polling thread
                log.exception("command %s of turn %s could not be carried out", command, gate.turn.turn_id)

    def _server(self, gate: PausePoint, home: Home) -> Obeys:
        known = self._servers.get(gate.turn.turn_id)
        if known is not None and known[0] is gate:
            return known[1]
        # by name, and only here: the debugger depends on turns, not turns on the debugger
        kind = importlib.import_module("fsm_agent.debug.core.remote").RemoteDebugServer
        server: Obeys = kind(gate, home.database, home.owners)
        self._servers[gate.turn.turn_id] = gate, server
        return server


# ----------------------------------------------------------------------------------------------------
# Titles of sessions, and lookup of sessions and turns by name (SESS-08).


SHOWN = 5
"""Maximum candidates listed for an ambiguous name."""
AUTOMATIC = 48
"""Maximum characters of a title derived from a message."""
LONGEST = 120
"""Maximum characters of a title given by a person."""
NUMBERED = 9
"""Highest number that distinguishes sessions with the same title; further ones use a part of their id."""


def find_session(store: StoredSessions, name: str) -> str:
    """Return the id of the session that ``name`` refers to: an id, a title, or the beginning of one. Raises
    ``ConfigError`` when it matches no session or several."""
    expect_name("the name of a session or turn", name, "an id, its beginning, or a title")
    query = store.database.select
    for where in (
        "id = ?",
        "title = ?",
        "substr(id, 1, length(?)) = ?",
        "substr(title, 1, length(?)) = ?",
    ):
        sql = f"SELECT id, successor FROM sessions WHERE {where} ORDER BY touched DESC"  # noqa: S608
        found = query(sql, *[name] * where.count("?"))
        if not found or not name:
            continue
        going_on = [
            row for row in found if row[1] is None
        ]  # the others continue as another session after compaction
        if where == "title = ?" or len(found) == 1:
            return str(found[0][0])
        if len(going_on) == 1:
            return str(going_on[0][0])
        raise ConfigError(f"{len(found)} sessions begin so", name, _list_matches(found))
    newest = query("SELECT id FROM sessions ORDER BY touched DESC LIMIT ?", SHOWN)
    raise ConfigError(
        "no such session", name, "an id, its beginning, or a title; the newest: " + _list_matches(newest)
    )


def find_turn(store: StoredSessions, name: str) -> TurnInfo:
    """Return the unfinished turn that ``name`` refers to: a turn, or the newest one of a session. Raises
    ``ConfigError``."""
    found = _turns_called(store, name)
    turn_id = (
        found[0] if len(found) == 1 else _newest(store, find_session(store, name), "nothing to resume: ")
    )
    turn = Turns(store.database).info(turn_id)
    if turn.ended is not None:
        possible = "an unfinished turn; continue with a new message, or fork it"
        raise ConfigError(f"nothing to resume: the turn ended with {turn.exit}", turn.id, possible)
    return turn


def one_of(store: StoredSessions, name: str) -> tuple[Literal["session", "turn"], str]:
    """Return the kind and id of the session or turn that ``name`` refers to, ended or not. Raises
    ``ConfigError`` for no match or several."""
    found = _turns_called(store, name)
    if found == [name]:
        return "turn", name
    try:
        return "session", find_session(store, name)
    except ConfigError:
        if len(found) != 1:
            raise
    return "turn", found[0]


def any_turn(store: StoredSessions, name: str) -> str:
    """Return the id of the turn that ``name`` refers to, ended or not: a turn, or the newest one of a
    session. Raises ``ConfigError``."""
    kind, found = one_of(store, name)
    return found if kind == "turn" else _newest(store, found)


def _turns_called(store: StoredSessions, name: str) -> list[str]:
    """Return the turn with this id, or else all turns whose ids begin with ``name``."""
    query = "SELECT id FROM turns WHERE substr(id, 1, length(?)) = ? ORDER BY id"
    expect_name("the name of a session or turn", name, "an id, its beginning, or a title")
    ids = [turn_id for (turn_id,) in store.database.select(query, name, name)] if name else []
    return [name] if name in ids else ids


def _newest(store: StoredSessions, session_id: str, purpose: str = "") -> str:
    session = store.newest(session_id)
    newest = Turns(store.database).recent(1, session.id)
    if not newest:
        raise ConfigError(f"{purpose}the session has no turns", session.id)
    return newest[0].id


def _list_matches(rows: list[tuple[Any, ...]]) -> str:
    names = [row[0] for row in rows[:SHOWN]]
    return ", ".join(names) + (", …" if len(rows) > SHOWN else "") if names else "none yet"


def name_after(store: StoredSessions, session: Session, content: Any) -> None:
    """Give an untitled session the first words of its first message, or of ``content``, the current one."""
    if session.title:
        return
    first = next((row.content for row in session.rows if row.role == "user"), content)
    if words := first_words(first):
        with store.database.reading() as c:
            session.title = free_title(c, words, session.id)


def is_automatic(store: StoredSessions, session_id: str) -> bool:
    """Return whether the title of a session still comes from its first words."""
    session = store.session(session_id)
    first = next((row.content for row in session.rows if row.role == "user"), None)
    words = first_words(first)
    return bool(words) and session.title.startswith(words)


def first_words(content: Any) -> str:
    """Return as many whole words as fit into a title of ``AUTOMATIC`` characters, with keys masked."""
    text = _printable(mask(first_user_words(content)))
    if len(text) <= AUTOMATIC:
        return text
    head, blank, _ = text[: AUTOMATIC + 1].rpartition(" ")
    return (head if blank else text[:AUTOMATIC]).rstrip(" ,;:-–")


def free_title(c: SqlConnection, title: str, session_id: str) -> str:
    """Return the title, or a variant that no session has: ``words (2)``."""
    tries = [title, *(f"{title} ({number})" for number in range(2, NUMBERED + 1))]
    same = "SELECT title FROM sessions WHERE title IN (SELECT value FROM json_each(?))"
    taken = {row[0] for row in c.execute(same, (json.dumps(tries),))}
    return next((one for one in tries if one not in taken), f"{title} ({session_id[-6:]})")


def rename(store: StoredSessions, session_id: str, title: str) -> str:
    """Change the title of a session, and return it with whitespace normalized. Raises ``ConfigError`` for a
    title that is empty, too long, or taken."""
    expect("the title of a session", title, str, f"a title of 1 to {LONGEST} characters")
    words = _printable(" ".join(title.split()))
    if not 0 < len(words) <= LONGEST:
        raise ConfigError("a session cannot be called so", title, f"a title of 1 to {LONGEST} characters")

    def write(c: SqlConnection) -> None:
        same = "SELECT id FROM sessions WHERE ? IN (title, id) AND id != ?"
        if (other := c.execute(same, (words, session_id)).fetchone()) is not None:
            raise ConfigError(
                "another session is called so",
                words,
                f"a title that no session has; this one is {other[0]}'s",
            )
        if c.execute("UPDATE sessions SET title = ? WHERE id = ?", (words, session_id)).rowcount == 0:
            raise ConfigError(
                "a session gets its title with its first turn", session_id, "a session that had a turn"
            )
        count_revision(c, session_id)

    store.database.write(write)
    return words


_JOINERS = "\u200c\u200d"
"""Invisible characters that the spelling of some scripts and emoji need."""


def _printable(text: str) -> str:
    return "".join(one for one in text if one.isprintable() or one in _JOINERS).strip(" " + _JOINERS)
