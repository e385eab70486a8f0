"""What happened, in order: every request and reply, and every move. Everything that looks at a turn reads this.

Bodies of requests are not kept: they follow from the transcript, and keeping each would cost the square of its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fsm_agent.requests import CallModel


@dataclass(frozen=True, slots=True)
class Step:
    """One move. ``guards``: (label, value) of every budget looked at, in order; ``changes``: (counter, before, after);
    ``seconds``: time spent in the state that was left."""

    seq: int
    source: str
    event: str
    dest: str
    row: str
    guards: list[tuple[str, bool]]
    changes: list[tuple[str, int, int]]
    seconds: float
    exit: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a state and its reply; lists for requests that ran at the same time. ``ordinal`` counts within the
    visit of the state."""

    seq: int
    state: str
    ordinal: int
    request: Any
    reply: Any = None


class Journal(Protocol):
    """Where a running turn writes. A refused row raises ``JournalError``; the turn must not go on then."""

    def asked(self, turn_id: str, exchange: Exchange) -> None: ...
    def got(self, turn_id: str, exchange: Exchange) -> None: ...
    def moved(self, turn_id: str, step: Step) -> None: ...


@dataclass(slots=True)
class Record:
    steps: list[Step] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


class MemoryJournal:
    """Keeps the records of turns for as long as the process lives."""

    def __init__(self) -> None:
        self.turns: dict[str, Record] = {}

    def asked(self, turn_id: str, exchange: Exchange) -> None:
        """In memory nothing outlives a crash, so the intent alone is worth nothing; ``got`` records both."""

    def got(self, turn_id: str, exchange: Exchange) -> None:
        self._record(turn_id).exchanges.append(replace(exchange, request=_slim(exchange.request)))

    def moved(self, turn_id: str, step: Step) -> None:
        self._record(turn_id).steps.append(step)

    def _record(self, turn_id: str) -> Record:
        return self.turns.setdefault(turn_id, Record())


def _slim(request: Any) -> Any:
    if isinstance(request, CallModel):
        return replace(request, request=replace(request.request, body=b""))
    return [_slim(one) for one in request] if isinstance(request, list) else request
