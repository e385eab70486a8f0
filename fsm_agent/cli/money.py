"""The most that a turn can cost: the bound on its requests, times the most expensive request to a model that
it may ask, with a window full of prompt and the longest reply."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsm_agent.cli.models import NO_KEY, name_of
from fsm_agent.providers.catalog import price_of
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.config_file import config_of
from fsm_agent.settings.model import Settings
from fsm_agent.support.files import home_of

WORDS = {
    "turn": "a turn alone",
    "tree": "a turn and its children, and theirs",
    "compaction": "a compaction that is asked for",
}


@dataclass(frozen=True, slots=True)
class MostMoney:
    """US dollars, ``None`` where a price, a window or the length of a reply is not known: of one request to
    each of ``models``, and of all that a ``turn``, a ``tree`` and a ``compaction`` can send (``bounds``).
    ``limits``: those in money, by their names."""

    models: Mapping[str, float | None]
    bounds: Mapping[str, float | None]
    limits: Mapping[str, float]

    def lines(self) -> list[str]:
        """Return it in words."""
        said = ["Money, in US dollars, with a window full of prompt and the longest reply in each request"]
        said += [f"  a request to {name}: {_words(usd)}" for name, usd in self.models.items()]
        said += [f"  {WORDS[name]}: {_words(usd)}" for name, usd in self.bounds.items()]
        beyond = "and what providers report beyond the estimates"
        return said + [f"  under {name}: at most ${usd:,.2f}, {beyond}" for name, usd in self.limits.items()]


def most_money(requests: Mapping[str, int], models: Sequence[str], settings: Settings) -> MostMoney | None:
    """Return the bounds for turns that may ask ``models`` and send at most ``requests``; ``None`` without a
    model and without a limit in money. Raises ``ConfigError`` for a model that cannot be used."""
    given = settings.limits.each.items()
    limits = {f"limits.{scope}.usd": limit.usd for scope, limit in given if limit.usd is not None}
    if not (models or limits):
        return None
    config = config_of(home_of(None, os.environ))
    chosen = [config.chooser(model, None, NO_KEY) for model in models]
    each = {name_of(choice): most_of_request(choice, settings) for choice in chosen}
    known = [usd for usd in each.values() if usd is not None]
    dearest = max(known) if known and len(known) == len(each) else None
    bounds = {name: None if dearest is None else count * dearest for name, count in requests.items()}
    return MostMoney(each, bounds if models else {}, limits)


def most_of_request(choice: Choice, settings: Settings) -> float | None:
    """Return the most that one request to a model can cost in US dollars; ``None`` if that is not known."""
    price = price_of(choice.model, choice.profile.name, settings.prices)
    if price is None or choice.window is None or (reply := _longest(choice, settings)) is None:
        return None
    return price.most(choice.window, reply)


def _longest(choice: Choice, settings: Settings) -> int | None:
    """Tokens of the longest reply that is asked for: one that was cut is asked for with a larger cap."""
    most, wished = choice.facts.output, settings.max_output_tokens
    if wished is None:
        return most
    return min(max(wished, settings.length.cap_max), most or 1_000_000_000)


def _words(usd: float | None) -> str:
    return "not known" if usd is None else f"at most ${usd:,.4f}" if usd < 1 else f"at most ${usd:,.2f}"
