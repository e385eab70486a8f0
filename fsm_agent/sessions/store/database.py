"""What a store of sessions is kept in: a SQLite file, or a database of PostgreSQL.

All that the store does goes through this class; the tables are the same in both, and so is the SQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.writer import GroupWriter
from fsm_agent.sessions.store.writer import Job as Job

Durability = Literal["full", "normal"]


class Database(GroupWriter):
    """Where sessions are kept. Raises ``StoreError`` in one line when it cannot be used."""

    closed = True
    shared = False
    """Is it used by processes on several machines, which this one does not see?"""
    path: Path | None
    """The file, where it is one."""
    name: str
    """What it is called before people, without passwords."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[SqlConnection]:
        """Lend the connection for reads, which sees all that was committed before. Raises ``StoreError``."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[SqlConnection]:
        """Lend a connection of its own that sees all as it was at one moment, for who reads for long. Raises
        ``StoreError``."""

    def select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of one statement, with ``values`` in the places of its question marks."""
        with self.reading() as c:
            return c.execute(sql, values).fetchall()

    @abstractmethod
    def close(self) -> None:
        """Finish what was submitted, and close. Safe to call twice."""

    def listen(self, heard: Callable[[str], None]) -> bool:
        """Have ``heard`` called, in another thread, with the name of each table that people's commands or
        answers came to, as long as its object lives. False where nobody tells: look every now and then."""
        return False

    def numbers_given(self, c: SqlConnection) -> None:
        """Rows were written with numbers of their own: those that come get higher ones."""

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes it takes."""

    @abstractmethod
    def rebuild(self) -> tuple[int, int]:
        """Give room that is free back to the disk; the size in bytes before and after. Raises
        ``StoreError``."""
