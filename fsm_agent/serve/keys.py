"""Keys and their permissions. The store has the hash of a key, never the key.

A key is ``fsm-<id>-<secret>``. Its secret is 256 random bits, so one round of a hash is enough: it cannot be
guessed."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fsm_agent.dispatch.service import SCOPES, Caller
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.kept_values import KeptValues

KEYS = "serve.keys"
"""The name under which the store keeps them."""
BELIEVED = 2.0
"""Seconds until a key is looked up again: a removed one is refused after that."""
MOST_NAME = 80
_KEY = re.compile(r"fsm-([0-9a-f]{8})-([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as lists show it; ``made`` in seconds since the epoch."""

    id: str
    name: str
    scopes: tuple[str, ...]
    made: float


class KeyRing:
    """The keys of one store, and ``token``, which lives as long as this object and may do everything."""

    def __init__(self, store: Store, token: str = "") -> None:
        self._kept = KeptValues(store, KEYS)
        self._token = _hash(token) if token else ""
        self._known: dict[str, tuple[float, dict[str, Any] | None]] = {}

    def caller(self, given: str) -> Caller | None:
        """Return the caller that a key belongs to; ``None`` for a wrong key."""
        if self._token and secrets.compare_digest(_hash(given), self._token):
            return Caller("local", "the starter of this server", frozenset(SCOPES))
        if (found := _KEY.fullmatch(given)) is None:
            return None
        kept = self._look_up(found[1])
        if kept is None or not secrets.compare_digest(_hash(given), kept["hash"]):
            return None
        return Caller(found[1], kept["name"], frozenset(kept["scopes"]))

    def _look_up(self, key_id: str) -> dict[str, Any] | None:
        until, kept = self._known.get(key_id, (0.0, None))
        if time.monotonic() >= until:
            kept = self._kept.get(key_id)
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[key_id] = time.monotonic() + BELIEVED, kept
        return kept

    async def add(self, name: str, scopes: Iterable[str]) -> tuple[Key, str]:
        """Create a key; return it and the text to send, which is not stored. Raises ``ConfigError``."""
        named = tuple(sorted(set(scopes), key=_rank))
        if not named:
            raise ConfigError("a key needs a scope", None, ", ".join(SCOPES))
        name = " ".join(name.split())
        if not 0 < len(name) <= MOST_NAME:
            raise ConfigError("a key needs a name", name, f"up to {MOST_NAME} characters")
        key = Key(secrets.token_hex(4), name, named, time.time())
        whole = f"fsm-{key.id}-{secrets.token_urlsafe(32)}"
        kept = {"name": key.name, "scopes": list(named), "hash": _hash(whole), "made": key.made}
        await self._kept.put(key.id, kept)
        return key, whole

    def all(self) -> list[Key]:
        """Return all keys, oldest first."""
        found = self._kept.all().items()
        keys = [Key(key_id, kept["name"], tuple(kept["scopes"]), kept["made"]) for key_id, kept in found]
        return sorted(keys, key=lambda key: key.made)

    async def remove(self, name: str) -> Key:
        """Remove the key with this id or name. Raises ``ConfigError`` if no key has it, or several do."""
        found = [key for key in self.all() if name in (key.id, key.name)]
        if len(found) != 1:
            there = ", ".join(f"{key.id} ({key.name})" for key in self.all()) or "there are none"
            raise ConfigError("several keys have this name" if found else "no such key", name, there)
        await self._kept.drop(found[0].id)
        self._known.pop(found[0].id, None)
        return found[0]


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _rank(scope: str) -> int:
    if scope not in SCOPES:
        raise ConfigError("no such scope", scope, ", ".join(SCOPES))
    return SCOPES.index(scope)
