"""What requests to models that are under way may still cost, of all turns of a home in this process.

A limit that several turns share is kept because each of them holds what its next request may take before it
goes out, until what it took is on its way to the store."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from fsm_agent.runtime.work_time import WorkTime


class Reserved(NamedTuple):
    """So much is held, of the pots that are named."""

    pots: frozenset[str]
    usd: float
    tokens: int


class Reservations:
    """What is held, by whoever holds it; what nobody refers to any more holds nothing. ``released`` counts
    how often something was let go of: who has read the store before the last time reads it again. Take
    ``lock`` to look and hold at once. ``clocks``: how long turns that run have worked, by their ids."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[object, Reserved] = WeakKeyDictionary()
        self.lock, self.released = threading.RLock(), 0
        self.clocks: WeakValueDictionary[str, WorkTime] = WeakValueDictionary()

    def hold(self, owner: object, pots: Iterable[str], usd: float, tokens: int) -> None:
        """Hold this much of these pots, in place of what ``owner`` held before."""
        with self.lock:
            self._held[owner] = Reserved(frozenset(pots), usd, tokens)

    def release(self, owner: object) -> None:
        """Hold nothing any more."""
        with self.lock:
            self.released += self._held.pop(owner, None) is not None

    def of_others(self, owner: object, pot: str) -> tuple[float, int]:
        """Return the dollars and tokens of this pot that all but ``owner`` hold."""
        with self.lock:
            there = [held for one, held in self._held.items() if one is not owner and pot in held.pots]
        return sum(held.usd for held in there), sum(held.tokens for held in there)
