"""``fsm-agent models``: what is known about a model and from which source, what was learned about all, and
the most that a turn can cost."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fsm_agent.cli.options import BaseUrl, HomeFolder, Json, complete_model
from fsm_agent.cli.screen import clean
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.providers.catalog import FREE, GIVEN, SOURCE, LearnedFact, LearnedFacts, facts_of, price_of
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.providers.credentials import KeyRest
from fsm_agent.providers.profiles import Profile, local_models
from fsm_agent.settings import Settings
from fsm_agent.support.files import home_of

NO_KEY = "not-used"  # looking a model up needs no key


def show(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete_model,
            help="Default: the model in use.",
        ),
    ] = None,
    base_url: BaseUrl = None,
    home: HomeFolder = None,
    as_json: Json = False,
) -> int:
    """Show what is known of a model, and its source."""
    folder = home_of(home, os.environ)
    config = config_of(folder)
    choice = config.chooser(model, base_url, None if model is None else NO_KEY)
    given = Settings.of(None, config.settings).prices
    learned, found = learned_facts(folder, config), price_of(choice.model, choice.profile.name, given)
    price, source = None if found is FREE else found, GIVEN if name_of(choice) in given else SOURCE
    if as_json:
        known: dict[str, Any] = asdict(choice.facts)
        known["reads"] = None if choice.facts.reads is None else sorted(choice.facts.reads)
        facts = {"model": name_of(choice), "known": known, "price": price and asdict(price)}
        listed = [asdict(fact) | {"until": learned.until(fact)} for fact in learned.all()]
        rests = [asdict(rest) for rest in learned.rests.all()]
        print(json.dumps(facts | {"learned": listed, "resting_keys": rests}))
        return 0
    print(f"model    {clean(name_of(choice))}\nknown    {model_facts(choice)}")
    if price is not None:
        print(f"price    ${price.input:g} in, ${price.output:g} out, for a million tokens (from {source})")
    for line in lines_of(learned) or ["nothing"]:
        print(f"learned  {line}")
    return 0


def list_models(
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Default: the providers that can be used here.")
    ] = "",
    home: HomeFolder = None,
    as_json: Json = False,
) -> int:
    """List the models that can be named here. Other names are accepted, too: these are the known ones."""
    profiles = config_of(home_of(home, os.environ)).profiles
    if provider and provider not in profiles:
        raise ConfigError("no such provider", provider, ", ".join(profiles))
    usable = [name for name, one in profiles.items() if _has_key(one)]
    names = {name: models_of(profiles[name]) for name in ([provider] if provider else usable)}
    listed = [f"{name}:{model}" for name, models in names.items() for model in models]
    if as_json:
        print(json.dumps(listed))
        return 0
    for one in listed:
        print(clean(one))
    if provider and not listed:
        print(f"no model of {provider} is known here; any name is accepted", file=sys.stderr)
    if not provider and (others := [name for name in profiles if name not in usable]):
        words = f"no key here for {', '.join(others)}; fsm-agent models list PROVIDER shows theirs"
        print(clean(words), file=sys.stderr)
    return 0


def _has_key(profile: Profile) -> bool:
    given = bool(profile.key or os.environ.get(profile.key_env or ""))
    return given or profile.local or profile.in_process or not (profile.needs_key or profile.client)


def models_of(profile: Profile) -> list[str]:
    """Return the names of a provider's models: those that a server on this machine lists, else those in both
    the price list and the catalog, and those that the config file mentions."""
    if profile.in_process:
        return ["demo"] if profile.name == "offline" else []
    if served := local_models(os.environ.get(profile.base_url_env or "") or profile.base_url or ""):
        return sorted(served)
    from genai_prices.data import providers  # takes a quarter of a second

    prices = next((one.models for one in providers if one.id == profile.price_list), ())
    known = {one.id for one in prices if not one.deprecated and facts_of(profile.catalog, one.id).source}
    return sorted(
        {*known, *(name for name, _ in profile.model_windows), *filter(None, [profile.default_model])}
    )


def matching_models(home: str | None, begun: str) -> list[str]:
    """Return the names that begin with ``begun``: providers with their colon, after a colon the provider's
    models; none if the config file cannot be read."""
    with contextlib.suppress(ConfigError):
        profiles = config_of(home_of(home, os.environ)).profiles
        provider, colon, _ = begun.partition(":")
        if not colon:
            names = ["offline:demo", *(f"{name}:" for name in profiles if name != "offline")]
        else:
            names = (
                [f"{provider}:{name}" for name in models_of(profiles[provider])]
                if provider in profiles
                else []
            )
        return [name for name in names if name.startswith(begun)]
    return []


def forget(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="<provider>:<model> or its name; default: all.")
    ] = "",
    home: HomeFolder = None,
) -> int:
    """Forget what refusals taught of a model. Its keys can be used again."""
    learned = LearnedFacts(home_of(home, os.environ), 1, time.time)
    try:
        lines = [_line(fact) for fact in learned.forget(model)]
        lines += [rest_line(rest) for rest in learned.rests.forget(model)]
    except OSError as error:
        raise StoreError(f"what was learned cannot be written ({error})") from None
    learned.refresh()
    if not lines and model:
        known: list[LearnedFact | KeyRest] = [*learned.all(), *learned.rests.all()]
        there = dict.fromkeys(f"{one.provider}:{one.model}" for one in known)
        raise ConfigError(
            "nothing was learned of this model", model, ", ".join(there) or "nothing is learned"
        )
    for line in lines:
        print(f"forgotten: {line}")
    if not lines:
        print("nothing was learned")
    return 0


def learned_facts(home: Path, config: Config) -> LearnedFacts:
    """Return the learned facts that are current in this home."""
    learned = LearnedFacts(home, Settings.of(None, config.settings).learned.days, time.time)
    learned.refresh()
    return learned


def name_of(choice: Choice) -> str:
    """Return the name of the model with that of its provider."""
    return f"{choice.profile.name}:{choice.model}"


def model_facts(choice: Choice) -> str:
    """Describe in one line what is known about a model, and from which source."""
    return "it is a part of fsm-agent" if choice.profile.in_process else choice.facts.words()


def lines_of(learned: LearnedFacts) -> list[str]:
    """Return one line for each fact, and for each key that rests."""
    facts = [f"{_line(fact)} (until {_day(learned.until(fact))})" for fact in learned.all()]
    return facts + [rest_line(rest) for rest in learned.rests.all()]


def rest_line(rest: KeyRest) -> str:
    """Describe a resting key: the beginning of its digest, and the end of its rest."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(rest.until))
    return clean(f"a key of {rest.provider}:{rest.model} (digest {rest.digest[:8]}) rests until {until}")


def _line(fact: LearnedFact) -> str:
    name = f"{fact.provider}:{fact.model} at {fact.address}"
    return clean(f"{name} {fact.words()}, as it said on {_day(fact.at)}")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


# The most that a turn can cost: the bound on its requests, times the most expensive request to a model that
# it may ask, with a window full of prompt and the longest reply.


WORDS = {
    "turn": "a turn alone",
    "tree": "a turn and its children, and theirs",
    "compaction": "a compaction that is asked for",
}


@dataclass(frozen=True, slots=True)
class MostMoney:
    """US dollars, ``None`` if a price, a window or the length of a reply is unknown: of one request to each
    of ``models``, and of everything that a ``turn``, a ``tree`` and a ``compaction`` can send (``bounds``).
    ``limits``: those in money, by their names."""

    models: Mapping[str, float | None]
    bounds: Mapping[str, float | None]
    limits: Mapping[str, float]

    def lines(self) -> list[str]:
        """Return the amounts in words."""
        lines = ["Money, in US dollars, with a window full of prompt and the longest reply in each request"]
        lines += [f"  a request to {name}: {_words(usd)}" for name, usd in self.models.items()]
        lines += [f"  {WORDS[name]}: {_words(usd)}" for name, usd in self.bounds.items()]
        beyond = "and what providers report beyond the estimates"
        return lines + [f"  under {name}: at most ${usd:,.2f}, {beyond}" for name, usd in self.limits.items()]


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
    """Return the most that one request to a model can cost in US dollars; ``None`` if unknown."""
    price = price_of(choice.model, choice.profile.name, settings.prices)
    if price is None or choice.window is None or (reply := _longest(choice, settings)) is None:
        return None
    return price.most(choice.window, reply)


def _longest(choice: Choice, settings: Settings) -> int | None:
    """Return the tokens of the longest reply requested; a truncated one raises the cap."""
    most, wished = choice.facts.output, settings.max_output_tokens
    if wished is None:
        return most
    return min(max(wished, settings.length.cap_max), most or 1_000_000_000)


def _words(usd: float | None) -> str:
    return "not known" if usd is None else f"at most ${usd:,.4f}" if usd < 1 else f"at most ${usd:,.2f}"
