"""Accumulates a reply while it arrives: shows it to the callbacks, keeps it for an interrupt, and times it
for the watchdog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsm_agent.conversation.effects import FINAL
from fsm_agent.conversation.thinking import ThinkScrubber
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Stopwatch
from fsm_agent.runtime.events import (
    CallBegun,
    EventValues,
    FirstChunk,
    ReasoningText,
    StatusText,
    StreamDelta,
    Thinking,
)
from fsm_agent.runtime.ports import Clock
from fsm_agent.support.texts import clean, clean_piece

SHARE, LEAST = 0.25, 32
"""A partial answer is parsed again after growing by this share of its length and this many characters: all
parses of a long answer together cost a few times one."""


class PartialObjects:
    """Parses a typed answer while it is being written. ``read`` makes an object of a prefix, or
    ``nothing``; ``tell`` receives each new object."""

    def __init__(self, read: Callable[[str], Any], tell: Callable[[Any], None], nothing: Any) -> None:
        self._read, self._tell, self._nothing = read, tell, nothing
        self._last = nothing
        self.restart()

    def restart(self) -> None:
        """Begin a new answer."""
        self._pieces: list[str] = []
        self._length = self._next = self._seen = 0

    def feed(self, piece: str) -> None:
        """Add a piece of the answer."""
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length >= self._next:
            self._look()

    def end(self) -> None:
        """Parse what there is: nothing more comes for now."""
        if self._length > self._seen:
            self._look()

    def _look(self) -> None:
        self._pieces = ["".join(self._pieces)]
        self._seen, self._next = self._length, self._length + max(LEAST, int(self._length * SHARE))
        found = self._read(self._pieces[0])
        if found is not self._nothing and found != self._last:
            self._last = found
            self._tell(found)


class StreamAccumulator:
    """The ``StreamSink`` of one attempt. ``shown``: the visible text so far, ``thoughts``: the reasoning; a
    ``quiet`` attempt (a summary) shows nothing. ``lead``: a text before the first one. ``partial`` parses
    the answer so far; ``first_chunk`` is called when it begins. A closed sink ignores late pieces of a
    superseded attempt."""

    def __init__(
        self,
        clock: Clock,
        callbacks: Callbacks,
        *,
        quiet: bool = False,
        lead: str = "",
        partial: PartialObjects | None = None,
    ) -> None:
        self._since_chunk = Stopwatch(clock)
        self._begun, self._held_back = False, False
        self._shown: list[
            str
        ] = []  # joined when asked for: adding to one long text would copy all of it for each piece
        self._thoughts: list[str] = []
        self._half = self._half_thought = ""
        self.tool_begun = False
        self._callbacks = callbacks
        self._scrubber = ThinkScrubber()
        self._partial, self._answers = partial, False
        self._quiet, self._lead, self._told = quiet, lead, False
        self._waiting, self._closed = True, False

    @property
    def shown(self) -> str:
        """Return the visible text so far."""
        return "".join(self._shown)

    @property
    def told(self) -> bool:
        """Say whether any of it may have been read."""
        return self._told

    @property
    def thoughts(self) -> str:
        """Return the reasoning so far."""
        return "".join(self._thoughts)

    @property
    def sent(self) -> bool:
        """Say whether the provider may have received the request: true once the port has it, unless the
        port reports that it never left."""
        return self._begun and not self._held_back

    def begin(self) -> None:
        """Start timing the silence: the port is ready and gets the request."""
        self._begun = True
        self._since_chunk.restart()

    def silence(self) -> float:
        """Return the seconds since the last chunk."""
        return self._since_chunk.elapsed() if self._begun else 0.0

    def notice(self, words: str) -> None:
        if not self._closed:
            self._callbacks.publish(StatusText(words))

    def unsent(self) -> None:
        self._held_back = True

    def alive(self) -> None:
        self._since_chunk.restart()
        if self._waiting and not self._closed:
            self._waiting = False
            self._publish(Thinking(False))
            self._callbacks.publish(FirstChunk())

    def text(self, delta: str) -> None:
        """Add a piece of text; show what can be shown."""
        if not self._closed:
            piece, self._half = clean_piece(self._half + delta)
            self._show(*self._scrubber.feed(piece))

    def reasoning(self, delta: str) -> None:
        """Add a piece of reasoning."""
        if self._closed:
            return
        piece, self._half_thought = clean_piece(self._half_thought + delta)
        if piece:
            self._thoughts.append(piece)
            self._publish(ReasoningText(piece))

    def tool(self, name: str) -> None:
        if not self._closed:
            self.tool_begun = True
            self._publish(CallBegun(clean(name)))

    def arguments(self, name: str, delta: str) -> None:
        """Add a piece of a call's arguments; those of the output tool are the answer."""
        if self._closed or self._partial is None or name != FINAL:
            return
        if not self._answers:
            self._answers = True
            self._partial.restart()
        self._partial.feed(delta)

    def close(self) -> None:
        """Show what the scrubber held back, and ignore everything from now on."""
        if not self._closed:
            if self._half:
                self._show(*self._scrubber.feed(clean(self._half)))
            self._show(*self._scrubber.flush())
            if self._waiting:
                self._publish(Thinking(False))
            if self._partial is not None:
                self._partial.end()
            self._closed = True

    def _show(self, visible: str, reasoning: str) -> None:
        if reasoning:
            self.reasoning(reasoning)
        if visible:
            self._shown.append(visible)
            if not self.tool_begun:
                if self._partial is not None:
                    self._partial.feed(visible)
                self._publish(StreamDelta(("" if self._told else self._lead) + visible))
                self._told = not self._quiet

    def _publish(self, event: EventValues) -> None:
        if not self._quiet:
            self._callbacks.publish(event)
