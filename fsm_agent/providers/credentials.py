"""API keys of one provider: a pool with refresh, rotation and cooldowns.

A failed key rests: 5 minutes after a 401, an hour after 429 or 402, or as long as the provider says
(CRED-05), in all processes of the home (``key_rests``). Which ready key a turn starts with is a strategy; by
default the first. A refresh is tried at most twice a key and turn. (Why: decision 55.)"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fsm_agent.errors import ConfigError
from fsm_agent.providers.keyless_environment import hide_from_children
from fsm_agent.settings.model import Credential
from fsm_agent.support.threads import in_daemon_thread


@runtime_checkable
class CredentialSource(Protocol):
    """An object that knows a key and how to renew it. Both methods may be async."""

    def get(self) -> Any:
        """Return the key to use now."""
        ...

    def refresh(self) -> Any:
        """Renew the key; what is returned is false when that failed."""
        ...


ApiKey = str | CredentialSource | Sequence[str | CredentialSource] | None


@dataclass(slots=True)
class CredentialEntry:
    """A key of the pool. ``ready_at``: when it may be used again, in seconds since the epoch; ``dead``:
    never."""

    source: str | CredentialSource
    ready_at: float = 0.0
    dead: bool = False
    refreshes: int = 0
    turns: int = 0

    @property
    def refreshable(self) -> bool:
        """Say whether the key can be renewed."""
        return not isinstance(self.source, str)

    async def key(self) -> str:
        """Return the key itself; no command of this process sees it."""
        key = self.source if isinstance(self.source, str) else str(await _called(self.source.get))
        hide_from_children(keys=[key])
        return key


class KeyPool:
    """The keys in the order given. ``possible_rekeys`` bounds what one call block may try."""

    def __init__(self, keys: ApiKey, figures: Credential, rng: random.Random | None = None) -> None:
        self._entries = [CredentialEntry(source) for source in _sources(keys)]
        hide_from_children(keys=[entry.source for entry in self._entries if isinstance(entry.source, str)])
        self._figures = figures
        self._rng = rng or random.Random()  # noqa: S311 - a choice among keys, not a secret
        self._index = 0

    @property
    def possible_rekeys(self) -> int:
        """Return how many changes of keys and refreshes one call block may need."""
        refreshes = sum(self._figures.auth_refresh_max for entry in self._entries if entry.refreshable)
        return refreshes + max(0, len(self._entries) - 1)

    def new_turn(self, now: float, rests: Callable[[str], float] = lambda key: 0.0) -> None:
        """Give the refreshes back, and go to the key that the strategy prefers among those that are ready.
        ``rests``: until when another process lets a key rest, in seconds since the epoch."""
        for entry in self._entries:
            entry.refreshes = 0
            if isinstance(entry.source, str):
                entry.ready_at = max(entry.ready_at, rests(entry.source))
        ready = [index for index, entry in enumerate(self._entries) if self._ready(entry, now)]
        if ready:
            self._index = self._preferred(ready)
            self._entries[self._index].turns += 1

    def _preferred(self, ready: list[int]) -> int:
        match self._figures.strategy:
            case "round_robin":
                started = any(entry.turns for entry in self._entries)
                return (
                    next((index for index in ready if index > self._index), ready[0]) if started else ready[0]
                )
            case "random":
                return self._rng.choice(ready)
            case "least_used":
                return min(ready, key=lambda index: self._entries[index].turns)
        return ready[0]

    async def key(self) -> str:
        """Return the key in use; empty when the pool is."""
        return await self._entries[self._index].key() if self._entries else ""

    @property
    def in_use(self) -> CredentialEntry | None:
        """The entry of the key in use; ``None`` where there is none."""
        return self._entries[self._index] if self._entries else None

    def refreshable(self) -> bool:
        """Say whether the key in use can be renewed once more in this turn."""
        entry = self.in_use
        return entry is not None and entry.refreshable and entry.refreshes < self._figures.auth_refresh_max

    def others(self, now: float) -> int:
        """How many other keys are ready."""
        return sum(self._ready(entry, now) for i, entry in enumerate(self._entries) if i != self._index)

    async def refresh(self) -> str:
        """Renew the key in use; an empty text when done, else why not."""
        entry = self._entries[self._index]
        entry.refreshes += 1
        try:
            renewed = await _called(entry.source.refresh) if not isinstance(entry.source, str) else False
        except Exception as error:
            return f"the credential could not be refreshed: {type(error).__name__}: {error}"
        return "the credential's refresh was refused" if renewed is False else ""

    def rotate(self, now: float, failure_class: str, retry_after: float | None) -> bool:
        """Rest the key in use and go to the next that is ready."""
        if not self._entries:
            return False
        entry = self._entries[self._index]
        entry.dead = failure_class == "auth_permanent"
        rest = self._figures.cooldown_auth if failure_class == "auth" else self._figures.cooldown_other
        entry.ready_at = now + (rest if retry_after is None else retry_after)
        for offset in range(1, len(self._entries)):
            index = (self._index + offset) % len(self._entries)
            if self._ready(self._entries[index], now):
                self._index = index
                return True
        return False

    @staticmethod
    def _ready(entry: CredentialEntry, now: float) -> bool:
        return not entry.dead and entry.ready_at <= now


def _sources(keys: ApiKey) -> list[str | CredentialSource]:
    given = [keys] if keys is None or isinstance(keys, (str, CredentialSource)) else list(keys)
    found: list[str | CredentialSource] = []
    for key in given:
        if isinstance(key, (str, CredentialSource)):
            found.append(key)
        elif key is not None:
            raise ConfigError(
                "an API key has the wrong type",
                type(key).__name__,
                "a string, or an object with get() and refresh()",
            )
    return found


async def _called(function: Any) -> Any:
    """Call a method that may be async, and may block when it is not."""
    if inspect.iscoroutinefunction(function):
        return await function()
    answer = await in_daemon_thread(function)
    return await answer if inspect.isawaitable(answer) else answer
