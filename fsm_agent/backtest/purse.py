"""A budget in money for many turns of one store, which are run one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.reports.spending import Spending
from fsm_agent.settings.model import Limits, LimitScope

LEAST = 1e-9
"""US dollars of a budget that is not spent yet."""
MOST = 1_000_000


class BudgetSpent(Exception):
    """The budget has nothing left for another turn."""


@dataclass(slots=True)
class Purse:
    """``usd``: the budget; ``None`` for no limit. ``spent`` of it so far."""

    usd: float | None = None
    spent: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.usd is not None and not 0 < self.usd <= MOST:
            raise ConfigError("a budget is out of range", self.usd, f"US dollars, more than 0 to {MOST:,}")

    @asynccontextmanager
    async def one_turn(self) -> AsyncIterator[Limits | None]:
        """The limits of the next turn, which has all that is left. With a budget, the next turn waits until
        this one has ended. Raises ``BudgetSpent``."""
        if self.usd is None:
            yield None
            return
        async with self._turn:
            if (left := self.usd - self.spent) < LEAST:
                raise BudgetSpent
            yield Limits(usd=left)

    async def took(self, store: Store, turn: str, session: str, scope: LimitScope) -> float:
        """Take what the turn, or the tree of it, cost, requests without reported tokens included; return
        it."""
        found = await Spending(store, turn, session, (scope,)).now()
        self.spent += found[scope].usd
        return found[scope].usd
