"""What many turns have alike is stored once: settings, tools, system prompts, whatever is empty in a turn
that begins.

An object in the database may name under ``""`` the digests of other objects, which stand in the table
``contents`` and whose keys belong to it. No field of anything is called so. (Why: decision 95.)"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.fsm import codec
from fsm_agent.sessions.store.checksum import loads, with_checksum
from fsm_agent.sessions.store.connection import SqlConnection

ELSEWHERE = ""
LONG = 100
"""Characters of JSON from which on a list or an object is stored apart; a text is somebody's own."""
FEW = 4
"""Empty values that stay where they are: their digest would be as long."""

IN_PARTS = {"turns": ("settings", "start", "result", "final"), "transitions": ("delta",)}
"""Columns whose objects may have parts elsewhere."""
DELTAS = ("delta", "final")
"""Those that hold changes."""
Contents = dict[str, str]
"""Texts by their digest."""


def apart(
    values: Mapping[str, Any], contents: Contents, *, long: bool = True, stays: str = ""
) -> dict[str, Any]:
    """Put what is empty in ``values``, or 0, into ``contents``, and if so wanted each value that is long;
    return what is left, with the digests of that. What is called ``stays`` does."""
    empty = {name: value for name, value in values.items() if not value and name != stays}
    parts = [empty] if len(empty) > FEW else []
    if long:
        parts += [{name: value} for name, value in values.items() if _is_long(value)]
    if not parts:
        return dict(values)
    gone = {name for part in parts for name in part}
    left = {name: value for name, value in values.items() if name not in gone}
    return {ELSEWHERE: [kept_once(part, contents) for part in parts], **left}


def kept_once(value: Mapping[str, Any], contents: Contents) -> str:
    """Put one object into ``contents`` and return its digest."""
    text = codec.dumps(value)
    digest = base64.urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=12).digest()).decode()
    contents[digest] = text
    return digest


def write(c: SqlConnection, contents: Contents) -> None:
    """Write those that are not there yet."""
    insert = "INSERT OR IGNORE INTO contents (digest, body, body_crc) VALUES (?, ?, ?)"
    c.executemany(insert, [(digest, *with_checksum(text)) for digest, text in sorted(contents.items())])


def whole(c: SqlConnection, text: str, crc: int | None) -> dict[str, Any]:
    """Return the object that a column holds, with what of it stands elsewhere. Raises ``StoreError`` when
    that is damaged or gone."""
    found: dict[str, Any] = loads(text, crc)
    if ELSEWHERE not in found:
        return found
    made: dict[str, Any] = {}
    for digest in found.pop(ELSEWHERE):
        row = c.execute("SELECT body, body_crc FROM contents WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            raise StoreError(f"a part of a turn in the session store is gone: no content has digest {digest}")
        made |= loads(*row)
    return made | found


def slim(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a move changed with new values as they are, where they are no objects."""
    plain = {
        name: change["to"]
        for name, change in delta.items()
        if name != ELSEWHERE and "to" in change and not isinstance(change["to"], dict)
    }
    return {**delta, **plain}


def delta_of(c: SqlConnection, text: str, crc: int | None) -> dict[str, Any]:
    """Return what a move changed, as ``fsm_agent.fsm.deltas`` knows it, from what its column holds."""
    return {
        name: change if isinstance(change, dict) else {"to": change}
        for name, change in whole(c, text, crc).items()
    }


def forget_unused(c: SqlConnection) -> None:
    """Delete what no turn names any more."""
    named = " UNION ".join(
        f"SELECT j.value FROM {table} t, json_each(t.{column}, '$.\"\"') j"  # noqa: S608 - ours
        f" WHERE t.{column} LIKE '{{\"\":%'"
        for table, columns in IN_PARTS.items()
        for column in columns
    )
    c.execute(f"DELETE FROM contents WHERE digest NOT IN ({named})")  # noqa: S608 - ours


def _is_long(value: Any) -> bool:
    return isinstance(value, list | dict) and bool(value) and len(codec.dumps(value)) >= LONG
