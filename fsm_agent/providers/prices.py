"""What tokens cost: prices that a person gives (the setting ``prices``), else list prices of the collection
``genai-prices``, and sums over them.

List prices are in US dollars for a million tokens: the vendors' for their own APIs, as the installed version
of the collection has them; nothing is fetched. What is not known exactly counts as unknown, never as 0:
models whose price depends on the time of day or, within their window, on the length of the prompt, models
that are paid for other things than text, and aggregators. A price is for its model's name, followed by
nothing but a date or ``-latest``: a new member of a family has a price of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import Literal

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings.model import CacheTtl, ModelPrice

Status = Literal["estimated", "included", "unknown"]
SOURCE = "list prices of genai-prices"
GIVEN = "the setting prices"
Given = Mapping[str, ModelPrice]
"""Prices of models by ``<provider>:<model>``."""
PER = 1_000_000
_VERSION = re.compile(r"(-0)?(-\d{4}-\d{2}-\d{2}|-\d{8}|-latest)?\Z")
_KEYS = {
    "input": "input_mtok", "output": "output_mtok",
    "read": "cache_read_mtok", "write": "cache_write_mtok", "write_1h": "cache_write_1h_mtok",
}  # fmt: skip
_OTHER_THAN_TEXT = re.compile(r"audio|realtime|image|transcribe|tts")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens. ``write``: for five minutes, ``write_1h``: for an hour, where writing
    to the cache costs anything besides the input. ``read`` is ``None`` where there is no cache, or no price
    for it."""

    input: float
    output: float
    read: float | None = None
    write: float | None = None
    write_1h: float | None = None

    def most(self, prompt: int, output: int) -> float:
        """Return what a request costs at most, in US dollars: none of its prompt was in the cache, and all of
        it is written there, as long as can be."""
        dearest = max(self.input, self.read or 0.0, self.write or 0.0, self.write_1h or 0.0)
        return (prompt * dearest + output * self.output) / PER


@dataclass(frozen=True, slots=True)
class Cost:
    """``usd`` is ``None`` unless the status is ``estimated``: a model of one's own costs nothing by the token
    (``included``), and an unknown price is not 0."""

    usd: float | None
    status: Status
    source: str | None = None


UNKNOWN, INCLUDED = Cost(None, "unknown"), Cost(None, "included")


def dearest(prices: Iterable[Price | None]) -> Price | None:
    """Return the price at which every token costs what it does at the dearest of these; ``None`` when one of
    them is not known."""
    found = list(prices)
    known = [price for price in found if price is not None]
    if len(known) < len(found) or not known:
        return None
    prompt = max(price.most(PER, 0) for price in known)
    return Price(prompt, max(price.output for price in known))


FREE = Price(0.0, 0.0, 0.0)
NOBODYS: Given = MappingProxyType({})


def cost(model: str, provider: str, usage: Usage, ttl: CacheTtl = "5m", given: Given = NOBODYS) -> Cost:
    """What these tokens of one model cost. ``ttl``: how long what was written to a cache is kept."""
    price = price_of(model, provider, given)
    if price is FREE:
        return INCLUDED
    if price is None or (usage.cache_read and price.read is None):
        return UNKNOWN
    write = (price.write_1h if ttl == "1h" else price.write) or price.input
    tokens = (
        (usage.input, price.input),
        (usage.output, price.output),
        (usage.cache_read, price.read),
        (usage.cache_write, write),
    )
    source = GIVEN if f"{provider}:{model}" in given else SOURCE
    return Cost(sum(count * (each or 0.0) for count, each in tokens) / PER, "estimated", source)


def price_of(model: str, provider: str, given: Given = NOBODYS) -> Price | None:
    """Return the price: as ``given``, ``FREE`` for a model of one's own, else as listed; ``None`` where it is
    not known exactly."""
    if own := given.get(f"{provider}:{model}"):
        read, write = own.cache_read, own.cache_write
        return Price(own.input, own.output, own.input if read is None else read, write, write)
    profile = PROFILES.get(provider)
    if profile is not None and (profile.local or profile.in_process):
        return FREE
    return listed_price(model, provider)


@cache
def listed_price(model: str, provider: str) -> Price | None:
    """Return the list price as of the first time it is asked for; ``None`` where it is not known exactly."""
    profile = PROFILES.get(provider)
    if profile is None or not profile.price_list or _OTHER_THAN_TEXT.search(model):
        return None
    from genai_prices.data_snapshot import get_snapshot  # here, because only the end of a turn needs it
    from genai_prices.types import TieredPrices, TimeOfDateConstraint

    try:
        _, found = get_snapshot().find_provider_model(model, None, profile.price_list, None)
    except LookupError:
        return None
    conditions = [one.constraint for one in found.prices] if isinstance(found.prices, list) else []
    if _VERSION.sub("", model) != _VERSION.sub("", found.id) or any(
        isinstance(one, TimeOfDateConstraint) for one in conditions
    ):
        return None
    listed = found.get_prices(datetime.now(UTC))
    figures: dict[str, float] = {}
    for name, key in _KEYS.items():
        figure = getattr(listed, key)
        if isinstance(figure, TieredPrices):
            if found.context_window is None or any(
                tier.start < found.context_window for tier in figure.tiers
            ):
                return None
            figure = figure.base
        if figure is not None:
            figures[name] = float(figure)
    return Price(**figures) if {"input", "output"} <= set(figures) else None


def total_cost(usages: Mapping[tuple[str, str], Usage], ttl: CacheTtl = "5m", given: Given = NOBODYS) -> Cost:
    """The sum over (provider, model). One price that is not known makes the whole unknown; models of one's
    own add nothing."""
    parts = [cost(model, provider, usage, ttl, given) for (provider, model), usage in usages.items()]
    if not parts or any(part.status == "unknown" for part in parts):
        return UNKNOWN
    paid = [part.usd for part in parts if part.usd is not None]
    sources = " and ".join(sorted({part.source for part in parts if part.source}))
    return Cost(sum(paid), "estimated", sources) if paid else INCLUDED
