"""What both full-text indexes are made from and asked with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.search.text_analysis import columns, plain_text

Indexed = tuple[int, str, str, str]
"""A message for the index: its id, and its words, single characters and tags."""


class IndexQuery(NamedTuple):
    """A part of a query over ``messages m``: where it reads, on which condition with one value, and by which
    number in order."""

    source: str
    condition: str
    value: str
    number: str


def indexed(rows: Iterable[Any], most: int, chars: int) -> tuple[list[Indexed], bool]:
    """Return the first of the rows (id, role, session, at, kind of the session, body, its checksum) for the
    index, of about ``chars`` characters; and whether there may be more than these or than ``most``."""
    batch: list[Indexed] = []
    for message, role, session, at, kind, *body in rows:
        words, singles, tags = columns(_text(*body), role, session, at)
        batch.append((message, words, singles, f"{tags} {kind}"))
        chars -= len(words)
        if chars <= 0:
            break
    return batch, len(batch) == most or chars <= 0


def _text(body: str, crc: int | None) -> str:
    """A damaged message does not keep the others from being found."""
    try:
        return plain_text(loads(body, crc))
    except StoreError:
        return ""


IS_DAMAGED = "the full-text index of the sessions is damaged; it is made anew by the next search"
SIGNS = ("malformed", "constraint failed", "logic error", "vtable constructor", "invalid fts5")
"""What SQLite says of a full-text table that is not what it should be."""


def looks_damaged(error: BaseException | None) -> bool:
    """Return whether a damaged index may be the reason of an error. It is read as anything: broken rows,
    rows that are there twice, lengths of gigabytes."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in SIGNS)
