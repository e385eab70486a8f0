"""Budgets that several turns share: the soft limit above each turn's own ``max_iterations``, and the cap on
all requests to models that a tree of turns sends.

A child's turn takes from its own budget and, depending on the mode, from its parent's (DIS-01):
``independent``, ``shared`` (one pool for the whole tree), or ``tree_cap`` (own budgets under a cap for the
tree, three times the root's).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from fsm_agent.errors import ConfigError
from fsm_agent.runtime.turn_limiter import WorkTime
from fsm_agent.settings.model import BudgetMode, Settings


class RequestCap:
    """So many requests to models for a turn, its children and theirs, taken one at a time from any thread
    just before each leaves."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one; false, and nothing taken, when none is left."""
        with self._lock:
            taken = self.used < self.limit
            self.used += taken
            return taken


class IterationBudget:
    """So many iterations, taken one at a time from any thread, together with those of ``above``.

    ``take`` is all or nothing: it is false, and takes nothing, when this budget or one above it has none
    left. ``requests`` is the cap of the tree that the turn is in; ``None`` where there is none."""

    def __init__(
        self, limit: int, above: IterationBudget | None = None, requests: RequestCap | None = None
    ) -> None:
        if limit < 0:
            raise ConfigError("a budget is negative", limit, "a whole number from 0")
        self.limit, self.used, self.requests = limit, 0, requests
        self._above = above
        self._lock: threading.RLock = above._lock if above is not None else threading.RLock()

    @property
    def remaining(self) -> int:
        """What may still be taken, the budgets above included."""
        own = self.limit - self.used
        return own if self._above is None else min(own, self._above.remaining)

    def take(self) -> bool:
        """Take one iteration here and from all above; false, and nothing taken, when one of them has none
        left."""
        with self._lock:
            if self.remaining <= 0:
                return False
            budget: IterationBudget | None = self
            while budget is not None:
                budget.used += 1
                budget = budget._above
            return True

    def settle(self, own: SpentBudget, below: SpentBudget) -> None:
        """Note at the root of a tree what its turn has taken in an earlier process, and those below it."""
        self.used = own.iterations + below.iterations
        if self.requests is not None:
            self.requests.used = own.attempts + below.attempts

    def child(self, mode: BudgetMode, iterations: int) -> IterationBudget:
        """The budget of a child's turn of at most ``iterations``."""
        if mode == "shared":
            return self
        return IterationBudget(iterations, self if mode == "tree_cap" else None, self.requests)


class SpentBudget(NamedTuple):
    """What a turn, or turns together, have taken: iterations, and requests to models."""

    iterations: int = 0
    attempts: int = 0


def tree_budget(settings: Settings, above: IterationBudget | None = None) -> IterationBudget:
    """The budget at the root of a tree: the root's own iterations, or the cap that all of the tree stays
    under, or what is left ``above``; and the cap on its requests."""
    own, limits = settings.max_iterations, settings.delegation
    most = int(own * limits.tree_cap_factor) if limits.budget == "tree_cap" else own
    most = most if above is None else above.limit
    return IterationBudget(most, above, RequestCap(settings.attempts_per_tree()))


# ----------------------------------------------------------------------------------------------------
# What requests to models that are under way may still cost, of all turns of a home in this process.
#
# A limit that several turns share is kept because each of them holds what its next request may take before
# it goes out, until what it took is on its way to the store.


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
