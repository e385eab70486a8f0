"""Budgets of iterations that several turns share: the soft limit above each turn's own ``max_iterations``.

A child's turn takes from its own budget and, depending on the mode, from its parent's (DIS-01):
``independent``, ``shared`` (one pool for the whole tree), or ``tree_cap`` (own budgets under a cap for the
tree, three times the root's)."""

from __future__ import annotations

import threading

from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import BudgetMode


class IterationBudget:
    """So many iterations, taken one at a time from any thread, together with those of ``above``.

    ``take`` is all or nothing: it is false, and takes nothing, when this budget or one above it has none
    left."""

    def __init__(self, limit: int, above: IterationBudget | None = None) -> None:
        if limit < 0:
            raise ConfigError("a budget is negative", limit, "a whole number from 0")
        self.limit, self.used = limit, 0
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

    def child(self, mode: BudgetMode, iterations: int) -> IterationBudget:
        """The budget of a child's turn of at most ``iterations``."""
        if mode == "shared":
            return self
        return IterationBudget(iterations, self if mode == "tree_cap" else None)


def tree_budget(mode: BudgetMode, max_iterations: int, factor: float) -> IterationBudget:
    """The budget at the root of a tree: the root's own iterations, or the cap that all of the tree stays
    under."""
    return IterationBudget(int(max_iterations * factor) if mode == "tree_cap" else max_iterations)
