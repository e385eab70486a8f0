"""The full-text index, filled in small batches behind the messages.

Never in the transaction of a move. ``catch_up`` is for somebody who is about to search; ``keep_up`` goes on
beside running turns, one short transaction at a time, so that nobody waits long for the writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.search import fts5, tsvector
from fsm_agent.sessions.store.search.searched import IndexQuery
from fsm_agent.sessions.store.search.text_analysis import Query

BESIDE = (64, 200_000)
"""Messages and characters of one transaction beside running turns: a few milliseconds."""
AT_ONCE = (400, 800_000)
"""The same when somebody waits for the end."""
PAUSE = 0.005
"""Seconds between those: turns of other processes want to write too."""
Progress = Callable[[int, int], None]


class FullText(Protocol):
    """One of the two indexes: ``fts5`` or ``tsvector``."""

    def waiting(self, connection: SqlConnection) -> int:
        """Return how many messages the index lacks, at most."""
        ...

    def index_batch(self, connection: SqlConnection, rows: int, chars: int) -> bool:
        """Index at most ``rows`` messages of about ``chars`` characters; return whether there may be
        more."""
        ...

    def make_anew(self, connection: SqlConnection) -> None:
        """Have the index made anew when it is next asked for."""
        ...

    def deleted(self, connection: SqlConnection) -> None:
        """Messages were deleted in this transaction."""
        ...

    def asked(
        self, connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
    ) -> IndexQuery | None:
        """Return how the messages that answer a query are asked for."""
        ...


def full_text(database: Database) -> FullText:
    """Return the index of a database."""
    return tsvector if database.path is None else fts5


def catch_up(database: Database, seconds: float | None = None, progress: Progress | None = None) -> int:
    """Index what came since the last time, for at most ``seconds``, and return how many messages are still
    waiting. ``progress`` is called with (done, of how many)."""
    until = None if seconds is None else time.monotonic() + seconds
    waiting = total = pending(database)
    more = waiting > 0
    while more and (until is None or time.monotonic() < until):
        more = database.submit(lambda c: full_text(database).index_batch(c, *AT_ONCE), alone=True).result()
        waiting = pending(database)
        time.sleep(PAUSE if more else 0)
        if progress is not None:
            progress(max(0, total - waiting), total)
    return waiting


def keep_up(database: Database) -> None:
    """Index what came since the last time without waiting for it. A store that refuses is no error here."""

    def go_on(done: Future[Any]) -> None:
        if done.exception() is None and done.result():
            keep_up(database)

    database.submit(lambda c: full_text(database).index_batch(c, *BESIDE), alone=True).add_done_callback(
        go_on
    )


def pending(database: Database) -> int:
    """Return how many messages the index lacks, at most: numbers that were never given count too."""
    with database.reading() as c:
        return full_text(database).waiting(c)


def forget(database: Database) -> None:
    """Mark the index as damaged, so that it is made anew when it is next asked for. Nothing else is lost."""
    database.write(full_text(database).make_anew)
