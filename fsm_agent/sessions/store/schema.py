"""The tables, and the migrations from earlier formats. A database stores its format in ``PRAGMA
user_version``, and again in ``PRAGMA application_id`` (``application_id``).

sessions      a conversation: the state that lasts from turn to turn, and the process that runs a turn on it
messages      its rows, numbered within the session, never changed; ``active`` is false for rows that were
              set aside
transcripts   after a compaction or an undo: the numbers of the rows that the new version of the transcript
              begins with
turns         one message of a user and its outcome; ``start`` is the snapshot before the first move,
              ``undone`` the time of its undo, ``final`` the changes of the last state, which makes no move,
              ``imported`` is true if the turn, or the one it was forked from, came from a file,
              ``table_name`` is the transition table that moves it, ``epoch`` counts the claims on it and
              ``rank`` orders them (``TurnClaims``), ``number`` orders the turns of a session and of its
              predecessors
given         the conversation that a caller supplied for a turn, separate because a turn's own row is
              written at every move
transitions   every move, with its changes (``delta``); the snapshot at a move is the sum of those before
effects       requests of a state, and their replies; ``in_flight`` until the reply is stored
contents      content that many turns share, by digest: see ``rows``
usage         tokens and cost of every model request, as reported
unreported    estimated usage of other requests: see ``reports``
outbox        messages that other systems have yet to receive
controls      commands of people to a turn that another process runs
marks         progress of a reader of the messages (the full-text index)
grants        permanent approvals
session_grants  approvals for the rest of a session, in one working directory
pending       items that suspended turns wait for: questions, approvals, later results, timers; and their
              answers
kept_values   values of extensions, by extension and key: JSON
queued        messages for workers, each with the id of a turn that is to begin (``request``, until it has)
              or has begun; ``rank`` and ``owner`` of the attempt that claimed it
delegations   tasks that a turn delegated to children without waiting, and the turn and move at which their
              end was reported

The first list of statements creates the tables, each later one migrates from the format before. Only ever
add one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import SqlConnection, unstorable
from fsm_agent.sessions.store.rows import loads

JSON_COLUMNS = {
    "sessions": ("prompts", "meter", "guard", "usage", "extra"),
    "messages": ("body",),
    "transcripts": ("numbers",),
    "turns": ("settings", "start", "result", "final", "answers"),
    "given": ("history",),
    "transitions": ("guards", "changes", "delta"),
    "effects": ("request", "reply"),
    "contents": ("body",),
    "pending": ("choices", "answer"),
    "queued": ("request",),
}
"""Columns that hold JSON, each with a checksum column (``checksum_of``)."""


def checksum_of(column: str) -> str:
    """Return the checksum column of a JSON column."""
    return f"{column}_crc"


Versions = Sequence[Sequence[str]]
FIRST = 10
"""The format of the first release. Earlier ones were used only during development."""


def newest(versions: Versions) -> int:
    """Return the format number of the last version."""
    return FIRST - 1 + len(versions)


def refusal(place: str, found: int, versions: Versions) -> StoreError | None:
    """Return the error for a file or database of another format, if it cannot be migrated here."""
    current = newest(versions)
    if found > current:
        return StoreError(
            f"{place} was written by a newer version of fsm-agent (format {found}, this one reads up to"
            f" {current}); update fsm-agent, or use another home directory"
        )
    if 0 < found < FIRST:
        return StoreError(
            f"{place} was written by fsm-agent before 0.1.0 (format {found}, this one reads from {FIRST} on);"
            " to keep its sessions, write each with that program (`fsm-agent sessions export --raw -o FILE"
            " ID`), move the store away, and read them with this one (`fsm-agent sessions import FILE`)"
        )
    return None


VERSIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL DEFAULT '',
            kind TEXT NOT NULL DEFAULT 'root' CHECK (kind IN ('root', 'compression', 'fork', 'child')),
            parent TEXT REFERENCES sessions(id),
            successor TEXT REFERENCES sessions(id),
            source TEXT NOT NULL DEFAULT '',
            model TEXT NOT NULL DEFAULT '',
            created REAL NOT NULL,
            touched REAL NOT NULL,
            ended REAL,
            end_reason TEXT NOT NULL DEFAULT '',
            version INTEGER NOT NULL DEFAULT 0,
            revision INTEGER NOT NULL DEFAULT 0,
            turns INTEGER NOT NULL DEFAULT 0,
            prompts TEXT NOT NULL DEFAULT '{}', prompts_crc INTEGER,
            meter TEXT NOT NULL DEFAULT '{}', meter_crc INTEGER,
            guard TEXT NOT NULL DEFAULT '{}', guard_crc INTEGER,
            usage TEXT NOT NULL DEFAULT '{}', usage_crc INTEGER,
            extra TEXT NOT NULL DEFAULT '{}', extra_crc INTEGER,
            holder TEXT,
            owner TEXT,
            exit TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX sessions_by_parent ON sessions(parent)",
        "CREATE INDEX sessions_by_title ON sessions(title)",
        "CREATE INDEX sessions_by_touched ON sessions(touched)",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY,
            session TEXT NOT NULL REFERENCES sessions(id),
            number INTEGER NOT NULL,
            version INTEGER NOT NULL,
            turn TEXT,
            at REAL NOT NULL,
            role TEXT NOT NULL,
            active INTEGER NOT NULL DEFAULT 1,
            body TEXT NOT NULL, body_crc INTEGER,
            UNIQUE (session, number)
        )""",
        """CREATE TABLE transcripts (
            session TEXT NOT NULL REFERENCES sessions(id),
            version INTEGER NOT NULL,
            numbers TEXT NOT NULL, numbers_crc INTEGER,
            PRIMARY KEY (session, version)
        ) WITHOUT ROWID""",
        """CREATE TABLE turns (
            id TEXT PRIMARY KEY,
            session TEXT NOT NULL REFERENCES sessions(id),
            parent TEXT REFERENCES turns(id),
            forked_at INTEGER,
            asked TEXT NOT NULL,
            state TEXT NOT NULL,
            seq INTEGER NOT NULL DEFAULT 0,
            epoch INTEGER NOT NULL DEFAULT 1,
            owner TEXT,
            digest TEXT NOT NULL,
            settings TEXT NOT NULL, settings_crc INTEGER,
            start TEXT NOT NULL, start_crc INTEGER,
            began REAL NOT NULL,
            moved REAL NOT NULL,
            ended REAL,
            exit TEXT,
            outcome TEXT,
            undone REAL,
            result TEXT, result_crc INTEGER,
            final TEXT, final_crc INTEGER,
            answers TEXT, answers_crc INTEGER,
            imported INTEGER NOT NULL DEFAULT 0,
            table_name TEXT NOT NULL DEFAULT 'turn',
            rank INTEGER NOT NULL DEFAULT 0,
            number INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX turns_by_session ON turns(session, number)",
        "CREATE INDEX turns_by_began ON turns(began)",
        "CREATE INDEX turns_open ON turns(ended) WHERE ended IS NULL",
        """CREATE TABLE given (
            turn TEXT PRIMARY KEY REFERENCES turns(id),
            history TEXT NOT NULL, history_crc INTEGER
        ) WITHOUT ROWID""",
        """CREATE TABLE transitions (
            turn TEXT NOT NULL REFERENCES turns(id),
            seq INTEGER NOT NULL,
            source TEXT NOT NULL,
            event TEXT NOT NULL,
            dest TEXT NOT NULL,
            row TEXT NOT NULL,
            exit TEXT,
            guards TEXT NOT NULL, guards_crc INTEGER,
            changes TEXT NOT NULL, changes_crc INTEGER,
            seconds REAL NOT NULL,
            at REAL NOT NULL,
            delta TEXT NOT NULL, delta_crc INTEGER,
            PRIMARY KEY (turn, seq)
        )""",
        """CREATE TABLE effects (
            turn TEXT NOT NULL REFERENCES turns(id),
            seq INTEGER NOT NULL,
            ordinal INTEGER NOT NULL,
            place INTEGER NOT NULL,
            state TEXT NOT NULL,
            kind TEXT NOT NULL,
            name TEXT NOT NULL DEFAULT '',
            class TEXT NOT NULL DEFAULT '',
            key TEXT NOT NULL DEFAULT '',
            status TEXT NOT NULL CHECK (status IN ('in_flight', 'done', 'unknown')),
            request TEXT NOT NULL, request_crc INTEGER,
            reply TEXT, reply_crc INTEGER,
            at REAL NOT NULL,
            seconds REAL,
            origin TEXT NOT NULL DEFAULT '' CHECK (origin IN ('', 'by hand', 'taken over')),
            PRIMARY KEY (turn, seq, ordinal, place)
        )""",
        """CREATE TABLE usage (
            id INTEGER PRIMARY KEY,
            session TEXT NOT NULL,
            turn TEXT NOT NULL,
            at REAL NOT NULL,
            provider TEXT NOT NULL,
            model TEXT NOT NULL,
            purpose TEXT NOT NULL,
            input INTEGER NOT NULL,
            output INTEGER NOT NULL,
            cache_read INTEGER NOT NULL,
            cache_write INTEGER NOT NULL,
            reasoning INTEGER NOT NULL,
            cost REAL,
            cost_status TEXT NOT NULL
        )""",
        "CREATE INDEX usage_by_at ON usage(at)",
        "CREATE INDEX usage_by_turn ON usage(turn)",
        """CREATE TABLE outbox (
            id INTEGER PRIMARY KEY,
            turn TEXT NOT NULL,
            topic TEXT NOT NULL,
            body TEXT NOT NULL,
            at REAL NOT NULL,
            sent REAL
        )""",
        """CREATE TABLE controls (
            id INTEGER PRIMARY KEY,
            turn TEXT NOT NULL,
            command TEXT NOT NULL,
            body TEXT NOT NULL DEFAULT '{}',
            at REAL NOT NULL,
            taken REAL
        )""",
        "CREATE INDEX controls_open ON controls(turn) WHERE taken IS NULL",
        "CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        """CREATE TABLE grants (
            pattern TEXT PRIMARY KEY,
            tool TEXT NOT NULL,
            verdict TEXT NOT NULL CHECK (verdict IN ('allow', 'deny')),
            scope TEXT NOT NULL,
            at REAL NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE session_grants (
            session TEXT NOT NULL REFERENCES sessions(id),
            pattern TEXT NOT NULL,
            verdict TEXT NOT NULL CHECK (verdict IN ('allow', 'deny')),
            workdir TEXT NOT NULL,
            at REAL NOT NULL,
            PRIMARY KEY (session, pattern)
        ) WITHOUT ROWID""",
        """CREATE TABLE delegations (
            child TEXT PRIMARY KEY,
            session TEXT NOT NULL REFERENCES sessions(id),
            turn TEXT NOT NULL REFERENCES turns(id),
            task TEXT NOT NULL,
            goal TEXT NOT NULL,
            context TEXT NOT NULL,
            at REAL NOT NULL,
            told TEXT,
            told_seq INTEGER
        ) WITHOUT ROWID""",
        "CREATE INDEX delegations_by_session ON delegations(session)",
        """CREATE TABLE contents (
            id INTEGER PRIMARY KEY,
            digest TEXT NOT NULL UNIQUE,
            body TEXT NOT NULL, body_crc INTEGER
        )""",
        """CREATE TABLE unreported (
            id INTEGER PRIMARY KEY,
            turn TEXT NOT NULL,
            at REAL NOT NULL,
            tokens INTEGER NOT NULL,
            cost REAL NOT NULL,
            request TEXT UNIQUE
        )""",
        "CREATE INDEX unreported_by_at ON unreported(at)",
        "CREATE INDEX unreported_by_turn ON unreported(turn)",
        """CREATE TABLE pending (
            id TEXT PRIMARY KEY,
            turn TEXT NOT NULL REFERENCES turns(id),
            seq INTEGER NOT NULL,
            call TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('approval', 'question', 'result', 'timer')),
            tool TEXT NOT NULL,
            asked TEXT NOT NULL,
            choices TEXT NOT NULL, choices_crc INTEGER,
            digest TEXT NOT NULL,
            due REAL,
            since REAL NOT NULL,
            answer TEXT, answer_crc INTEGER,
            answered REAL,
            answered_by TEXT NOT NULL DEFAULT ''
        ) WITHOUT ROWID""",
        "CREATE INDEX pending_by_turn ON pending(turn)",
        """CREATE TABLE queued (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            session TEXT NOT NULL,
            digest TEXT NOT NULL,
            request TEXT, request_crc INTEGER,
            at REAL NOT NULL,
            rank INTEGER NOT NULL DEFAULT 0,
            owner TEXT,
            begun REAL,
            withdrawn REAL,
            problem TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX queued_by_session ON queued(session)",
        """CREATE TABLE kept_values (
            extension TEXT NOT NULL,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (extension, key)
        ) WITHOUT ROWID""",
    ),
)


# The full-text index of a SQLite file: an FTS5 table beside the messages, filled up to a mark. It can be
# built again at any time, so it has a format of its own and is in no version of the tables.


INDEX, MARK, FORMAT_MARK = "message_index", "message_index", "message_index_format"
INDEX_FORMAT = 2
"""Version of ``text_analysis.columns``; another number rebuilds the index."""
SET_MARK = "INSERT OR REPLACE INTO marks VALUES (?, ?)"


def create_index(c: SqlConnection) -> None:
    """Create the empty index. Raises ``StoreError`` when this SQLite has no full-text search."""
    try:
        c.execute(
            f"CREATE VIRTUAL TABLE {INDEX} USING fts5(words, chars, tags, content='', columnsize=0,"
            " tokenize='unicode61 remove_diacritics 0')"
        )
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        raise StoreError(
            "sessions cannot be searched: the SQLite of this Python was built without FTS5"
        ) from error
    c.executemany(SET_MARK, [(MARK, 0), (FORMAT_MARK, INDEX_FORMAT)])


# The tables in the newest version of the schema.


@cache
def tables() -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
    """Return the columns of each table, and those of its primary key, in order."""
    with closing(sqlite3.connect(":memory:")) as c:
        for statements in VERSIONS:
            for statement in statements:
                c.execute(statement)
        found: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
        for (name,) in c.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            rows = c.execute(f"PRAGMA table_info({name})").fetchall()
            key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
            found[name] = [row[1] for row in rows], key
        return found


# ----------------------------------------------------------------------------------------------------
# Integrity checks, which change nothing: each process checks a file before it writes to it, and ``health``
# checks all of it on request.
#
# A file is damaged by a disk, a power failure, or a copy made while it was written, and none of them leaves a
# visible sign. So each process that writes reads every page once, and compares every index with its table:
# about a second per gigabyte. Reading does not wait for it. Texts are checked when they are read, by the
# CRC-32 next to each JSON column (`body_crc`), because SQLite does not detect a changed letter. Formats
# before 0.1.0 are refused, because every migration step would have to be kept forever. A transaction that
# SQLite rolls back is repeated job by job, and no caller learns "done" before the data is in the file.


FILE = "sessions.db"
"""The store's file in a home."""

log = logging.getLogger(__name__)
LONG = 1.0
"""Seconds after which a slow check is logged."""
_LINES = 100


def looking(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, and leaves the log unchanged when it is closed."""
    left = path.with_name(f"{path.name}-journal")
    if left.exists() and left.stat().st_size:  # only SQLite can roll back what a dead process left
        undone = sqlite3.connect(path)
        undone.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        undone.close()
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1)


def format_of(connection: sqlite3.Connection) -> int:
    """Return the format number of the file, 0 for an empty file. Raises ``sqlite3.DatabaseError`` when its
    header contradicts itself."""
    connection.execute("BEGIN")  # one snapshot
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    finally:
        connection.execute("ROLLBACK")
    if version == mark == tables == 0:
        return 0
    unmarked = mark == 0 and 0 < version < FIRST and tables  # the earliest versions
    if (mark != application_id(version) and not unmarked) or not 0 < version < 256:
        raise sqlite3.DatabaseError(
            f"malformed: format {version} and mark {mark:#x} in its header do not belong together"
        )
    return version


def application_id(version: int) -> int:
    """Return the ``application_id`` of this format: "fsm" and the version, so that a flipped bit in either is
    not mistaken for another version."""
    return int.from_bytes(b"fsm") << 8 | version


def look_through(connection: sqlite3.Connection, path: Path, long: float = LONG) -> None:
    """Read every page, and compare every index with its table. Raises ``sqlite3.DatabaseError`` for the first
    fault. Faults of the full-text index are ignored: it can be rebuilt. Logs a warning if the check takes
    more than ``long`` seconds.

    The check of all tables skips the list of free pages when the first table it meets is a virtual one (seen
    in SQLite 3.40); the check of the schema table alone never does."""
    size = path.stat().st_size // 1_000_000
    warning = threading.Timer(
        long, log.warning, ("looking through %s (%d MB) before it is written to", path, size)
    )
    warning.daemon = True
    warning.start()
    try:
        lines = [
            line
            for part in ("sqlite_schema", _LINES)
            for (line,) in connection.execute(f"PRAGMA integrity_check({part})")
            if line != "ok" and "FTS5 table" not in line
        ]
    finally:
        warning.cancel()
    if lines:
        raise sqlite3.DatabaseError(f"malformed: {' '.join(lines[0].split())}")


def as_store_error(error: BaseException, path: Path) -> Exception:
    """Return a ``StoreError`` of one line that names the problem with the file and the fix; errors that are
    not its fault are returned unchanged, and a ``ConfigError`` for a text that no row can hold."""
    if isinstance(error, UnicodeEncodeError):
        return unstorable(error.object)
    if isinstance(error, sqlite3.Error):
        words = str(error)
        lower = words.lower()
        if "full" in lower:
            hint = "the disk is full; make room, the turn can then be resumed"
        elif "locked" in lower:
            hint = "another program holds its lock; close it and try again"
        elif any(
            word in lower
            for word in ("malformed", "not a database", "could not decode", "unsupported file format")
        ):
            hint = (
                f"it is damaged; restore a backup, or move {path.name} away to start empty; "
                "what can be read is in `fsm-agent sessions`, and what `sqlite3 FILE .recover` gives"
            )
        elif "readonly" in lower or "unable to open" in lower:
            hint = "it cannot be written; check the permissions of the file and its directory"
        else:
            hint = words
        return StoreError(f"the session store {path} cannot be used: {hint} ({words})")
    if isinstance(error, MemoryError):
        return StoreError(f"the session store {path} cannot be used: SQLite ran out of memory")
    if isinstance(error, OSError):
        return StoreError(f"the session store {path} cannot be used: {os.strerror(error.errno or 0)}")
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


@dataclass(frozen=True, slots=True)
class Health:
    """The result of checking a whole file or database at ``place``. ``size`` in bytes, including the log;
    ``version`` of its format, 0 without tables; ``unfinished``: the number of turns without an end. For a
    database, ``server`` describes it in one line; if ``wrong`` names a problem and its fix, the contents were
    not checked."""

    place: str
    size: int = 0
    version: int = 0
    sessions: int = 0
    unfinished: int = 0
    server: str = ""
    wrong: str = ""


def health(home: Path, url: str | None = None) -> Health | None:
    """Read every page and every text of a home's file, or of the database at ``url``, and return its health;
    ``None`` if the file does not exist yet. Raises ``StoreError`` if it is damaged, locked, out of reach, or
    has a format that this program does not read."""
    if url is not None:
        from fsm_agent.sessions.store.postgres import health_of

        return health_of(url)
    path = home / FILE
    if not path.exists():
        return None
    files = (path, path.with_name(f"{FILE}-wal"))
    size = sum(one.stat().st_size for one in files if one.exists())
    try:
        with contextlib.closing(looking(path)) as c:
            version = format_of(c)
            if (refused := refusal(str(path), version, VERSIONS)) is not None:
                raise refused
            look_through(c, path)
            found = [column for (column,) in c.execute(_COLUMNS)]
            counts = read_all(c, str(path), found) if version else ()
            return Health(str(path), size, version, *counts)
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error


def read_all(c: SqlConnection, place: str, there: Collection[str]) -> tuple[int, int]:
    """Return the number of sessions and of unfinished turns. Raises ``StoreError`` with the number of damaged
    texts, and the place of the first. ``there``: existing columns, as "table.column"; a file of an older
    version has fewer."""
    damaged: list[str] = []
    for table, columns in JSON_COLUMNS.items():
        key = next(name for name in ("id", "session", "turn") if f"{table}.{name}" in there)
        for column in (name for name in columns if f"{table}.{name}" in there):
            sql = f"SELECT {key}, {column}, {checksum_of(column)} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608
            for owner, text, crc in c.execute(sql):
                try:
                    loads(text, crc)
                except StoreError:
                    damaged.append(f"{column} in {table}, {key} {owner}")
    if damaged:
        raise StoreError(
            f"{place} has {len(damaged)} damaged texts, the first is {damaged[0]}; its pages are whole, so it"
            " can be used without them; a backup has them"
        )
    (sessions,) = c.execute("SELECT COUNT(*) FROM sessions").fetchone()
    (unfinished,) = c.execute("SELECT COUNT(*) FROM turns WHERE ended IS NULL").fetchone()
    return sessions, unfinished


_COLUMNS = (
    "SELECT t.name || '.' || c.name FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'"
)
