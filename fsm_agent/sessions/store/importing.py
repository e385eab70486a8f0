"""Fills a store from an export, or from a whole other store. Everything is checked, and stored completely or
not at all."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from fsm_agent.conversation.messages import Message
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.journal import apply_deltas
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.export import FORMAT, KINDS, End, ExportLine, Header
from fsm_agent.sessions.store.journal.read import ABANDONED
from fsm_agent.sessions.store.rows import ELSEWHERE, GUARD, IN_PARTS, METER, PROMPTS, USAGE
from fsm_agent.sessions.store.schema import tables
from fsm_agent.sessions.store.stored_sessions import free_title
from fsm_agent.support.texts import parse_json

# A turn from a file is untrusted. A copy of an unfinished turn is abandoned on import, so that nothing
# happens twice. The stored address of a resumed turn is trusted only if it is loopback.


# ----------------------------------------------------------------------------------------------------
# Checks an export: every line alone, then all of them together.


L = TypeVar("L", bound=ExportLine)


MAX_LINE = 100_000_000
"""Maximum characters of one line; no message or turn is as long. Readers may stop there."""


class _BadLine(Exception):
    """The reason why a line is refused."""


@dataclass(slots=True)
class ExportedLines:
    """A parsed export: the header, and by kind each line with its number."""

    header: Header
    of: dict[str, list[tuple[int, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})


def read_lines(lines: Iterable[str], name: str) -> ExportedLines:
    """Return all lines of the file ``name``. Raises ``ConfigError`` that names the first bad line."""
    file: ExportedLines | None = None
    number, ended = 0, False
    try:
        for number, text in enumerate(lines, 1):
            if ended:
                raise _BadLine("there is nothing behind the end")
            if len(text) > MAX_LINE:
                raise _BadLine(f"it has more than {MAX_LINE:,} characters")
            fields = _json(text)
            kind = str(fields.get("kind"))
            if file is None:
                file = ExportedLines(_header(fields))
            elif kind == "end":
                if (before := _check_line(End, fields).lines) != number - 1:
                    raise _BadLine(f"{number - 1} lines come before the end, {before} were written")
                ended = True
            elif kind in KINDS:
                file.of[kind].append((number, _check_line(KINDS[kind], fields)))
            else:
                raise _BadLine(f"unknown kind {kind[:40]!r}; known: {', '.join(KINDS)}")
        if file is None:
            raise _BadLine("there is nothing in it")
        if not ended:
            raise _BadLine('the file was cut: its last line must be {"kind": "end", …}')
        if (first := next(_problems(file), None)) is not None:
            number = first[0]
            raise _BadLine(first[1])
    except _BadLine as error:
        raise ConfigError(f"{name} cannot be imported: line {max(1, number)}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be imported: line {number + 1}: it is not UTF-8") from None
    return file


def _header(fields: Mapping[str, Any]) -> Header:
    if fields.get("kind") != "fsm-agent":
        raise _BadLine('the first line must be {"kind": "fsm-agent", "format": 1, …}')
    if fields.get("format") != FORMAT:
        raise _BadLine(
            f"format {fields.get('format')!r} is of another version of fsm-agent; this one reads format"
            f" {FORMAT}"
        )
    return _check_line(Header, fields)


def _json(text: str) -> dict[str, Any]:
    try:
        value = parse_json(json.loads(text))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _BadLine("this is not a JSON object")
    return value


def _check_line(kind: type[L], line: Mapping[str, Any]) -> L:
    try:
        return kind.model_validate(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _BadLine(f"{line.get('kind')}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def _problems(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """Yield inconsistencies between the lines, each with the number of the line that shows it."""
    sessions = {line.id for _, line in file.of["session"]}
    turns = {line.id: line for _, line in file.of["turn"]}
    yield from _unknown(file, sessions, turns)
    yield from _repeated_ids(file)
    yield from _circles(file)
    yield from _unreadable(file)
    yield from _parts_elsewhere(file)
    yield from _broken_turns(file, sessions)
    if file.header.id not in (sessions if file.header.of == "session" else turns):
        yield 1, f"the {file.header.of} that it names is not in the file"


def _unknown(file: ExportedLines, sessions: set[str], turns: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    named: dict[str, Mapping[str, Container[str]]] = {
        "session": {"parent": sessions, "successor": sessions}, "transcript": {"session": sessions},
        "turn": {"session": sessions, "parent": turns}, "message": {"session": sessions, "turn": turns},
        "move": {"turn": turns}, "effect": {"turn": turns}, "usage": {"turn": turns},
    }  # fmt: skip
    for kind, references in named.items():
        for number, line in file.of[kind]:
            for name, known in references.items():
                if (value := getattr(line, name)) is not None and value not in known:
                    yield number, f"{name} {value} is not in the file"
    numbers = {(line.session, line.number) for _, line in file.of["message"]}
    for number, transcript in file.of["transcript"]:
        if missing := [one for one in transcript.numbers if (transcript.session, one) not in numbers]:
            yield number, f"message {missing[0]} of session {transcript.session} is not in the file"


def _repeated_ids(file: ExportedLines) -> Iterator[tuple[int, str]]:
    keys: dict[str, Sequence[str]] = {
        "session": ("id",), "transcript": ("session", "version"), "turn": ("id",),
        "message": ("session", "number"),
        "move": ("turn", "seq"), "effect": ("turn", "seq", "ordinal", "place"),
    }  # fmt: skip
    for kind, names in keys.items():
        seen: set[tuple[Any, ...]] = set()
        for number, line in file.of[kind]:
            key = tuple(getattr(line, name) for name in names)
            if key in seen:
                yield number, f"the {line.kind} {' '.join(map(str, key))} is in the file twice"
            seen.add(key)


def _circles(file: ExportedLines) -> Iterator[tuple[int, str]]:
    for kind, name in (("session", "parent"), ("session", "successor"), ("turn", "parent")):
        leads = {line.id: getattr(line, name) for _, line in file.of[kind]}
        ends: set[str | None] = {None}
        for number, line in file.of[kind]:
            place, seen = line.id, set[str]()
            while place not in ends and place not in seen:
                seen.add(place)
                place = leads[place]
            if place not in ends:
                yield number, f"{name} leads round in a circle"
            else:
                ends |= seen


def _unreadable(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """Yield values that have the right type but cannot be decoded."""
    for number, message in file.of["message"]:
        if (problem := _problem(Message.from_dict, message.body)) or message.body["role"] != message.role:
            yield number, problem or "role is not that of the body"
    for number, session in file.of["session"]:
        for name, codec in (("prompts", PROMPTS), ("meter", METER), ("guard", GUARD), ("usage", USAGE)):
            if problem := _problem(codec.decode, getattr(session, name)):
                yield number, f"{name}: {problem}"


def _parts_elsewhere(file: ExportedLines) -> Iterator[tuple[int, str]]:
    """Refuse references to shared content: an export is complete, and a reference would take content from the
    store it is imported into."""
    for kind, names in (("turn", IN_PARTS["turns"]), ("move", IN_PARTS["transitions"])):
        for number, line in file.of[kind]:
            for name in names:
                if ELSEWHERE in (getattr(line, name) or {}):
                    yield number, f"{name}: no field has an empty name"


def _problem(read: Callable[[Any], object], value: object) -> str:
    try:
        read(value)
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _broken_turns(file: ExportedLines, sessions: set[str]) -> Iterator[tuple[int, str]]:
    moves: dict[str, list[tuple[int, Any]]] = {}
    for number, move in file.of["move"]:
        moves.setdefault(move.turn, []).append((number, move))
    for number, turn in file.of["turn"]:
        steps = sorted(moves.get(turn.id, ()), key=lambda one: one[1].seq)
        first = (turn.forked_at or 0) + 1
        if (turn.parent is None) != (turn.forked_at is None):
            yield number, "a forked turn names both parent and forked_at"
        elif [move.seq for _, move in steps] != list(range(first, turn.seq + 1)):
            yield number, f"its moves are not numbered {first} to {turn.seq}"
        elif steps and steps[-1][1].dest != turn.state:
            yield number, f"it is in {turn.state}, but its last move leads to {steps[-1][1].dest}"
        yield from _broken_snapshots(number, turn, steps, sessions)


def _broken_snapshots(
    number: int, turn: Any, steps: list[tuple[int, Any]], sessions: set[str]
) -> Iterator[tuple[int, str]]:
    snapshot, changes = (
        turn.start,
        [("start", number, {}), *(("delta", place, move.delta) for place, move in steps)],
    )
    for name, place, delta in [*changes, ("delta", number, turn.final or {})]:
        try:
            snapshot = apply_deltas(snapshot, [delta])
        except (TypeError, KeyError, AttributeError):
            yield place, "delta does not fit what was before it"
            return
        if problem := _misplaced_line(snapshot, turn.id, sessions):
            yield place, f"{name}: {problem}"
            return


def _misplaced_line(snapshot: Mapping[str, Any], turn: str, sessions: set[str]) -> str:
    match snapshot.get("history"), snapshot.get("rows"):
        case [str(session), int(), int(), int()], list():
            if snapshot.get("turn_id") != turn:
                return "turn_id must be the turn's own"
            return "" if session in sessions else f"session {session} is not in the file"
    return "history must be [session, version, length, newest number], rows a list"


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import. ``id``: the exported session or turn, by its id in this store; ``copied``: it
    existed already, so everything got new ids. ``unfinished``: turns that can be resumed here."""

    of: str
    id: str
    sessions: tuple[str, ...]
    turns: int
    messages: int
    copied: bool
    unfinished: tuple[str, ...]


def import_lines(store: Store, lines: Iterable[str], name: str = "the file") -> Imported:
    """Store the exported lines. If any session or turn id exists already, the whole file gets new ids, and
    its unfinished turns are given up, because the originals may still be resumed and nothing must happen
    twice. All turns stay marked as imported: see ``fsm_agent.sessions.store.rewind``. Raises ``ConfigError``
    that names the first bad line."""
    file = read_lines(lines, name)

    def write(c: SqlConnection) -> Imported:
        return _write(c, file, _new_ids(c, file))

    imported: Imported = store.database.write(write)
    return imported


def _new_ids(c: SqlConnection, file: ExportedLines) -> dict[str, str]:
    """Return new ids for all sessions and turns if one of them exists already; otherwise none."""
    sessions, turns = [line.id for _, line in file.of["session"]], [line for _, line in file.of["turn"]]
    here = c.execute(
        "SELECT 1 FROM json_each(?) WHERE value IN (SELECT id FROM sessions) OR value IN (SELECT id FROM"
        " turns)",
        (json.dumps([*sessions, *(turn.id for turn in turns)]),),
    ).fetchone()
    if here is None:
        return {}
    ids = {session: f"s-{uuid.uuid4().hex[:12]}" for session in sessions}
    return ids | {turn.id: f"{ids[turn.session]}-{uuid.uuid4().hex[:8]}" for turn in turns}


def _write(c: SqlConnection, file: ExportedLines, ids: Mapping[str, str]) -> Imported:
    c.execute("PRAGMA defer_foreign_keys = ON")
    sessions = {ids.get(line.id, line.id): line.title for _, line in file.of["session"]}
    titles = [(free_title(c, title, session), session) for session, title in sessions.items() if title]
    for kind, line in KINDS.items():
        names = line.stored_columns()
        insert = f"INSERT INTO {line.table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - ours
        c.executemany(insert, (tuple(_rename_line(row, ids).values()) for _, row in file.of[kind]))
    c.executemany("UPDATE sessions SET title = ? WHERE id = ?", titles)
    turns = {ids.get(turn.id, turn.id): turn.ended is None for _, turn in file.of["turn"]}
    c.executemany("UPDATE turns SET imported = 1, number = ? WHERE id = ?", list(enumerate(turns, 1)))
    unfinished = tuple(turn for turn, is_open in turns.items() if is_open)
    if ids:
        given_up = "UPDATE turns SET ended = moved, exit = ?, outcome = 'failed' WHERE id = ?"
        c.executemany(given_up, [(ABANDONED, turn) for turn in unfinished])
        unfinished = ()
    of, exported = file.header.of, ids.get(file.header.id, file.header.id)
    return Imported(of, exported, tuple(sessions), len(turns), len(file.of["message"]), bool(ids), unfinished)


def _rename_line(line: ExportLine, ids: Mapping[str, str]) -> ExportLine:
    if not ids:
        return line
    return line.model_copy(update={name: _rename_value(value, ids) for name, value in line if name != "kind"})


def _rename_value(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return ids.get(value, value)
    if isinstance(value, list):
        return [_rename_value(one, ids) for one in value]
    if isinstance(value, dict):
        return {name: _rename_value(one, ids) for name, one in value.items()}
    return value


# ----------------------------------------------------------------------------------------------------
# Copies a whole store into another one: from a file into PostgreSQL, or back.
#
# The copy is one transaction of the target, and all rows are read back and compared before the commit: a copy
# is complete, or nothing is copied.


AT_ONCE = 500
"""Rows read and written per batch."""
LEFT_OUT = frozenset({"marks"})
"""Tables with the progress of an index of the sessions: the index is rebuilt."""
IN_ORDER = frozenset({"sessions", "turns"})
"""Tables whose rows are also numbered in the order of writing (``rowid``)."""
Progress = Callable[[str, int, int], None]


class Copied(NamedTuple):
    """The number of rows copied from each table, and a digest of all of them."""

    rows: dict[str, int]
    digest: str


def copy_store(
    source: Store,
    target: Database,
    progress: Progress = lambda table, done, of: None,
    *,
    at_rest: bool = True,
) -> Copied:
    """Copy all sessions into an empty database. ``progress`` is called with a table, the number of rows
    copied from it, and their total. ``at_rest``: refuse while a turn is running, because both stores would
    continue it. Raises ``ConfigError`` when the target has sessions, or for a running turn, and
    ``StoreError`` when the rows read back differ from those written; nothing is copied then."""
    with source.database.snapshot() as there:
        if at_rest:
            _refuse_if_run(source, there)

        def write(c: SqlConnection) -> Copied:
            _refuse_if_used(c, target)
            c.execute("PRAGMA defer_foreign_keys = ON")
            rows, digests = {}, []
            for table in _copy_tables():
                (total,) = there.execute(f"SELECT COUNT(*) FROM {table}").fetchone()  # noqa: S608 - ours
                before = _digest(_copying(there, c, table, total, progress))
                after = _digest(_all_rows(c, table))
                if before != after:
                    raise StoreError(f"{target.name} holds something else in {table}; nothing was copied")
                rows[table] = total
                digests.append(after)
            target.continue_numbers(c)
            return Copied(rows, hashlib.sha256("".join(digests).encode()).hexdigest())

        copied: Copied = target.submit(write, alone=True).result()
        return copied


def _copy_tables() -> Iterator[str]:
    return (table for table in tables() if table not in LEFT_OUT and not table.startswith("sqlite_"))


def _refuse_if_run(source: Store, c: SqlConnection) -> None:
    running = "SELECT id, owner FROM turns WHERE ended IS NULL AND owner IS NOT NULL"
    for turn, owner in c.execute(running).fetchall():
        if (process := source.owners.alive(owner)) is not None:
            raise ConfigError(
                "a store cannot be copied while turns of it run",
                f"turn {turn} in process {process['pid']} on {process['host']}",
                "a store at rest: wait for its turns, or stop them",
            )


def _refuse_if_used(c: SqlConnection, target: Database) -> None:
    for table in ("sessions", "grants"):
        if c.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:  # noqa: S608 - ours
            possible = "a database without sessions"
            raise ConfigError("a store is copied into an empty one only", target.name, possible)


def _copying(
    there: SqlConnection, c: SqlConnection, table: str, total: int, progress: Progress
) -> Iterator[Sequence[Any]]:
    """Write the rows of one table, and yield each as read from the source."""
    columns, _ = tables()[table]
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - ours
    waiting: list[Sequence[Any]] = []
    done = 0
    for row in _all_rows(there, table):
        waiting.append(row)
        yield row
        done += 1
        if len(waiting) == AT_ONCE:
            c.executemany(insert, waiting)
            waiting = []
            progress(table, done, total)
    c.executemany(insert, waiting)
    progress(table, done, total)


def _all_rows(c: SqlConnection, table: str) -> Iterator[Sequence[Any]]:
    """Yield all rows of a table in order, read in batches."""
    columns, key = tables()[table]
    key = ("rowid",) if table in IN_ORDER else key
    names = ", ".join((*key, *columns))
    last: Sequence[Any] = ()
    while True:
        behind = f"WHERE ({', '.join(key)}) > ({', '.join('?' * len(key))})" if last else ""
        sql = f"SELECT {names} FROM {table} {behind} ORDER BY {', '.join(key)} LIMIT {AT_ONCE}"  # noqa: S608 - ours
        rows = c.execute(sql, last).fetchall()
        for row in rows:
            yield row[len(key) :]
        if len(rows) < AT_ONCE:
            return
        last = rows[-1][: len(key)]


def _digest(rows: Iterator[Sequence[Any]]) -> str:
    """Hash rows as both databases can hold them: PostgreSQL does not store NUL."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(tuple(row)).replace("\\x00", "\N{REPLACEMENT CHARACTER}").encode())
    return digest.hexdigest()
