"""Facts about models: context and output sizes, kinds of input, reasoning, prices, and what replies taught.

Sizes and abilities come from two files beside this one: ``models.json``, generated from ``litellm``'s data
(``make models``; its license is in ``models.LICENSE``), and ``models.toml``, our own, which takes precedence.
Nothing is fetched.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import Lesson, Runtime
from fsm_agent.conversation.messages import Usage
from fsm_agent.conversation.parts import Kind
from fsm_agent.providers.credentials import KeyRests
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings import CacheTtl, ModelPrice
from fsm_agent.support.files import HomeRows

_HERE = Path(__file__).parent
_DATED = re.compile(r"(-\d{4}-\d{2}-\d{2}|-\d{8}|-latest)\Z")
_PLACED = re.compile(r"\A(?:[a-z]+-)?anthropic-|-v\d+(?::\d+)?\Z")
"""The parts that Bedrock adds to a model's name: the vendor, optionally a region, and a version."""
_OURS = "our models.toml"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The known facts of one model. ``window``: maximum prompt in tokens, ``None`` if unknown; ``output``:
    maximum reply in tokens. ``reads``: the kinds of input besides text, ``None`` if unknown. ``thinks``:
    whether it can reason before it answers; ``efforts``: the levels of effort. ``schema``: whether it accepts
    a JSON schema for its answer. ``source``: the source of these facts; empty for a guess."""

    window: int | None = None
    output: int | None = None
    reads: frozenset[Kind] | None = None
    tools: bool | None = None
    thinks: bool | None = None
    schema: bool | None = None
    efforts: tuple[str, ...] = ()
    source: str = ""

    def can_read(self, kind: Kind) -> bool:
        """Return whether this kind of content may be sent. If unknown, images are tried, because a refusal of
        them can be repaired; audio and files are not."""
        return kind == "image" if self.reads is None else kind in self.reads

    def words(self) -> str:
        """Describe the known facts in one line."""
        if not self.source:
            return f"a guess: prompts of {self.window:,} tokens" if self.window else "nothing"
        reads = ", ".join(("text", *(f"{kind}s" for kind in sorted(self.reads or ()) if kind != "audio")))
        parts = (
            f"prompts of {self.window:,} tokens" if self.window else "",
            f"replies of {self.output:,}" if self.output else "",
            f"reads {reads}{' and audio' if 'audio' in (self.reads or ()) else ''}",
            "thinks" + (f" ({', '.join(self.efforts)})" if self.efforts else "") if self.thinks else "",
            "JSON schemas" if self.schema else "",
        )
        return f"{'; '.join(filter(None, parts))} (from {self.source})"


def facts_of(table: str, model: str) -> ModelFacts:
    """Look up a model in the vendor's ``table``; guess if it is unknown. In an aggregator's table, ``*``, the
    part of the name before the slash is the vendor, and the part after a colon is ignored."""
    name = _key(model)
    if table == "*":
        maker, _, name = name.partition(":")[0].partition("/")
        table = _ours()["vendors"].get(maker, "")
    entry, source = _entry(table, name)
    if not entry:
        guesses = _ours()["guess"]
        return ModelFacts(window=guesses.get(table, guesses[""]))
    does = entry.get("does", ())
    return ModelFacts(
        window=entry.get("window"),
        output=entry.get("output"),
        reads=frozenset(entry.get("reads", ())),
        tools="tools" in does,
        thinks="thinks" in does,
        schema="schema" in does,
        efforts=tuple(entry.get("efforts", ())),
        source=source,
    )


def silence_of(model: str) -> float:
    """Return the minimum seconds of silence to allow a model that thinks (STR-02); 0 for others."""
    name = "-" + _key(model).rsplit("/", 1)[-1]
    return max((float(wait) for part, wait in _ours()["silence"].items() if f"-{part}" in name), default=0.0)


def _key(model: str) -> str:
    return model.lower().replace(".", "-")


def _entry(table: str, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the entry under this name, or under the name without Bedrock's additions and without a trailing
    date or ``latest``; and its source."""
    listed, ours = _read_catalog()["models"].get(table, {}), _ours()["models"].get(table, {})
    bare = _PLACED.sub("", name)
    for one in (name, bare, _DATED.sub("", bare)):
        if one in listed or one in ours:
            source = f"the catalog, {_read_catalog()['source']}" if one in listed else _OURS
            return {**listed.get(one, {}), **ours.get(one, {})}, source
    return {}, ""


@cache
def _read_catalog() -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads((_HERE / "models.json").read_text(encoding="utf-8"))
    return read


@cache
def _ours() -> Mapping[str, Any]:
    return tomllib.loads((_HERE / "models.toml").read_text(encoding="utf-8"))


# Token prices: prices that the user configures (the setting ``prices``), else list prices of the package
# ``genai-prices``, and sums over them.
#
# List prices are in US dollars per million tokens: those of the vendors' own APIs, as in the installed
# version of the package; nothing is fetched. A price that is not known exactly counts as unknown, never as 0:
# models whose price depends on the time of day or, within their window, on the length of the prompt, models
# billed for anything other than text, and aggregators. A price applies to its model's name, optionally
# followed by a date or ``-latest``: a new member of a family has its own price.


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
    """US dollars per million tokens. ``write`` and ``write_1h``: cache writes kept for five minutes or an
    hour; ``None`` if they cost the same as input. ``read`` is ``None`` without a cache or a known price for
    it."""

    input: float
    output: float
    read: float | None = None
    write: float | None = None
    write_1h: float | None = None

    def most(self, prompt: int, output: int) -> float:
        """Return the maximum cost of a request in US dollars: none of its prompt is cached, and all of it is
        written to the cache at the highest price."""
        dearest = max(self.input, self.read or 0.0, self.write or 0.0, self.write_1h or 0.0)
        return (prompt * dearest + output * self.output) / PER


@dataclass(frozen=True, slots=True)
class Cost:
    """``usd`` is ``None`` unless the status is ``estimated``: a custom model has no cost per token
    (``included``), and an unknown price is not 0."""

    usd: float | None
    status: Status
    source: str | None = None


UNKNOWN, INCLUDED = Cost(None, "unknown"), Cost(None, "included")


def dearest(prices: Iterable[Price | None]) -> Price | None:
    """Combine the highest price of each kind of token; ``None`` when a price is unknown."""
    found = list(prices)
    known = [price for price in found if price is not None]
    if len(known) < len(found) or not known:
        return None
    prompt = max(price.most(PER, 0) for price in known)
    return Price(prompt, max(price.output for price in known))


FREE = Price(0.0, 0.0, 0.0)
NOBODYS: Given = MappingProxyType({})


def cost(model: str, provider: str, usage: Usage, ttl: CacheTtl = "5m", given: Given = NOBODYS) -> Cost:
    """Return the cost of one model's usage. ``ttl``: how long cache writes are kept."""
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
    """Return the price: ``given``, ``FREE`` for a custom model, or the list price; ``None`` if it is not
    known exactly."""
    if own := given.get(f"{provider}:{model}"):
        read, write = own.cache_read, own.cache_write
        return Price(own.input, own.output, own.input if read is None else read, write, write)
    profile = PROFILES.get(provider)
    if profile is not None and (profile.local or profile.in_process):
        return FREE
    return list_price(model, provider)


@cache
def list_price(model: str, provider: str) -> Price | None:
    """Return the list price as of the first call; ``None`` if it is not known exactly."""
    profile = PROFILES.get(provider)
    if profile is None or not profile.price_list or _OTHER_THAN_TEXT.search(model):
        return None
    from genai_prices.data_snapshot import get_snapshot  # needed only at the end of a turn
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
    """Return the sum over (provider, model). A single unknown price makes the sum unknown; custom models add
    nothing."""
    parts = [cost(model, provider, usage, ttl, given) for (provider, model), usage in usages.items()]
    if not parts or any(part.status == "unknown" for part in parts):
        return UNKNOWN
    paid = [part.usd for part in parts if part.usd is not None]
    sources = " and ".join(sorted({part.source for part in parts if part.source}))
    return Cost(sum(paid), "estimated", sources) if paid else INCLUDED


# Facts that providers' replies revealed about their models, stored in the home by provider, model, and
# address (BUILD-18, COMP-41).
#
# A fact is a number or a switch, within bounds, and can only make requests smaller or plainer: nothing that a
# server says may grant anything. Each expires after ``learned.days``, and ``fsm-agent models forget`` deletes
# them. A writer holds a lock and replaces the file, so several processes can write.


LEARNED = "learned.json"
DAY = 86_400.0
MOST_FACTS = 500
BOUNDS: dict[str, tuple[int, int]] = {"window": (2_048, 100_000_000), "output": (256, 10_000_000)}
"""Accepted tokens, by fact: a server that claims fewer must not make a model useless."""
SWITCHES = {
    "vision": "reads no images",
    "no_streaming": "does not stream",
    "flat_tool_content": "takes results of tools as text alone",
    "grammar": "takes simpler schemas of tools alone",
    "structured_output": "takes no JSON schema for its answers",
    "temperature": "takes no temperature",
    "effort": "cannot be asked to think",
    "output_key": "knows the cap on its replies by the other name",
    "long_context_beta": "has no beta of long contexts",
}
"""Facts that are not numbers, in words."""


@dataclass(frozen=True, slots=True)
class LearnedFact:
    """One learned fact. ``at`` in seconds since the epoch; ``value`` in tokens, 1 for a switch."""

    provider: str
    model: str
    address: str
    name: str
    value: int
    at: float

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return the provider, model, and address that the fact is about."""
        return self.provider, self.model, self.address

    def words(self) -> str:
        """Describe the fact as the rest of a sentence about the model."""
        if self.name in BOUNDS:
            kind = "prompts" if self.name == "window" else "replies"
            return f"has room for {kind} of {self.value:,} tokens"
        return SWITCHES[self.name]


class LearnedFacts:
    """The learned facts of a home, and ``rests``, the keys that are resting. ``days``: how long a fact is
    valid; 0 disables learning. ``now``: the wall clock. An unreadable file counts as empty."""

    def __init__(self, home: Path, days: float, now: Callable[[], float]) -> None:
        self._rows, self._days, self._now = HomeRows(home / LEARNED, "facts"), days, now
        self.rests = KeyRests(home, now)
        self._facts: tuple[LearnedFact, ...] = ()

    def refresh(self) -> None:
        """Reload the file; called at the start of each turn."""
        self._facts = tuple(self._current_facts()) if self._days else ()
        self.rests.refresh()

    def all(self) -> tuple[LearnedFact, ...]:
        """Return the valid facts, as of the last ``refresh``."""
        return self._facts

    def of(self, runtime: Runtime) -> dict[str, LearnedFact]:
        """Return the facts of a model, by name."""
        subject = runtime.provider, runtime.model, address_of(runtime.base_url)
        return {fact.name: fact for fact in self._facts if fact.subject == subject}

    def until(self, fact: LearnedFact) -> float:
        """Return when the fact expires, in seconds since the epoch."""
        return fact.at + self._days * DAY

    def apply(self, runtime: Runtime) -> Runtime:
        """Return the runtime with its learned facts applied: limits only shrink."""
        facts = self.of(runtime)
        if not facts:
            return runtime
        return replace(
            runtime,
            window=_least(runtime.window, facts.get("window")),
            window_learned="window" in facts,
            most_output=_least(runtime.most_output, facts.get("output")),
            vision=runtime.vision and "vision" not in facts,
            streaming=runtime.streaming and "no_streaming" not in facts,
            repairs=runtime.repairs | (facts.keys() & SWITCHES.keys()),
        )

    def keep(self, lessons: Iterable[Lesson]) -> None:
        """Store the lessons of a turn; a value of 0 deletes a fact. Lessons without an address or out of
        bounds are dropped. Raises ``OSError`` and ``TimeoutError``."""
        lessons = [
            one for one in lessons if one.base_url and (not one.value or _possible(one.name, one.value))
        ]
        if not lessons or not self._days:
            return
        with self._rows.alone():
            before = {(*fact.subject, fact.name): fact for fact in self._current_facts()}
            facts = dict(before)
            for one in lessons:
                key = one.provider, one.model, address_of(one.base_url), one.name
                facts.pop(key, None)
                if one.value:
                    facts[key] = LearnedFact(*key, one.value, self._now())
            if facts != before:
                self._write(facts.values())

    def forget(self, model: str = "") -> tuple[LearnedFact, ...]:
        """Delete the facts of a model (``<provider>:<model>``, or the model's name alone), or all; return the
        deleted ones. Raises ``OSError`` and ``TimeoutError``."""
        if not self._rows.path.exists():
            return ()
        with self._rows.alone():
            there = list(self._read())
            facts = [one for one in there if model in ("", one.model, f"{one.provider}:{one.model}")]
            self._write(one for one in there if one not in facts)
        return tuple(facts)

    def _write(self, facts: Iterable[LearnedFact]) -> None:
        newest = sorted(facts, key=lambda fact: fact.at)[-MOST_FACTS:]
        self._rows.write(map(asdict, newest))

    def _current_facts(self) -> Iterator[LearnedFact]:
        now = self._now()
        return (fact for fact in self._read() if fact.at - DAY < now < self.until(fact))

    def _read(self) -> Iterator[LearnedFact]:
        """Yield the plausible facts of the file."""
        for row in self._rows.read():
            try:
                fact = LearnedFact(**row)
            except TypeError:
                return
            if _possible(fact.name, fact.value) and isinstance(fact.at, (int, float)):
                yield fact


def address_of(base_url: str | None) -> str:
    """Return the address without parts that may be secret (user info, query); empty for ``None``."""
    if not base_url:
        return ""
    parts = urlsplit(base_url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def _possible(name: object, value: object) -> bool:
    if type(value) is not int or not isinstance(name, str):
        return False
    least, most = BOUNDS.get(name, (1, 1))
    return (name in BOUNDS or name in SWITCHES) and least <= value <= most


def _least(known: int | None, learned: LearnedFact | None) -> int | None:
    if learned is None:
        return known
    return learned.value if known is None else min(known, learned.value)
