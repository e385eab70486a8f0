"""The wires that the scripted server speaks, by path. A dialect writes one and the same reply in its own
way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from fsm_agent.providers.scripted.replies import Reply


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One event of a stream. ``name`` is its SSE event name, if the wire has any. ``delta``: a slow reply
    pauses before it. ``counted``: the usage of the reply is in it."""

    data: dict[str, Any]
    name: str = ""
    delta: bool = False
    counted: bool = False


class Dialect(Protocol):
    """``done`` is the data line after the last event of a stream; empty when the wire has none."""

    done: str

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        """A message as a stream. ``number`` makes ids unique within a script."""

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """The same message as one object."""

    def error(self, reply: Reply) -> Any:
        """The body of an HTTP error."""
