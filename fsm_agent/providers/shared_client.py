"""The clients of SDKs that ports share: for one loop, address, key and set of headers there is one. Making a
client takes longer than a request to a server nearby."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Hashable
from typing import Any

CLIENTS: weakref.WeakValueDictionary[Hashable, SharedClient] = weakref.WeakValueDictionary()
READ_BY_SDKS = ("OPENAI_", "ANTHROPIC_")
"""How the variables begin that an SDK reads when a client is made; and proxies, by how they end."""


class SharedClient:
    """A client and those who use it. It is closed with the last one that leaves; where one is dropped without
    a word, with the last reference."""

    def __init__(self, key: Hashable, client: Any) -> None:
        self._key, self.client, self._users = key, client, 0

    @classmethod
    def of(cls, alike: Hashable, make: Callable[[], Any]) -> SharedClient:
        """The client of the running loop for ``alike`` and the variables that matter to it; made if there is
        none. Who gets it says so by ``leave`` when he needs it no more."""
        key = (asyncio.get_running_loop(), alike, _surroundings())
        shared = CLIENTS.get(key)
        if shared is None:
            shared = CLIENTS[key] = cls(key, make())
        shared._users += 1
        return shared

    def retire(self) -> None:
        """Serve those who have it, and nobody else."""
        if CLIENTS.get(self._key) is self:
            del CLIENTS[self._key]

    async def leave(self) -> None:
        """Close it if nobody else uses it."""
        self._users -= 1
        if not self._users:
            self.retire()
            await self.client.close()


def _surroundings() -> Hashable:
    return tuple(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(READ_BY_SDKS) or name[-6:].upper() == "_PROXY"
    )
