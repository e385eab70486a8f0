"""Tokens and cost summed over requests. What is not known is never counted as nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

CostStatus = Literal["none", "estimated", "at_least", "included", "unknown"]
SUMS = (
    "COUNT(u.id), COALESCE(SUM(u.input), 0), COALESCE(SUM(u.output), 0), COALESCE(SUM(u.cache_read), 0),"
    " COALESCE(SUM(u.cache_write), 0), COALESCE(SUM(u.reasoning), 0), SUM(u.cost),"
    " COUNT(*) FILTER (WHERE u.cost_status = 'unknown'), COUNT(*) FILTER (WHERE u.cost_status = 'included')"
)
"""Columns for ``UsageTotals.of``, over rows of ``usage u``."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """``requests`` that reported their tokens, in disjoint buckets (reasoning is a part of output). ``cost``
    in US dollars, ``None`` when nothing of it is known. ``cost_status``: ``at_least`` where the price of some
    requests is not known, ``included`` where nothing is paid by the token, ``none`` without requests."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float | None = None
    cost_status: CostStatus = "none"

    @classmethod
    def of(cls, row: Sequence[Any]) -> UsageTotals:
        """Make it from a row with the columns of ``SUMS``."""
        *counts, cost, unknown, included = row
        requests = counts[0]
        status: CostStatus = "estimated"
        if not requests:
            status = "none"
        elif unknown:
            status = "at_least" if cost else "unknown"
        elif included == requests:
            status = "included"
        values: list[Any] = [*counts, cost if status in ("estimated", "at_least") else None, status]
        return cls(*values)

    @property
    def prompt(self) -> int:
        """Tokens of all prompts, read from a cache or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def tokens(self) -> int:
        """Tokens of prompts and replies together."""
        return self.prompt + self.output

    @property
    def cache_hit(self) -> float | None:
        """Share of the prompt that was read from a provider's cache, 0 to 1."""
        return self.cache_read / self.prompt if self.prompt else None

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return {
            "requests": self.requests, "input": self.input, "output": self.output,
            "cache_read": self.cache_read, "cache_write": self.cache_write, "reasoning": self.reasoning,
            "prompt": self.prompt, "tokens": self.tokens, "cache_hit": self.cache_hit, "cost_usd": self.cost,
            "cost_status": self.cost_status,
        }  # fmt: skip


NOTHING = UsageTotals()
