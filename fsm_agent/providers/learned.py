"""What the replies of providers taught of their models, kept in the home: by provider, model and address
(BUILD-18, COMP-41).

A fact is a number or a switch, within bounds, and can only make requests smaller or plainer: nothing that a
server says may grant anything. Each is believed for some days (``learned.days``), and ``fsm-agent models
forget`` takes them back. Who writes holds a lock and replaces the file, so that several processes can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import Lesson, Runtime
from fsm_agent.providers.home_rows import HomeRows
from fsm_agent.providers.key_rests import KeyRests

LEARNED = "learned.json"
DAY = 86_400.0
MOST_FACTS = 500
BOUNDS: dict[str, tuple[int, int]] = {"window": (2_048, 100_000_000), "output": (256, 10_000_000)}
"""Tokens that are believed, by what they are of: a server that names less must not make a model useless."""
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
"""What can be learned besides numbers, in words."""


@dataclass(frozen=True, slots=True)
class LearnedFact:
    """One of them. ``at`` in seconds since the epoch; ``value`` in tokens, 1 for a switch."""

    provider: str
    model: str
    address: str
    name: str
    value: int
    at: float

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return what it is about."""
        return self.provider, self.model, self.address

    def words(self) -> str:
        """What it says, as the rest of a sentence about the model."""
        if self.name in BOUNDS:
            kind = "prompts" if self.name == "window" else "replies"
            return f"has room for {kind} of {self.value:,} tokens"
        return SWITCHES[self.name]


class LearnedFacts:
    """The facts of a home, and ``rests``, the keys that may not be used now. ``days``: how long a fact is
    believed; 0 for not at all. ``now``: the wall clock. What cannot be read counts as nothing learned."""

    def __init__(self, home: Path, days: float, now: Callable[[], float]) -> None:
        self._rows, self._days, self._now = HomeRows(home / LEARNED, "facts"), days, now
        self.rests = KeyRests(home, now)
        self._facts: tuple[LearnedFact, ...] = ()

    def refresh(self) -> None:
        """Read what there is: each turn begins with it."""
        self._facts = tuple(self._believed()) if self._days else ()
        self.rests.refresh()

    def all(self) -> tuple[LearnedFact, ...]:
        """Those that are believed, as of the last ``refresh``."""
        return self._facts

    def of(self, runtime: Runtime) -> dict[str, LearnedFact]:
        """Those of a model, by name."""
        subject = runtime.provider, runtime.model, address_of(runtime.base_url)
        return {fact.name: fact for fact in self._facts if fact.subject == subject}

    def until(self, fact: LearnedFact) -> float:
        """When it is believed no longer, in seconds since the epoch."""
        return fact.at + self._days * DAY

    def applied(self, runtime: Runtime) -> Runtime:
        """The runtime with what was learned of it: smaller, never larger."""
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
        """Write what a turn has learned; a value of 0 takes a fact back. What has no address, or is out of
        bounds, is not kept. Raises ``OSError`` and ``TimeoutError``."""
        lessons = [
            one for one in lessons if one.base_url and (not one.value or _possible(one.name, one.value))
        ]
        if not lessons or not self._days:
            return
        with self._rows.alone():
            before = {(*fact.subject, fact.name): fact for fact in self._believed()}
            facts = dict(before)
            for one in lessons:
                key = one.provider, one.model, address_of(one.base_url), one.name
                facts.pop(key, None)
                if one.value:
                    facts[key] = LearnedFact(*key, one.value, self._now())
            if facts != before:
                self._write(facts.values())

    def forget(self, model: str = "") -> tuple[LearnedFact, ...]:
        """Take back what was learned of a model (``<provider>:<model>``, or the model's name alone), or of
        all; returns what it was. Raises ``OSError`` and ``TimeoutError``."""
        if not self._rows.path.exists():
            return ()
        with self._rows.alone():
            there = list(self._read())
            gone = [one for one in there if model in ("", one.model, f"{one.provider}:{one.model}")]
            self._write(one for one in there if one not in gone)
        return tuple(gone)

    def _write(self, facts: Iterable[LearnedFact]) -> None:
        newest = sorted(facts, key=lambda fact: fact.at)[-MOST_FACTS:]
        self._rows.write(map(asdict, newest))

    def _believed(self) -> Iterator[LearnedFact]:
        now = self._now()
        return (fact for fact in self._read() if fact.at - DAY < now < self.until(fact))

    def _read(self) -> Iterator[LearnedFact]:
        """The facts of the file that can be true."""
        for row in self._rows.read():
            try:
                fact = LearnedFact(**row)
            except TypeError:
                return
            if _possible(fact.name, fact.value) and isinstance(fact.at, (int, float)):
                yield fact


def address_of(base_url: str | None) -> str:
    """The address without what may be secret in it, a name, a query; empty for none."""
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
