"""The lines of an exported session or turn: one JSON object for each row of a table, checked when it is read.

What a line holds is what the schema says of the table. Only what it cannot say stands here: which columns
belong to one machine, what the JSON in a column looks like, and which numbers are flags."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from fsm_agent.sessions.store.checksum import checked
from fsm_agent.sessions.store.schema import JSON_COLUMNS, VERSIONS, checksum_of

FORMAT = 1


def _encodable(text: str) -> str:
    """Half a surrogate pair is no text that a database takes; inside of JSON values it is escaped."""
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
"""Columns whose fields are called otherwise: ``kind`` says what a line is, ``class`` is no name in Python."""


class ExportLine(BaseModel):
    """One row of ``table``, read in its ``order``. Fields are named like columns, but for ``RENAMED``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    table: ClassVar[str] = ""
    order: ClassVar[str] = ""
    kind: str

    @classmethod
    def columns(cls) -> dict[str, str]:
        """Return the fields by their columns, in the order of the table."""
        fields = {field: column for column, field in RENAMED.items()}
        return {fields.get(name, name): name for name in cls.model_fields if name != "kind"}

    @classmethod
    def json_columns(cls) -> list[str]:
        """Return those of the columns that hold JSON."""
        return [column for column in cls.columns() if column in JSON_COLUMNS.get(cls.table, ())]

    @classmethod
    def stored_columns(cls) -> list[str]:
        """Return ``columns`` and those with the checksums of JSON behind them."""
        return [*cls.columns(), *map(checksum_of, cls.json_columns())]

    def values(self) -> Iterator[Any]:
        """Yield the values in the order of ``stored_columns``, as a database takes them."""
        checksums: list[int | None] = []
        for column, name in self.columns().items():
            value = getattr(self, name)
            if column in self.json_columns():
                text, crc = (None, None) if value is None else checked(value)
                checksums.append(crc)
                yield text
            else:
                yield int(value) if isinstance(value, bool) else value
        yield from checksums


class Header(ExportLine):
    """The first line: the session or turn that was exported, and whether secrets are masked."""

    kind: Literal["fsm-agent"] = "fsm-agent"
    format: Literal[1] = 1
    of: Literal["session", "turn"]
    id: Id
    masked: bool


class End(ExportLine):
    """The last line: how many stand before it, so that a file that was cut is noticed."""

    kind: Literal["end"] = "end"
    lines: Whole


def _lines() -> Iterator[tuple[str, type[ExportLine]]]:
    """The models of all kinds. A column that a later version of the schema added may be missing in a file."""
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
"""By kind: table, order, columns that no file may bring, and the types that the schema does not say."""
KINDS: Mapping[str, type[ExportLine]] = dict(_lines())
"""In the order in which they are written."""
