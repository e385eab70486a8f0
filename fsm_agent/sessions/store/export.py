"""A session or a turn as lines of JSON, with everything needed to show, fork or resume it elsewhere.

A session includes its predecessors and successors by compaction, the sessions of its sub-agents, and the
original of a fork. A turn includes its session as it was at the end of the turn.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from fsm_agent.conversation.parts import text_only as words_of
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rows import (
    DELTAS,
    IN_PARTS,
    compaction_chain,
    delta_of,
    inline,
    json_with_checksum,
    loads,
    newest_number,
    transcript,
)
from fsm_agent.sessions.store.schema import JSON_COLUMNS, VERSIONS, checksum_of
from fsm_agent.support.files import private_file, private_folder
from fsm_agent.support.redaction import MASK, mask

# ----------------------------------------------------------------------------------------------------
# The lines of an exported session or turn: one JSON object for each row of a table, checked when it is
# read.
#
# A line holds the columns that the schema declares. This module adds only what the schema cannot say: which
# columns belong to one machine, what the JSON in a column looks like, and which numbers are flags.


FORMAT = 1


def _encodable(text: str) -> str:
    """Refuse half a surrogate pair: it is not valid text for a database. Inside JSON values it is escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("this text has half a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Id = Annotated[Text, Field(min_length=1, max_length=500)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Json = dict[str, Any]
Pair = Annotated[tuple[str, bool], Field(strict=False)]
Change = Annotated[tuple[str, int, int], Field(strict=False)]
"""JSON has no tuples."""
IDS = frozenset({"id", "session", "turn", "parent", "successor"})
RENAMED = {"kind": "type", "class": "safety"}
"""Columns whose field has another name: ``kind`` is that of a line, ``class`` is a keyword of Python."""


class ExportLine(BaseModel):
    """One row of ``table``, read in its ``order``. Fields are named like columns, except for ``RENAMED``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    table: ClassVar[str] = ""
    order: ClassVar[str] = ""
    kind: str

    @classmethod
    def columns(cls) -> dict[str, str]:
        """Return {column: field}, in the order of the table."""
        fields = {field: column for column, field in RENAMED.items()}
        return {fields.get(name, name): name for name in cls.model_fields if name != "kind"}

    @classmethod
    def json_columns(cls) -> list[str]:
        """Return the columns that hold JSON."""
        return [column for column in cls.columns() if column in JSON_COLUMNS.get(cls.table, ())]

    @classmethod
    def stored_columns(cls) -> list[str]:
        """Return ``columns``, followed by the checksum columns of JSON."""
        return [*cls.columns(), *map(checksum_of, cls.json_columns())]

    def values(self) -> Iterator[Any]:
        """Yield the values in the order of ``stored_columns``, converted for the database."""
        checksums: list[int | None] = []
        for column, name in self.columns().items():
            value = getattr(self, name)
            if column in self.json_columns():
                text, crc = (None, None) if value is None else json_with_checksum(value)
                checksums.append(crc)
                yield text
            else:
                yield int(value) if isinstance(value, bool) else value
        yield from checksums


class Header(ExportLine):
    """The first line: the exported session or turn, and whether secrets are masked."""

    kind: Literal["fsm-agent"] = "fsm-agent"
    format: Literal[1] = 1
    of: Literal["session", "turn"]
    id: Id
    masked: bool


class End(ExportLine):
    """The last line: the number of lines before it, so that a truncated file is detected."""

    kind: Literal["end"] = "end"
    lines: Whole


def _lines() -> Iterator[tuple[str, type[ExportLine]]]:
    """Yield the models of all kinds. A column that a later schema version added may be missing in a file."""
    with contextlib.closing(sqlite3.connect(":memory:")) as c:
        first: dict[str, set[str]] = {}
        for statements in VERSIONS:
            for statement in statements:
                c.execute(statement)
            for table, *_ in _TABLES.values():
                first.setdefault(table, {column[1] for column in c.execute(f"PRAGMA table_info({table})")})
        for kind, (table, order, local, types) in _TABLES.items():
            (sql,) = c.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
            fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
            for _, name, affinity, required, default, key in c.execute(f"PRAGMA table_info({table})"):
                if name not in local and not name.endswith(checksum_of("")):
                    known = types.get(name) or _type(table, name, affinity, sql)
                    missing = ... if name in first[table] else default and default.strip("'")
                    fields[RENAMED.get(name, name)] = (known if required or key else known | None, missing)
            line = create_model(f"{kind.title()}Line", __base__=ExportLine, **fields)
            line.table, line.order = table, order
            yield kind, line


def _type(table: str, name: str, affinity: str, sql: str) -> Any:
    if name in JSON_COLUMNS.get(table, ()):
        return Json
    if choices := re.search(rf"\b{name} IN \(([^)]*)\)", sql):
        return Literal[tuple(choice.strip(" '") for choice in choices[1].split(","))]
    return Id if name in IDS else {"TEXT": Text, "INTEGER": Whole, "REAL": float}[affinity]


_TABLES: Mapping[str, tuple[str, str, frozenset[str], Mapping[str, Any]]] = {
    "session": ("sessions", "created, id", frozenset({"revision", "holder", "owner"}), {}),
    "transcript": ("transcripts", "session, version", frozenset(), {"numbers": list[Whole]}),
    "turn": (
        "turns", "number, id", frozenset({"owner", "imported", "rank", "number"}), {"final": dict[str, Json]},
    ),
    "message": (
        "messages", "id", frozenset({"id"}),
        {
            "version": Annotated[int, Field(ge=-1, le=2**53)], "active": bool,
            "role": Literal["system", "user", "assistant", "tool"],
        },
    ),
    "move": (
        "transitions", "turn, seq", frozenset(),
        {"guards": list[Pair], "changes": list[Change], "delta": dict[str, Json]},
    ),
    "effect": ("effects", "turn, seq, ordinal, place", frozenset(), {}),
    "usage": ("usage", "id", frozenset({"id"}), {"cost_status": Literal["estimated", "included", "unknown"]}),
}  # fmt: skip
"""By kind: table, order, columns that no file may contain, and types that the schema does not express."""
KINDS: Mapping[str, type[ExportLine]] = dict(_lines())
"""In the order in which they are written."""


SECRET = re.compile(
    r"(?i)\A(x-)?(api[_-]?key|(access|refresh|auth|bearer)?[_-]?token|(client[_-]?)?secret|passw(or)?d|authorization)\Z"
)
"""JSON keys whose values are secrets."""


@dataclass(slots=True)
class _Chosen:
    """``cuts``: sessions shown as of the end of a turn: version, newest number, and the numbers of the
    transcript then."""

    sessions: set[str] = field(default_factory=set)
    turns: set[str] = field(default_factory=set)
    cuts: dict[str, tuple[int, int, set[int]]] = field(default_factory=dict)


def export_session(
    database: Database, session_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of a session, without line ends. Unless ``raw``, mask ``secrets`` and everything that
    looks like a key."""
    chosen = _Chosen()
    with database.reading() as c:
        _whole(c, session_id, chosen)
    yield from _export_lines(
        database, Header(of="session", id=session_id, masked=not raw), chosen, None if raw else secrets
    )


def export_sessions(database: Database, ids: Sequence[str]) -> Iterator[str]:
    """Yield the lines of sessions without links to any others, secrets included. The first session names the
    export."""
    chosen = _Chosen(set(ids))
    with database.reading() as c:
        turns = "SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?))"
        chosen.turns = {turn for (turn,) in c.execute(turns, (dumps(ids),))}
    yield from _export_lines(database, Header(of="session", id=ids[0], masked=False), chosen, None)


def export_turn(
    database: Database, turn_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of one turn, and of the turns it was forked from. Raises ``ConfigError`` for an unknown
    id."""
    chosen, turns = _Chosen(), Turns(database)
    wanted: str | None = turn_id
    while wanted is not None:
        info, history = turns.info(wanted), turns.snapshot(wanted)["history"]
        with database.reading() as c:
            _until(c, wanted, history, chosen)
        wanted = info.parent
    yield from _export_lines(
        database, Header(of="turn", id=turn_id, masked=not raw), chosen, None if raw else secrets
    )


def _whole(c: SqlConnection, first: str, chosen: _Chosen) -> None:
    waiting = [first]
    while waiting:
        session = waiting.pop()
        if session in chosen.sessions:
            continue
        chosen.sessions.add(session)
        found = c.execute(
            "SELECT parent FROM sessions WHERE id = :id AND kind = 'compression'"
            " UNION SELECT successor FROM sessions WHERE id = :id"
            " UNION SELECT id FROM sessions WHERE parent = :id AND kind = 'child'"
            " UNION SELECT p.session FROM turns t JOIN turns p ON p.id = t.parent WHERE t.session = :id",
            {"id": session},
        )
        waiting += [row[0] for row in found if row[0] is not None]
    turns = "SELECT id FROM turns WHERE session IN (SELECT value FROM json_each(?))"
    chosen.turns = {turn for (turn,) in c.execute(turns, (dumps(sorted(chosen.sessions)),))}


def _until(c: SqlConnection, turn: str, history: list[Any], chosen: _Chosen) -> None:
    session, version, _, newest = history
    chosen.turns.add(turn)
    newest = max(newest, newest_number(c, session, turn))  # Finalize wrote after the last move
    chosen.cuts[session] = (
        version,
        newest,
        {number for number, _ in transcript(c, session, version) if number <= newest},
    )
    chosen.sessions |= set(compaction_chain(c, session))


def _export_lines(
    database: Database, header: Header, chosen: _Chosen, secrets: Collection[str] | None
) -> Iterator[str]:
    yield dumps(header.model_dump())
    written = 1
    ids = chosen.sessions | chosen.turns
    with database.snapshot() as c:  # one snapshot, whatever a running turn writes meanwhile
        for kind, fields in _all_fields(c, chosen):
            written += 1
            yield dumps({"kind": kind, **(fields if secrets is None else _mask(fields, secrets, ids))})
    yield dumps(End(lines=written).model_dump())


def _all_fields(c: SqlConnection, chosen: _Chosen) -> Iterator[tuple[str, dict[str, Any]]]:
    sessions, turns = dumps(sorted(chosen.sessions)), dumps(sorted(chosen.turns))
    chosen_by = {
        "session": ("id", sessions), "turn": ("id", turns), "transcript": ("session", sessions),
        "message": ("session", sessions),
    }  # fmt: skip
    for kind, line in KINDS.items():
        key, ids = chosen_by.get(kind, ("turn", turns))
        query = (
            f"SELECT {', '.join(line.stored_columns())} FROM {line.table}"  # noqa: S608 - ours
            f" WHERE {key} IN (SELECT value FROM json_each(?)) ORDER BY {line.order}"
        )
        for columns in _rows(c, line, query, ids):
            if (fields := _cut(_fields(line, columns), kind, chosen)) is not None:
                yield kind, fields


def _rows(c: SqlConnection, line: type[ExportLine], query: str, ids: str) -> Iterator[dict[str, Any]]:
    """Yield the columns of each row by name, with JSON decoded and its shared parts inlined."""
    for row in c.execute(query, (ids,)):
        read = dict(zip(line.stored_columns(), row, strict=True))
        for column in line.json_columns():
            text, crc = read[column], read.pop(checksum_of(column))
            if text is not None and column in IN_PARTS.get(line.table, ()):
                read[column] = (delta_of if column in DELTAS else inline)(c, text, crc)
            elif text is not None:
                read[column] = loads(text, crc)
        yield read


def _fields(line: type[ExportLine], columns: dict[str, Any]) -> dict[str, Any]:
    """Convert the columns of a row to the fields of a line, with flags as booleans."""
    return {
        field: bool(columns[column]) if field == "active" else columns[column]
        for column, field in line.columns().items()
    }


def _cut(fields: dict[str, Any], kind: str, chosen: _Chosen) -> dict[str, Any] | None:
    """Remove references to anything not exported; ``None`` for a row written after the end of the turn."""
    if kind == "session":
        for name in ("parent", "successor"):
            fields[name] = fields[name] if fields[name] in chosen.sessions else None
        if fields["id"] in chosen.cuts:
            fields |= {
                "version": chosen.cuts[fields["id"]][0],
                "successor": None,
                "ended": None,
                "end_reason": "",
            }
    elif kind in ("message", "transcript") and fields["session"] in chosen.cuts:
        version, newest, current = chosen.cuts[fields["session"]]
        if kind == "transcript":
            return fields if fields["version"] <= version else None
        if fields["number"] > newest:
            return None
        fields["active"] = fields["number"] in current
    if kind == "message" and fields["turn"] not in chosen.turns:
        fields["turn"] = None
    return fields


def _mask(value: Any, secrets: Collection[str], ids: Collection[str]) -> Any:
    if isinstance(value, str):
        return value if value in ids else mask(value, secrets)
    if isinstance(value, list):
        return [_mask(one, secrets, ids) for one in value]
    if isinstance(value, dict):
        return {
            name: MASK if isinstance(one, str) and one and SECRET.match(name) else _mask(one, secrets, ids)
            for name, one in value.items()
        }
    return value


# ----------------------------------------------------------------------------------------------------
# A conversation as training data: the ShareGPT form, with tools written as Hermes models read them.
#
# One object per conversation: ``conversations`` is a list of {"from": "system" | "human" | "gpt" | "tool",
# "value": text}. Reasoning is in ``<think>``, calls in ``<tool_call>``, results in ``<tool_response>``;
# results of one round are one entry.


TOOLS = (
    "You may call functions. Their signatures are within <tools></tools>; write each call as JSON within "
    "<tool_call></tool_call>:\n"
    '<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>\n<tools>\n{tools}\n</tools>'
)


def session_trajectory(
    database: Database, session_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> dict[str, Any]:
    """Return the current transcript of a session. ``completed`` is that of its last turn."""
    with database.reading() as c:
        version, created, model = c.execute(
            "SELECT version, created, model FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        rows = [json.loads(body) for _, body in transcript(c, session_id, version)]
        last = c.execute(
            "SELECT id, outcome FROM turns WHERE session = ? AND undone IS NULL ORDER BY number DESC LIMIT 1",
            (session_id,),
        ).fetchone()
    snapshot = Turns(database).snapshot(last[0]) if last else {}
    completed = bool(last) and last[1] == "completed"
    return _trajectory(session_id, rows, snapshot, (created, model, completed), None if raw else secrets)


def turn_trajectory(
    database: Database, turn_id: str, *, raw: bool = False, secrets: Collection[str] = ()
) -> dict[str, Any]:
    """Return the transcript up to the end of one turn. Raises ``ConfigError`` for an unknown id."""
    turns = Turns(database)
    info, snapshot, result = turns.info(turn_id), turns.snapshot(turn_id), turns.result(turn_id) or {}
    session, version, length, newest = snapshot["history"]
    with database.reading() as c:
        last, stored = newest_number(c, session, turn_id), transcript(c, session, version)
    rows = [
        json.loads(body)
        for place, (number, body) in enumerate(stored)
        if place < length or newest < number <= last
    ]
    model = f"{result['provider']}:{result['model']}" if result else ""
    return _trajectory(
        turn_id, rows, snapshot, (info.began, model, info.outcome == "completed"), None if raw else secrets
    )


def save_trajectory(database: Database, turn_id: str, path: Path) -> None:
    """Append one turn, masked, to a trajectory file."""
    line = dumps(turn_trajectory(database, turn_id))
    private_folder(path.parent)
    with open(path, "a", encoding="utf-8", opener=private_file) as file:
        file.write(line + "\n")


def _trajectory(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    snapshot: Mapping[str, Any],
    facts: tuple[float, str, bool],
    secrets: Collection[str] | None,
) -> dict[str, Any]:
    at, model, completed = facts
    entries = [*([("system", _system(snapshot))] if snapshot else []), *_join_entries(_speaking(rows))]
    turns = [
        {"from": speaker, "value": text if secrets is None else mask(text, secrets)}
        for speaker, text in entries
    ]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {"id": name, "conversations": turns, "timestamp": when, "model": model, "completed": completed}


def _system(snapshot: Mapping[str, Any]) -> str:
    prompt = str(snapshot.get("system_prompt", ""))
    specs = [
        {"type": "function", "function": {name: tool[name] for name in ("name", "description", "parameters")}}
        for tool in snapshot.get("tools", ())
    ]
    tools = (
        TOOLS.format(tools="\n".join(json.dumps(spec, ensure_ascii=False) for spec in specs)) if specs else ""
    )
    return "\n\n".join(part for part in (prompt, tools) if part)


def _speaking(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    names: dict[str, str] = {}
    for row in rows:
        if not row.get("wire", True):
            continue
        text = words_of(row.get("content"))
        match row["role"]:
            case "assistant":
                names |= {call["id"]: call["function"]["name"] for call in row.get("tool_calls", ())}
                thoughts = f"<think>\n{row['reasoning']}\n</think>" if row.get("reasoning") else ""
                yield "gpt", "\n".join(filter(None, (thoughts, text, *_calls(row))))
            case "tool":
                name = row.get("name") or names.get(row.get("tool_call_id", ""), "")
                answer = {"tool_call_id": row.get("tool_call_id"), "name": name, "content": text}
                yield "tool", f"<tool_response>\n{json.dumps(answer, ensure_ascii=False)}\n</tool_response>"
            case role:
                yield "human" if role == "user" else role, text


def _calls(row: Mapping[str, Any]) -> Iterator[str]:
    for call in row.get("tool_calls", ()):
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            arguments = function["arguments"]
        yield (
            "<tool_call>\n"
            + json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
            + "\n</tool_call>"
        )


def _join_entries(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Merge consecutive entries of one speaker."""
    for speaker, entries in itertools.groupby(pairs, key=lambda one: one[0]):
        yield speaker, "\n".join(text for _, text in entries)
