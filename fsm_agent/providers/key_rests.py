"""Which keys rest, and until when, for all processes of a home: a key that one was refused with is not tried
first by the next.

A key stands there as a digest of it. A rest is believed until it is over; one that begins in the future was
written before the clock was set back, and is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fsm_agent.providers.home_rows import HomeRows

RESTS = "key-rests.json"
LONGEST = 86_400.0
"""Seconds: a server that names more does not put a key away for good."""
SHORTEST = 16
"""Characters of a key that is kept; a shorter one is a placeholder, and could be guessed from its digest."""
MOST, SLACK = 500, 60.0


@dataclass(frozen=True, slots=True)
class KeyRest:
    """A key of a provider that rests for one model, from ``at`` to ``until`` in seconds since the epoch."""

    provider: str
    model: str
    digest: str
    at: float
    until: float

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return what rests."""
        return self.provider, self.model, self.digest

    def is_of(self, model: str) -> bool:
        """Say whether it is of this model: ``<provider>:<model>``, the model's name alone, empty for any."""
        return model in ("", self.model, f"{self.provider}:{self.model}")


class KeyRests:
    """The rests of a home. ``now``: the wall clock."""

    def __init__(self, home: Path, now: Callable[[], float]) -> None:
        self._rows, self._now = HomeRows(home / RESTS, "rests"), now
        self._rests: dict[tuple[str, str, str], KeyRest] = {}

    def refresh(self) -> None:
        """Read what there is: each turn begins with it."""
        self._rests = {rest.subject: rest for rest in self._believed()}

    def all(self) -> tuple[KeyRest, ...]:
        """Those that are believed, as of the last ``refresh``."""
        return tuple(self._rests.values())

    def until(self, provider: str, model: str, key: str) -> float:
        """When a key may be used again, in seconds since the epoch; 0 for now."""
        rest = self._rests.get((provider, model, digest_of(key)))
        return rest.until if rest else 0.0

    def keep(self, provider: str, model: str, key: str, until: float) -> None:
        """Write that a key rests. What is over goes. Raises ``OSError`` and ``TimeoutError``."""
        now = self._now()
        if len(key) < SHORTEST or until <= now:
            return
        new = KeyRest(provider, model, digest_of(key), now, min(until, now + LONGEST))
        with self._rows.alone():
            rests = {rest.subject: rest for rest in self._believed()} | {new.subject: new}
            newest = sorted(rests.values(), key=lambda rest: rest.at)[-MOST:]
            self._rows.write(map(asdict, newest))
            self._rests = rests

    def forget(self, model: str = "") -> tuple[KeyRest, ...]:
        """Let the keys of a model be used again, or all; returns which rested. Raises ``OSError`` and
        ``TimeoutError``."""
        if not self._rows.path.exists():
            return ()
        with self._rows.alone():
            there = list(self._believed())
            self._rows.write(asdict(rest) for rest in there if not rest.is_of(model))
        return tuple(rest for rest in there if rest.is_of(model))

    def _believed(self) -> Iterator[KeyRest]:
        now = self._now()
        for row in self._rows.read():
            try:
                rest = KeyRest(**row)
                texts = all(isinstance(text, str) for text in rest.subject)
                if texts and rest.at - SLACK <= now < rest.until <= rest.at + LONGEST:
                    yield rest
            except TypeError:
                continue


def digest_of(key: str) -> str:
    """What stands for a key: it says nothing of it, and is the same in every process."""
    return hashlib.sha256(b"fsm-agent key rest\0" + key.encode("utf-8", "replace")).hexdigest()[:24]
