"""A PostgreSQL database by its URL: masking of passwords, and lazy import of the backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from fsm_agent.errors import StoreError

if TYPE_CHECKING:
    from fsm_agent.sessions.store.postgres.database import PostgresDatabase, PostgresOwners
    from fsm_agent.sessions.store.schema import Health

MASKED = "***"
_SECRET = ("password", "sslpassword")


def masked_url(url: str) -> str:
    """Return ``postgresql://user:password@host:port/name?option=value`` for display: with its passwords
    masked. Any other text is returned unchanged."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    parts = urlsplit(url)
    login, at, where = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    query = urlencode(
        [(name, MASKED if name.lower() in _SECRET else value) for name, value in parse_qsl(parts.query)],
        quote_via=quote, safe="*/,",
    )  # fmt: skip
    netloc = f"{user}{colon and f':{MASKED}'}{at}{where}"
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def secrets(url: str) -> tuple[str, ...]:
    """Return the passwords in a URL."""
    parts = urlsplit(url)
    found = [
        parts.password or "",
        *(value for name, value in parse_qsl(parts.query) if name.lower() in _SECRET),
    ]
    return tuple(one for one in found if one)


def database_at(url: str) -> PostgresDatabase:
    """Open the database at a URL. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres.database import PostgresDatabase

    return PostgresDatabase(url)


def owners_of(store: Callable[[], Any]) -> PostgresOwners:
    """Return the registry of processes that run turns in a store's database. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres.database import PostgresOwners

    return PostgresOwners(store)


def health_of(url: str) -> Health:
    """Inspect the database at a URL, without changing it. Raises ``StoreError``."""
    _need_extra()
    from fsm_agent.sessions.store.postgres.database import database_health

    return database_health(url)


def _need_extra() -> None:
    try:
        importlib.import_module("psycopg")
    except ImportError as error:
        from fsm_agent.support.installation import install_command

        raise StoreError(
            f"sessions in PostgreSQL need psycopg, which is not installed: {install_command('postgres')}"
        ) from error
