"""What happened, in order: every request and reply, and every move. Everything that looks at a turn reads
this.

A running turn writes through ``Journal``: ``asked`` before requests are performed, ``got`` for each reply,
``moved`` for each transition. A request that is large and follows from something else says with a method
``recorded()`` what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsm_agent.runtime.not_yet import NotYet


@dataclass(frozen=True, slots=True)
class Step:
    """One move. ``guards``: (label, value) of every budget looked at, in order; ``changes``: (counter,
    before, after); ``seconds``: time spent in the state that was left."""

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
    """One request of a state and its reply; lists for requests that ran at the same time. ``ordinal`` counts
    within the visit of the state."""

    seq: int
    state: str
    ordinal: int
    request: Any
    reply: Any = None

    @property
    def requests(self) -> list[Any]:
        """As a list, also when there is one."""
        return self.request if isinstance(self.request, list) else [self.request]


class Unknown:
    """In place of a reply: not known, so the request has to be performed."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


class Journal(Protocol):
    """Where one running turn writes. ``JournalError`` means that the turn belongs to somebody else now and
    must stop."""

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """Before requests are performed: for each of them ``UNKNOWN``, or the reply that is already known.
        Returns when what must be known after a crash is safe."""
        ...

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        """One request of ``exchange``, the one at ``place``, was performed."""
        ...

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        """The reply to one request comes later; returns when that is safe, and the turn may be suspended, or
        false when it cannot be written down."""
        ...

    async def moved(self, step: Step) -> None:
        """The turn has moved; returns when the move is safe, or sure to be before anything that needs it.
        Called again with the same ``step`` when that failed, or who waited was cancelled."""
        ...


@dataclass(slots=True)
class MemoryJournal:
    """Keeps the record of one turn for as long as the process lives: for turns of other tables, and for
    tests."""

    steps: list[Step] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """In memory nothing outlives a crash, so the intent alone is worth nothing; ``got`` records both."""
        return [UNKNOWN] * len(exchange.requests)

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        request = _slim(exchange.requests[place])
        self.exchanges.append(Exchange(exchange.seq, exchange.state, exchange.ordinal, request, reply))

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        return True

    async def moved(self, step: Step) -> None:
        self.steps.append(step)


def _slim(request: Any) -> Any:
    return request.recorded() if hasattr(request, "recorded") else request
