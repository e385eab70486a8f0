"""What an event of a turn carries, by the name of its channel. Each is a tuple, and has names and types too:
``case Event(values=ToolStart(name=name))``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias


class ToolStart(NamedTuple):
    """A call that begins."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


class ToolComplete(NamedTuple):
    """A call that has ended. ``status``: ok, error, denied, …"""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: str
    status: str


class ToolProgress(NamedTuple):
    """``kind``: started, completed, said, or risk."""

    kind: str
    name: str
    preview: str


class Transition(NamedTuple):
    """A move of the turn, and the counters after it."""

    turn_id: str
    source: str
    event: str
    dest: str
    counters: Mapping[str, int]


class StreamDelta(NamedTuple):
    """A piece of the answer; ``None`` at a boundary."""

    text: str | None


class ReasoningText(NamedTuple):
    """A piece of what the model thinks."""

    text: str


class InterimText(NamedTuple):
    """Text beside tool calls."""

    text: str


class StatusText(NamedTuple):
    """A line for people."""

    text: str


class Thinking(NamedTuple):
    """``active``: the model is waited for."""

    active: bool


class Named(NamedTuple):
    """An event of another kind, such as ``child:start``."""

    name: str
    data: Mapping[str, Any]


class Dropped(NamedTuple):
    """So many events were left out, because the listener was too slow."""

    number: int


EventValues: TypeAlias = (
    ToolStart | ToolComplete | ToolProgress | Transition | StreamDelta | ReasoningText | InterimText
    | StatusText | Thinking | Named | Dropped | tuple[Any, ...]
)  # fmt: skip
SHAPES: Mapping[str, Any] = {
    "tool_start": ToolStart, "tool_complete": ToolComplete, "tool_progress": ToolProgress,
    "transition": Transition, "stream_delta": StreamDelta, "reasoning": ReasoningText, "thinking": Thinking,
    "interim_assistant": InterimText, "status": StatusText, "event": Named, "dropped": Dropped,
}  # fmt: skip


def shaped(name: str, values: tuple[Any, ...]) -> EventValues:
    """Return the values of a channel with their names; those of a channel that has none as they are."""
    shape = SHAPES.get(name)
    made: EventValues = values if shape is None else shape(*values)
    return made
