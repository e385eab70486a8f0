"""``Stream``: how all who want to know hear of what happens.

Theory of operation
-------------------
What happens is published once, as one value, where it happens; whoever wants to know subscribes to the
types of events that they care for. Callbacks, ``turn.events()``, hooks that are only told, telemetry,
debuggers, and the coverage of rows are subscribers, and none of them is known to what they hear of.

Each turn has a stream (``turn.gate.stream``). While the turn runs, ``TURN`` has it, so that code
which was handed no turn, such as a model port, publishes into the right one. Streams of turns lead on into
``EVERYWHERE``, the one place to subscribe to all turns of this process; what belongs to no turn
(how long a commit took, what a machine without a turn did) is published there.

A subscriber is called at once, in the order of subscription, in the task or thread in which it happened. It
must not block, and what it raises reaches who published: code of the user is behind ``Callbacks`` and
``EventQueue``, which let nothing through. Those who ask (``approval``, ``clarify``, ``before_tool``,
``after_tool``, ``context``, ``transform``, hooks, guardrails) wait for an answer, so they are no
subscribers.

An event that nobody heard costs making a tuple and two looks into dicts; where making it costs more,
``hears`` is asked first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any


class Stream:
    """What happens in one turn, or with an empty ``turn_id`` elsewhere. ``beyond`` hears it as well."""

    def __init__(self, turn_id: str = "", beyond: Stream | None = None) -> None:
        self.turn_id = turn_id
        self._hearers: dict[type, tuple[Callable[[Any], None], ...]] = {}
        self._beyond = {} if beyond is None else beyond._hearers
        self._lock = threading.Lock()

    def subscribe(self, hear: Callable[[Any], None], *kinds: type) -> Callable[[], None]:
        """Call ``hear`` with every event of these types from now on, until what this returns is called. Safe
        from any thread."""
        with self._lock:
            for kind in kinds:
                self._hearers[kind] = (*self._hearers.get(kind, ()), hear)
        return partial(self._unsubscribe, hear, kinds)

    def _unsubscribe(self, hear: Callable[[Any], None], kinds: tuple[type, ...]) -> None:
        with self._lock:
            for kind in kinds:
                left = tuple(one for one in self._hearers.get(kind, ()) if one is not hear)
                self._hearers.pop(kind, None)
                if left:
                    self._hearers[kind] = left

    def hears(self, kind: type) -> bool:
        """Does anybody want events of this type? What is costly to make is only made then."""
        return kind in self._hearers or kind in self._beyond

    def publish(self, event: Any) -> None:
        """Tell all who subscribed to events of this type."""
        kind = type(event)
        if kind in self._hearers:
            for hear in self._hearers.get(kind, ()):
                hear(event)
        if kind in self._beyond:
            for hear in self._beyond.get(kind, ()):
                hear(event)


EVERYWHERE = Stream()
TURN: ContextVar[Stream] = ContextVar("fsm_agent_turn", default=EVERYWHERE)


class running:  # noqa: N801 - it is used as a function is; a generator would cost each request more
    """What is told in this block is told as a part of that turn."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = TURN.set(self._stream)

    def __exit__(self, *_: object) -> None:
        try:
            TURN.reset(self._before)
        except ValueError:  # a turn that was left is closed in another context than it ran in
            return
