"""Where a text occurs in what a turn did: moves, requests and replies, with the words around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.debug.core.record import Record

AROUND = 60
"""Characters before and after a text that are shown with it."""
MOST = 200
"""Hits that one search gives at most."""


@dataclass(frozen=True, slots=True)
class Hit:
    """``at``: the position at which it is seen. ``where``: ``move``, ``request`` or ``reply``. ``kind``: of
    the request, with the name of its tool; of a move its row. ``text``: the words around it."""

    at: int
    where: str
    kind: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def search(record: Record, text: str, limit: int = MOST) -> list[Hit]:
    """The first ``limit`` hits in order. What the last state asked for is seen at the last move, because
    there is no other after it."""
    count, found = record.count, list[Hit]()
    for at in record.find(text, limit=limit):
        found += [hit for hit in _hits(record, at, text) if hit.at <= count]
        if at == count and record.info.ended is not None:
            found += list(_visited(record, count, count, text))
    return list(dict.fromkeys(found))[:limit]


def _hits(record: Record, at: int, text: str) -> Iterator[Hit]:
    for move in record.moves(at, at):
        words = " ".join(str(move[name] or "") for name in ("source", "event", "dest", "row", "exit"))
        if text.lower() in words.lower():
            yield Hit(at, "move", move["row"], around(words, text))
    yield from _visited(record, at - 1, at, text)


def _visited(record: Record, visit: int, at: int, text: str) -> Iterator[Hit]:
    for one in record.visit(visit):
        if one["kind"] == "OpenTurn":
            continue
        kind = f"{one['kind']} {one['name']}".strip()
        for where in ("request", "reply"):
            for said in strings(one[where]):
                if text.lower() in said.lower():
                    yield Hit(at, where, kind, around(said, text))
                    break


def strings(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, as text."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from strings(part)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from strings(part)
    elif value is not None:
        yield str(value)


def around(said: str, text: str) -> str:
    """The words around the first place of ``text``, in one line."""
    place = said.lower().find(text.lower())
    first, last = max(0, place - AROUND), place + len(text) + AROUND
    cut = re.sub(r"\s+", " ", said[first:last]).strip()
    return ("…" if first else "") + cut + ("…" if last < len(said) else "")
