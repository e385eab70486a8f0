"""One model request, and the waits between attempts: timed, interruptible, and never silent for long."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fsm_agent.composition.services import Services
from fsm_agent.conversation.effects import (
    FINAL,
    NOTHING,
    CallModel,
    Cancelled,
    Failure,
    ModelRequest,
    Runtime,
    Wait,
    Waited,
)
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.choose import Choice
from fsm_agent.runtime.budget import RequestCap
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Finish, Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import (
    TURN,
    CallBegun,
    EventValues,
    FirstChunk,
    Named,
    PartialOutput,
    ReasoningText,
    StatusText,
    StreamDelta,
    Thinking,
)
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import ThinkScrubber, clean, clean_piece, one_line
from fsm_agent_states.logic.detect import Size, detect

# ----------------------------------------------------------------------------------------------------
# Reports on each model attempt: a log record and an event, and a line for people when it failed.
#
# The record and the event ``model:attempt`` have the same fields. None contains a key, a prompt, or more of
# an address than its host and port.


log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # people read callbacks; records need logging to be configured

EVENT = "model:attempt"
SHORT = 160
"""Maximum characters shown of a provider's message."""


def tell_attempt(
    callbacks: Callbacks,
    request: CallModel,
    choice: Choice,
    reply: ModelReply | Failure | Cancelled,
    seconds: float,
    rows: int,
    *,
    sent: bool,
) -> None:
    """Report the outcome of ``request`` to ``choice`` after ``seconds``, with ``rows`` of history, and
    whether it was ``sent``. A successful attempt without listeners is skipped."""
    failed = isinstance(reply, Failure)
    if not (failed or callbacks.hears(Named) or log.isEnabledFor(logging.INFO)):
        return
    facts = fields_of(request, choice.runtime(), reply, seconds, rows, sent=sent)
    words = line_of(facts) if failed else f"attempt at {facts['address']}: {facts['outcome']}"
    log.log(logging.WARNING if failed else logging.INFO, "%s", words, extra=facts)
    callbacks.publish(Named(EVENT, facts))
    if failed and request.request.purpose == "turn":
        callbacks.publish(StatusText(words))


def fields_of(
    request: CallModel,
    runtime: Runtime,
    reply: ModelReply | Failure | Cancelled,
    seconds: float,
    rows: int,
    *,
    sent: bool,
) -> dict[str, Any]:
    """Return the facts of an attempt, as plain values by name."""
    facts: dict[str, Any] = {
        "turn_id": TURN.get().turn_id,
        "purpose": request.request.purpose,
        "attempt": request.attempt,
        "most": request.most,
        "provider": runtime.provider,
        "model": runtime.model,
        "address": address_of(runtime),
        "seconds": round(seconds, 3),
        "prompt_estimate": request.request.estimate,
        "sent": sent,
    }
    match reply:
        case ModelReply():
            return {**facts, "outcome": "reply", "finish": reply.finish}
        case Cancelled():
            return {**facts, "outcome": "cancelled"}
    size = Size(request.request.estimate, rows, runtime.window, thinks=runtime.stale_floor > 0)
    return {
        **facts,
        "outcome": "failure",
        "kind": reply.kind,
        "exception": reply.exception,
        "failure_class": detect(reply, size, runtime.error_rows).name,
        "status": reply.status,
        "problem": one_line(mask(reply.message), SHORT),
    }


def line_of(facts: dict[str, Any]) -> str:
    """Format the line about a failed attempt."""
    title = f"attempt {facts['attempt']} of {facts['most']}" if facts["most"] > 1 else "the request"
    kind = facts["failure_class"].replace("_", " ")
    if kind == "timeout" and facts["kind"] == "transport" and "timeout" not in facts["exception"].lower():
        kind = "the connection failed"
    return f"{title} failed after {facts['seconds']:.1f} s at {facts['address']}: {kind}: {facts['problem']}"


def address_of(runtime: Runtime) -> str:
    """Return host and port of a model, or the provider's name if it has no address."""
    parts = urlsplit(runtime.base_url or "")
    return parts.netloc.rpartition("@")[2] or runtime.provider


PARAGRAPH = "\n\n"
OUT_OF_TIME = "a limit in seconds was reached while the model was asked"
FROM_THE_START = "\n\n[The reply broke off and begins again.]\n\n"


class ModelCaller:
    """Performs ``CallModel`` and ``Wait``. Failures of providers and networks are returned as values.
    ``cap``: limits the requests of a tree of turns. ``rows`` returns the length of the conversation. ``read``
    parses the beginning of an answer into an object.

    ``left``: seconds until a time limit, which no request and no wait outlasts. Text that was shown before
    its attempt failed is shown again by the next one, which begins with a mark (CALL-15)."""

    def __init__(
        self,
        services: Services,
        rows: Callable[[], int],
        cap: RequestCap | None = None,
        read: Callable[[str], Any] | None = None,
    ) -> None:
        self._services, self._rows, self._cap, self._read = services, rows, cap, read
        self._partial: PartialObjects | None = None
        self.left: Callable[[], float] = lambda: math.inf
        self._shown_in_vain = False

    async def call(self, request: CallModel) -> ModelReply | Failure | Cancelled:
        """Send one request to the current model, or to an auxiliary one, until it answers, times out, or a
        person interrupts."""
        services = self._services
        sink = StreamAccumulator(
            services.clock,
            services.callbacks,
            quiet=request.request.purpose == "summary",
            lead=FROM_THE_START if self._shown_in_vain else PARAGRAPH if request.paragraph else "",
            partial=self._partial_of(request),
        )
        services.callbacks.publish(Thinking(True))
        interrupted = services.signals.event()  # checked after the callback, which may interrupt
        if interrupted.is_set():
            sink.close()
            return Cancelled(sent=False)
        if self._cap is not None and not self._cap.take():
            sink.close()
            return Failure("capped", f"turn and children have sent {self._cap.limit:,} requests", sent=False)
        total = Stopwatch(services.clock)
        heartbeat = Heartbeat(services, "the model has not answered yet", total)
        most = max(0.0, min(request.total, self.left()))
        backend = (
            services.backends.current if request.auxiliary is None else services.auxiliary[request.auxiliary]
        )
        work = asyncio.ensure_future(call_port(backend.port, request.request, sink))
        try:
            finish = await wait_with_deadline(
                work,
                left=lambda: min(request.stale_after - sink.silence(), most - total.elapsed()),
                interrupted=interrupted,
                poll=services.settings.poll.control,
                tick=heartbeat.tick,
            )
        finally:  # also when the turn's own task is canceled: no request outlives it
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        sink.close()
        outcome = self._outcome(request, sink, finish, work)
        if not _is_continued(outcome):
            self._partial = None
        if sink.displayed:
            self._shown_in_vain = isinstance(outcome, Failure)
        tell_attempt(
            services.callbacks,
            request,
            backend.choice,
            outcome,
            total.elapsed(),
            self._rows(),
            sent=sink.sent and getattr(outcome, "sent", True),
        )
        return self._came_back(outcome)

    def _partial_of(self, request: CallModel) -> PartialObjects | None:
        """Return the parser that reports partial answers; after a truncated reply, the same one continues."""
        callbacks = self._services.callbacks
        if self._read is None or request.request.purpose != "turn" or not callbacks.hears(PartialOutput):
            return None
        if self._partial is None:
            self._partial = PartialObjects(
                self._read, lambda value: callbacks.publish(PartialOutput(value)), NOTHING
            )
        return self._partial

    def _outcome(
        self,
        request: CallModel,
        sink: StreamAccumulator,
        finish: Finish,
        work: asyncio.Future[ModelReply | Failure],
    ) -> ModelReply | Failure | Cancelled:
        if finish == "interrupted":
            return Cancelled(sink.shown, sink.thoughts, sent=sink.sent)
        if finish == "late":
            return self._stale(request, sink)
        if (error := work.exception()) is not None:
            kind = type(error).__name__
            return Failure("local", one_line(repr(error)), exception=kind, sent=sink.sent)
        return work.result()

    def _came_back(self, reply: ModelReply | Failure | Cancelled) -> ModelReply | Failure | Cancelled:
        """Prepare the reply for states: clean its text, or add the available key options to a failure."""
        services = self._services
        if isinstance(reply, ModelReply):
            return reply.cleaned()
        if isinstance(reply, Failure):
            keys = services.backends.current.keys
            return replace(
                reply, refreshable=keys.refreshable(), other_keys=keys.others(services.clock.now())
            )
        return reply

    def _stale(self, request: CallModel, sink: StreamAccumulator) -> ModelReply | Failure:
        """Return the outcome of a request killed by the watchdog. Visible text is kept and continued: asking
        again would show it twice."""
        if sink.shown and not sink.tool_begun:
            return ModelReply(sink.shown, sink.thoughts, finish=None, cut=True)
        if self.left() <= 0:
            return Failure("transport", OUT_OF_TIME, exception="TimeLimit", sent=sink.sent)
        silent = f"nothing arrived for {request.stale_after:g} s"
        return Failure("stale", silent, exception="StaleStream", detail=silent, sent=sink.sent)

    async def wait(self, request: Wait) -> Waited:
        """Wait in slices of one heartbeat, so that a long wait reports its reason; an interrupt ends it at
        once."""
        services = self._services
        asked = services.backoff.seconds(request.kind, request.attempt, request.retry_after)
        seconds = max(0.0, min(asked, self.left()))
        interrupted = services.signals.event()
        if seconds >= 1:
            services.callbacks.publish(StatusText(f"waiting {seconds:.0f} s: {request.why}"))
        left = seconds
        while left > 0 and not interrupted.is_set():
            piece = min(left, services.settings.poll.heartbeat)
            sleeping = asyncio.ensure_future(services.clock.sleep(piece))
            try:
                finish = await wait_with_deadline(
                    sleeping, left=lambda: math.inf, interrupted=interrupted, poll=60
                )
            finally:
                sleeping.cancel()
            left -= piece
            if finish == "done" and left > 0:
                services.callbacks.publish(StatusText(f"still waiting, {left:.0f} s more: {request.why}"))
        return Waited(seconds, interrupted.is_set())


def _is_continued(outcome: ModelReply | Failure | Cancelled) -> bool:
    """Return whether the next reply continues the text of this one."""
    if not isinstance(outcome, ModelReply) or outcome.tool_calls or not outcome.text:
        return False
    return outcome.cut or outcome.finish in (None, "length")


async def call_port(port: ModelPort, request: ModelRequest, sink: StreamAccumulator) -> ModelReply | Failure:
    """Prepare the port, if necessary, and call it; silence is timed from then on. A port that fails to get
    ready has sent nothing."""
    ready = getattr(port, "ready", None)
    try:
        if ready is not None:
            await ready()
    except Exception as error:
        name = type(error).__name__
        return Failure("local", one_line(f"{name}: {error}"), exception=name, sent=False)
    sink.begin()
    return await port.call(request, sink)


class Heartbeat:
    """Reports a line at intervals while something is pending: never a silent minute."""

    def __init__(self, services: Services, what: str, watch: Stopwatch) -> None:
        self._services, self._what, self._watch, self._reported = services, what, watch, 0.0

    def tick(self) -> None:
        """Report that the turn still waits, if the interval has passed."""
        elapsed = self._watch.elapsed()
        if elapsed - self._reported >= self._services.settings.poll.heartbeat:
            self._reported = elapsed
            self._services.callbacks.publish(StatusText(f"{self._what} ({elapsed:.0f} s)"))


# ----------------------------------------------------------------------------------------------------
# Accumulates a reply while it arrives: shows it to the callbacks, keeps it for an interrupt, and times it for
# the watchdog.


SHARE, LEAST = 0.25, 32
"""A partial answer is parsed again after growing by this share of its length and this many characters: all
parses of a long answer together cost a few times one."""


class PartialObjects:
    """Parses a typed answer while it is being written. ``read`` parses a prefix into an object, or returns
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
        """Parse the rest: no more pieces come for now."""
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
    ``quiet`` attempt (a summary) shows nothing. ``lead``: text shown before the first piece. ``partial``
    parses the answer so far. A closed sink ignores late pieces of a superseded attempt."""

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
        ] = []  # joined on demand: adding to one long text would copy all of it for each piece
        self._thoughts: list[str] = []
        self._half = self._half_thought = ""
        self.tool_begun = False
        self._callbacks = callbacks
        self._scrubber = ThinkScrubber()
        self._partial, self._answers = partial, False
        self._quiet, self._lead, self._displayed = quiet, lead, False
        self._waiting, self._closed = True, False

    @property
    def shown(self) -> str:
        """Return the visible text so far."""
        return "".join(self._shown)

    @property
    def displayed(self) -> bool:
        """True if any of the text may have been read."""
        return self._displayed

    @property
    def thoughts(self) -> str:
        """Return the reasoning so far."""
        return "".join(self._thoughts)

    @property
    def sent(self) -> bool:
        """True if the provider may have received the request: once the port has it, unless the port reports
        that it never left."""
        return self._begun and not self._held_back

    def begin(self) -> None:
        """Start timing the silence: the port is ready and receives the request."""
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
        """Add a piece of text; publish its visible part."""
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
        """Publish what the scrubber held back, and ignore everything from now on."""
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
                self._publish(StreamDelta(("" if self._displayed else self._lead) + visible))
                self._displayed = not self._quiet

    def _publish(self, event: EventValues) -> None:
        if not self._quiet:
            self._callbacks.publish(event)
