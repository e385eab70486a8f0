"""What is loaded only for who names a database of PostgreSQL."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsm_agent.errors import StoreError

if TYPE_CHECKING:
    from fsm_agent.sessions.store.health import Health
    from fsm_agent.sessions.store.postgres.database import PostgresDatabase
    from fsm_agent.sessions.store.postgres.presence import PostgresOwners


def database_at(url: str) -> PostgresDatabase:
    """Open the database at an address. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres.database import PostgresDatabase

    return PostgresDatabase(url)


def owners_of(store: Callable[[], Any]) -> PostgresOwners:
    """Return who knows the processes that run turns in a store's database. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres.presence import PostgresOwners

    return PostgresOwners(store)


def health_of(url: str) -> Health:
    """Look at the database at an address, without changing it. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres import health

    return health.health_of(url)


def _need_extra() -> None:
    try:
        importlib.import_module("psycopg")
    except ImportError as error:
        from fsm_agent.support.installation import install_command

        raise StoreError(
            f"sessions in PostgreSQL need psycopg, which is not installed: {install_command('postgres')}"
        ) from error
