"""``fsm-agent models``: what is known of a model and where that is from, and what was learned of all."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsm_agent.cli.screen import clean
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.providers.catalogue import FREE, GIVEN, SOURCE, LearnedFact, LearnedFacts, price_of
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.providers.credentials import KeyRest
from fsm_agent.settings.model import Settings
from fsm_agent.support.home import home_of

NO_KEY = "not-used"  # whoever only looks a model up needs none


def show(home: str | None, model: str | None, base_url: str | None, as_json: bool) -> int:
    """Print what is known of a model, by default the one in use, and all that was learned in this home."""
    folder = home_of(home, os.environ)
    config = config_of(folder)
    choice = config.chooser(model, base_url, None if model is None else NO_KEY)
    given = Settings.of(None, config.settings).prices
    learned, found = learned_in(folder, config), price_of(choice.model, choice.profile.name, given)
    price, source = None if found is FREE else found, GIVEN if name_of(choice) in given else SOURCE
    if as_json:
        known: dict[str, Any] = asdict(choice.facts)
        known["reads"] = None if choice.facts.reads is None else sorted(choice.facts.reads)
        told = {"model": name_of(choice), "known": known, "price": price and asdict(price)}
        listed = [asdict(fact) | {"until": learned.until(fact)} for fact in learned.all()]
        rests = [asdict(rest) for rest in learned.rests.all()]
        print(json.dumps(told | {"learned": listed, "resting_keys": rests}))
        return 0
    print(f"model    {clean(name_of(choice))}\nknown    {known_of(choice)}")
    if price is not None:
        print(f"price    ${price.input:g} in, ${price.output:g} out, for a million tokens (from {source})")
    for line in lines_of(learned) or ["nothing"]:
        print(f"learned  {line}")
    return 0


def forget(home: str | None, model: str) -> int:
    """Take back what was learned of a model, or of all, and let its keys be used again. Raises
    ``ConfigError`` where nothing was learned."""
    learned = LearnedFacts(home_of(home, os.environ), 1, time.time)
    try:
        gone = [_line(fact) for fact in learned.forget(model)]
        gone += [rest_line(rest) for rest in learned.rests.forget(model)]
    except OSError as error:
        raise StoreError(f"what was learned cannot be written ({error})") from None
    learned.refresh()
    if not gone and model:
        known: list[LearnedFact | KeyRest] = [*learned.all(), *learned.rests.all()]
        there = dict.fromkeys(f"{one.provider}:{one.model}" for one in known)
        raise ConfigError(
            "nothing was learned of this model", model, ", ".join(there) or "nothing is learned"
        )
    for line in gone:
        print(f"forgotten: {line}")
    if not gone:
        print("nothing was learned")
    return 0


def learned_in(home: Path, config: Config) -> LearnedFacts:
    """What is believed in this home now."""
    learned = LearnedFacts(home, Settings.of(None, config.settings).learned.days, time.time)
    learned.refresh()
    return learned


def name_of(choice: Choice) -> str:
    """The model's name with its provider's."""
    return f"{choice.profile.name}:{choice.model}"


def known_of(choice: Choice) -> str:
    """One line on what is known of it, and from where."""
    return "it is a part of fsm-agent" if choice.profile.in_process else choice.facts.words()


def lines_of(learned: LearnedFacts) -> list[str]:
    """One line for each fact, and for each key that rests."""
    facts = [f"{_line(fact)} (until {_day(learned.until(fact))})" for fact in learned.all()]
    return facts + [rest_line(rest) for rest in learned.rests.all()]


def rest_line(rest: KeyRest) -> str:
    """What rests, by the beginning of its digest, and until when."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(rest.until))
    return clean(f"a key of {rest.provider}:{rest.model} (digest {rest.digest[:8]}) rests until {until}")


def _line(fact: LearnedFact) -> str:
    name = f"{fact.provider}:{fact.model} at {fact.address}"
    return clean(f"{name} {fact.words()}, as it said on {_day(fact.at)}")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
