"""Budgets shared by several turns: the soft limit above each turn's own ``max_iterations``, and the cap on
all model requests of a tree of turns.

A child's turn takes from its own budget and, depending on the mode, from its parent's (DIS-01):
``independent``, ``shared`` (one pool for the whole tree), or ``tree_cap`` (own budgets under a cap for the
tree, three times the root's)."""

from __future__ import annotations

import threading
from typing import NamedTuple

from fsm_agent.errors import ConfigError
from fsm_agent.settings import BudgetMode, Settings


class RequestCap:
    """The model requests allowed for a tree of turns, taken one at a time from any thread just before each is
    sent."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one request; return false if none is left."""
        with self._lock:
            taken = self.used < self.limit
            self.used += taken
            return taken


class IterationBudget:
    """The iterations allowed for a turn, taken one at a time from any thread, together with those of
    ``above``.

    ``take`` is all or nothing: it returns false and takes nothing if this budget or one above it is
    exhausted. ``requests``: the cap of the turn's tree, if any."""

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
        """Return the remaining iterations, limited by the budgets above."""
        own = self.limit - self.used
        return own if self._above is None else min(own, self._above.remaining)

    def take(self) -> bool:
        """Take one iteration here and from all above; return false, taking nothing, if one of them is
        exhausted."""
        with self._lock:
            if self.remaining <= 0:
                return False
            budget: IterationBudget | None = self
            while budget is not None:
                budget.used += 1
                budget = budget._above
            return True

    def settle(self, own: SpentBudget, below: SpentBudget) -> None:
        """Record at a tree's root the iterations that its turns used in an earlier process."""
        self.used = own.iterations + below.iterations
        if self.requests is not None:
            self.requests.used = own.attempts + below.attempts

    def child(self, mode: BudgetMode, iterations: int) -> IterationBudget:
        """Return the budget of a child turn with at most ``iterations``."""
        if mode == "shared":
            return self
        return IterationBudget(iterations, self if mode == "tree_cap" else None, self.requests)


class SpentBudget(NamedTuple):
    """Iterations and model requests that one or more turns used."""

    iterations: int = 0
    attempts: int = 0


def tree_budget(settings: Settings, above: IterationBudget | None = None) -> IterationBudget:
    """Return the budget at a tree's root: its own iterations, the cap of the whole tree, or the limit of
    ``above``; with the cap on requests."""
    own, limits = settings.max_iterations, settings.delegation
    most = int(own * limits.tree_cap_factor) if limits.budget == "tree_cap" else own
    most = most if above is None else above.limit
    return IterationBudget(most, above, RequestCap(settings.attempts_per_tree()))
