"""Values that extensions keep in the store: JSON by key, separate for each extension."""

from __future__ import annotations

import json
from typing import Any, Self

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection

OF_SESSIONS, OF_TURNS = ".sessions", ".turns"
"""Suffixes of namespaces whose keys are ids of sessions or turns: a value is removed with its session or
turn. No name of an extension contains a dot."""
LARGEST = 1_000_000
"""Maximum characters of one value, as JSON."""


class KeptValues:
    """The values of one extension; ``of(name)`` returns those of another."""

    def __init__(self, store: Store, extension: str = "") -> None:
        self._store, self._extension = store, extension

    def of(self, extension: str) -> Self:
        """Return the values of another extension."""
        return type(self)(self._store, extension)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the current stored value of ``key``."""
        query = "SELECT value FROM kept_values WHERE extension = ? AND key = ?"
        found = self._store.database.select(query, self._extension, key)
        return json.loads(found[0][0]) if found else default

    def keys(self) -> list[str]:
        """Return all keys, sorted."""
        query = "SELECT key FROM kept_values WHERE extension = ? ORDER BY key"
        return [key for (key,) in self._store.database.select(query, self._extension)]

    def all(self) -> dict[str, Any]:
        """Return all values by key, sorted, in one query."""
        query = "SELECT key, value FROM kept_values WHERE extension = ? ORDER BY key"
        return {key: json.loads(text) for key, text in self._store.database.select(query, self._extension)}

    async def put(self, key: str, value: Any) -> None:
        """Store a value, replacing an earlier one; it is on disk when this returns. Raises ``ConfigError``
        for a value that is not JSON or is too large."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{key} of extension {self._extension} cannot be kept ({error})", value
            ) from None
        if len(text) > LARGEST:
            allowed = f"up to {LARGEST:,} characters of JSON"
            raise ConfigError(f"{key} of extension {self._extension} is too large", len(text), allowed)
        values = (self._extension, key, text)

        def write(c: SqlConnection) -> None:
            c.execute("DELETE FROM kept_values WHERE extension = ? AND key = ?", values[:2])
            c.execute("INSERT INTO kept_values (extension, key, value) VALUES (?, ?, ?)", values)

        await self._store.write(write)

    async def drop(self, key: str) -> None:
        """Delete a value, if it exists."""
        values = (self._extension, key)
        delete = "DELETE FROM kept_values WHERE extension = ? AND key = ?"
        await self._store.write(lambda c: c.execute(delete, values) and None)
