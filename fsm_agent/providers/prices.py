"""What tokens cost: a dated table of list prices, and sums over it.

Prices are in US dollars for a million tokens: the vendors' list prices for their own APIs
(https://openai.com/api/pricing, https://claude.com/pricing) as the collection ``genai-prices`` 0.2.3 of
November 2026 gives them, read on 2026-11-22. Models whose price depends on the time of day or, within their
usual window, on the length of the prompt are left out, and so are aggregators: what is not known exactly
counts as unknown, never as 0. A row is for its name, followed by nothing but a date or ``-latest``: a new
member of a family has a price of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings.model import CacheTtl

Status = Literal["estimated", "included", "unknown"]
SOURCE = "list prices of 2026-11-22"
PER = 1_000_000
_VERSION = re.compile(r"(-\d{4}-\d{2}-\d{2}|-\d{8}|-latest)?\Z")
_HOUR = 2.0
"""What writing to Anthropic's cache for an hour costs, as a multiple of input."""


@dataclass(frozen=True, slots=True)
class Price:
    """``write``: for five minutes, where writing to the cache costs anything besides the input. ``read`` is
    ``None`` where there is no cache, or no price for it."""

    input: float
    output: float
    read: float | None = None
    write: float | None = None


OPENAI: dict[str, Price] = {
    "gpt-4o": Price(2.5, 10, 1.25),
    "gpt-4o-2024-05-13": Price(5, 15),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "gpt-4.1": Price(2, 8, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-5": Price(1.25, 10, 0.125),
    "gpt-5-mini": Price(0.25, 2, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-5-pro": Price(15, 120),
    "gpt-5.1": Price(1.25, 10, 0.125),
    "gpt-5.2": Price(1.75, 14, 0.175),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
    "o1": Price(15, 60, 7.5),
    "o3": Price(2, 8, 0.5),
    "o3-mini": Price(1.1, 4.4, 0.55),
    "o4-mini": Price(1.1, 4.4, 0.275),
}
ANTHROPIC: dict[str, Price] = {
    "claude-3-haiku": Price(0.25, 1.25, 0.03, 0.3),
    "claude-3-5-haiku": Price(0.8, 4, 0.08, 1),
    "claude-3-5-sonnet": Price(3, 15, 0.3, 3.75),
    "claude-3-7-sonnet": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-4": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-4-0": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-4-5": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-5": Price(2, 10, 0.2, 2.5),
    "claude-sonnet-5-5": Price(2, 10, 0.1, 2.5),
    "claude-haiku-4-5": Price(1, 5, 0.1, 1.25),
    "claude-opus-4": Price(15, 75, 1.5, 18.75),
    "claude-opus-4-0": Price(15, 75, 1.5, 18.75),
    "claude-opus-4-1": Price(15, 75, 1.5, 18.75),
    "claude-opus-4-5": Price(5, 25, 0.5, 6.25),
    "claude-opus-5": Price(5, 25, 0.5, 6.25),
    "claude-opus-5-5": Price(4, 20, 0.2, 5),
}
TABLES: dict[str, dict[str, Price]] = {"openai": OPENAI, "openai-responses": OPENAI, "anthropic": ANTHROPIC}
"""By provider."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``usd`` is ``None`` unless the status is ``estimated``: a model of one's own costs nothing by the token
    (``included``), and an unknown price is not 0."""

    usd: float | None
    status: Status
    source: str | None = None


UNKNOWN, INCLUDED = Cost(None, "unknown"), Cost(None, "included")


def cost(model: str, provider: str, usage: Usage, ttl: CacheTtl = "5m") -> Cost:
    """What these tokens of one model cost. ``ttl``: how long what was written to a cache is kept."""
    profile = PROFILES.get(provider)
    if profile is not None and (profile.local or profile.in_process):
        return INCLUDED
    price = price_of(model, TABLES.get(provider, {}))
    if price is None or (usage.cache_read and price.read is None):
        return UNKNOWN
    write = price.input if price.write is None else _HOUR * price.input if ttl == "1h" else price.write
    tokens = (
        (usage.input, price.input),
        (usage.output, price.output),
        (usage.cache_read, price.read),
        (usage.cache_write, write),
    )
    return Cost(sum(count * (each or 0.0) for count, each in tokens) / PER, "estimated", SOURCE)


def price_of(model: str, table: Mapping[str, Price]) -> Price | None:
    """The row of the longest name that the model's begins with, if nothing but a version follows."""
    fitting = [name for name in table if model.startswith(name) and _VERSION.match(model, len(name))]
    return table[max(fitting, key=len)] if fitting else None


def total_cost(usages: Mapping[tuple[str, str], Usage], ttl: CacheTtl = "5m") -> Cost:
    """The sum over (provider, model). One price that is not known makes the whole unknown; models of one's
    own add nothing."""
    parts = [cost(model, provider, usage, ttl) for (provider, model), usage in usages.items()]
    if not parts or any(part.status == "unknown" for part in parts):
        return UNKNOWN
    paid = [part.usd for part in parts if part.usd is not None]
    return Cost(sum(paid), "estimated", SOURCE) if paid else INCLUDED
