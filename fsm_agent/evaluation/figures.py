"""Figures of scores: means with bootstrap intervals, and gates that must hold."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from fsm_agent.errors import ConfigError, near

RESAMPLES = 2_000
TAIL = 0.025
"""Share of resamples outside of the interval, on each side: the interval is one of 95 %."""
PARTS = ("mean", "low", "high", "min", "max", "p95", "total")
_GATE = re.compile(
    r"(?P<score>[\w:.-]+?)(?:\.(?P<part>mean|low|high|min|max|p95|total))?"
    r"\s*(?P<sign>>=|<=|>|<)\s*(?P<value>-?\d+(?:\.\d+)?)"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The scores of ``cases`` cases: their mean with its 95 % interval (``low``, ``high``), the least, the
    largest, the 95th percentile, and the sum."""

    cases: int
    mean: float
    low: float
    high: float
    min: float
    max: float
    p95: float
    total: float

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Figures | None:
        """The figures of some values; ``None`` without any. The same seed gives the same interval."""
        if not values:
            return None
        low, high = interval(tuple(values), seed)
        ordered = sorted(values)
        p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
        return cls(len(values), fmean(values), low, high, ordered[0], ordered[-1], p95, math.fsum(values))


@lru_cache(256)
def interval(values: tuple[float, ...], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean (percentiles of ``RESAMPLES`` resamples)."""
    if len(set(values)) == 1:
        return values[0], values[0]
    chance, number = random.Random(seed), len(values)  # noqa: S311 - no secret
    means = sorted(fmean(chance.choices(values, k=number)) for _ in range(RESAMPLES))
    return means[int(TAIL * RESAMPLES)], means[int((1 - TAIL) * RESAMPLES) - 1]


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate holds, and the figure that it looked at; ``None`` without one."""

    gate: Gate
    found: float | None

    @property
    def ok(self) -> bool:
        """A gate without a figure does not hold."""
        return self.found is not None and self.gate.holds(self.found)

    def __str__(self) -> str:
        found = "no case has this score" if self.found is None else f"{self.found:.4g}"
        return f"{'ok' if self.ok else 'FAILED'}  {self.gate.text} (found: {found})"


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on a figure: ``exact>=0.9``, ``latency.p95<10``, ``contains.low>=0.8`` for the lower end of
    the interval. Without a part, the mean counts."""

    text: str
    score: str
    part: str
    sign: str
    value: float

    @classmethod
    def of(cls, text: str) -> Gate:
        """Read a gate. Raises ``ConfigError``."""
        found = _GATE.fullmatch(text.strip())
        if found is None:
            allowed = f"SCORE>=NUMBER, such as exact>=0.9; SCORE may end in .{', .'.join(PARTS)}"
            raise ConfigError("a gate cannot be read", text, allowed)
        part = found["part"] or "mean"
        return cls(text.strip(), found["score"], part, found["sign"], float(found["value"]))

    def holds(self, found: float) -> bool:
        """Compare a figure with the value of the gate."""
        return {
            ">=": found >= self.value,
            "<=": found <= self.value,
            ">": found > self.value,
            "<": found < self.value,
        }[self.sign]

    def judge(self, figures: Mapping[str, Figures | None]) -> GateResult:
        """Look at the figures of a run. Raises ``ConfigError`` for a score that it does not have."""
        if self.score not in figures:
            raise ConfigError(
                "a gate names a score that was not asked for", self.text, near(self.score, figures)
            )
        found = figures[self.score]
        return GateResult(self, None if found is None else float(getattr(found, self.part)))
