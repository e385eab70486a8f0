"""Run control: which debugger holds the pause point of a turn, and when the turn may continue.

Commands arrive from any thread; the turn's own loop applies them at the next request or move. This module
does not depend on their source: a page, an editor, or another process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, assert_never

from fsm_agent.approvals.service import NOBODY
from fsm_agent.conversation.effects import Approval, AskApproval
from fsm_agent.debug.core import commands
from fsm_agent.debug.core.analysis import note_of
from fsm_agent.debug.core.breakpoints import Breakpoint, Breakpoints, MoveFacts
from fsm_agent.debug.core.commands import (
    DebugEvent,
    EventKind,
    Phase,
    Reason,
    Status,
    entries,
    step_dict,
)
from fsm_agent.debug.core.pending_request import PERFORM, HeldKind, PendingRequest, PerformEdited, kind_of
from fsm_agent.debug.core.record import cost_of_turn, price_by
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.runner import Perform
from fsm_agent.request import NotYet
from fsm_agent.runtime.events import Entered, Stopped, Stream

MOST_NUMBERS = 900_000
"""Question numbers start at a random number below this in each debugger, so a late answer to an earlier
question cannot match another question."""
Mode = Literal["paused", "step", "into", "over", "free", "to"]
SETTLES = 0.25
"""Seconds within which the rules about approvals have usually decided; after that, the debugger shows the
call as undecided."""


class Controller:
    """Holder of the pause point of one turn, and of the nested turns that its state runs: *step into* pauses
    those, every other command lets them continue. ``listeners`` receive every event; ``breakpoints`` may
    change at any time."""

    def __init__(self, gate: PausePoint, *, paused: bool = True) -> None:
        self.gate, self.listeners = gate, Stream()
        self.breakpoints = Breakpoints(gate.kind.table, gate.kind)
        self._lock = threading.RLock()
        self._mode: Mode = "paused" if paused else "free"
        self._reason: Reason = "entry"
        self._text, self._met = "", tuple[int, ...]()
        self._until: Breakpoint | int | None = None
        self._announced = False
        self._ended = self._left = self._interrupted = False
        self._hold: set[str] = set()
        self._held: dict[int, PendingRequest] = {}
        self._numbers = itertools.count(secrets.randbelow(MOST_NUMBERS) + 1)
        self._visit: list[Exchange] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._standing = self._spare = False
        self._inner: tuple[Controller, ...] = ()
        self._leave: Callable[[], None] = lambda: None

    @classmethod
    def at(cls, gate: PausePoint, *, paused: bool = True) -> Controller:
        """Create a controller, or return the one attached only because the outer turn is being debugged.
        Raises ``ConfigError`` if another debugger is attached."""
        there = gate.debugger
        if isinstance(there, cls) and there._spare:
            there._spare = False
            if paused:
                there.order(commands.PauseTurn())
            return there
        controller = cls(gate, paused=paused)
        controller.stand()
        return controller

    def stand(self) -> None:
        """Take the pause point. Raises ``ConfigError`` if another debugger holds it."""
        if self.gate.debugger not in (None, self):
            raise ConfigError(
                "another debugger is attached to this turn already", self.gate.turn.turn_id, "one at a time"
            )
        self.gate.attach(self)
        self._leave = self.gate.stream.subscribe(self._on_event, Step, Exchange, Stopped, Entered)
        for inner in self.gate.inner:
            self._enters(inner)

    def _on_event(self, event: Step | Exchange | Stopped | Entered) -> None:
        match event:
            case Step():
                self._on_move(event)
            case Exchange():
                self._on_exchange(event)
            case Stopped():
                self.close(ended=event.how == "ended")
            case Entered():
                self._enters(event.gate)

    def _enters(self, gate: PausePoint) -> None:
        """Attach to the nested turn that the state runs, unless another debugger is attached to it."""
        if gate.debugger is None:
            inner = Controller(gate, paused=self._mode in ("into", "paused"))
            inner.stand()
            inner._spare = True
            self._inner = (*(one for one in self._inner if not one._ended and not one._left), inner)
            inner.listeners.subscribe(self._hear_inside, DebugEvent)

    def _hear_inside(self, event: DebugEvent) -> None:
        if event.kind in ("paused", "waiting", "running"):
            status = self.status()
            if status.phase == "paused":
                self._tell("paused", reason=status.reason, text=status.text, breakpoints=[])
            else:
                self._tell("running")

    def go_away(self) -> None:
        """Detach: the turn continues without a debugger. Held requests are performed; pending approvals are
        denied unless another approver was asked too."""
        for inner in self._inner:
            if inner._spare:
                inner.go_away()
        with self._lock:
            if self.gate.debugger is self:
                self.gate.attach(None)
                self._leave()
            self._mode = "free"
            for held in self._held.values():
                self._resolve(held, PERFORM)
            self._notify()

    # Callable from any thread

    def order(self, command: commands.Command) -> None:
        """Execute a command. Raises ``ConfigError`` if it is not possible now, or not for this turn."""
        match command:
            case commands.PauseTurn():
                with self._lock:
                    if self._mode != "paused":
                        self._stop("pause", "paused by hand")
                for inner in self._inner:
                    inner.order(command)
            case commands.StepMove():
                self._go("step")
            case commands.StepInto() if inside := self._stopped_children():
                for inner in inside:
                    inner.order(command)
            case commands.StepInto():
                self._go("into")
            case commands.StepOver():
                self._go("over")
            case commands.ContinueTurn():
                self._go("free")
            case commands.RunTo(until=until):
                self._go("to", until if isinstance(until, int) else self.breakpoints.fresh().put(until))
            case commands.InterruptTurn(message=message):
                self._interrupt(message)
            case commands.SteerTurn(text=text):
                if not text.strip():
                    raise ConfigError("there is nothing to tell the turn", text, "some text")
                self.gate.signals.steer(text)
            case commands.HoldRequests(kinds=kinds):
                if unknown := sorted(set(kinds) - set(self.gate.kind.holds)):
                    raise ConfigError("this cannot be held back", unknown[0], ", ".join(self.gate.kind.holds))
                with self._lock:
                    self._hold = set(kinds)
            case commands.AnswerRequest(id=number, said=said):
                held = self._waiting(number)
                self._resolve(held, held.reply(said))
            case commands.EditRequest(id=number, said=said):
                held = self._waiting(number)
                self._resolve(held, held.edit(said))
                self._tell(
                    "log", breakpoint=0, text=f"request {number} was changed by hand before it was sent"
                )
            case commands.ReleaseRequest(id=number):
                held = self._waiting(number)
                if held.kind == "approval":
                    raise ConfigError("an approval needs an answer", "let it go", "once, session or deny")
                self._resolve(held, PERFORM)
            case commands.ReplaceBreakpoints(all=wanted):
                self.breakpoints.replace(wanted)
            case _:
                assert_never(command)

    def _interrupt(self, message: str | None) -> None:
        with self._lock:
            self.gate.signals.interrupt(message)
            self._interrupted = True
            for held in self._held.values():
                if held.kind != "approval":
                    self._resolve(held, PERFORM)
            self._go("free")

    # At the pause point, in the turn's loop

    async def passing(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if self._loop is not loop or self._wake is None:
                    self._loop, self._wake = loop, asyncio.Event()
                self._wake.clear()
                if self._mode != "paused":
                    self._standing = False
                    return
                self._standing = True
                first, self._announced = not self._announced, True
            if first:
                self._tell("paused", reason=self._reason, text=self._text, breakpoints=list(self._met))
            await self._wake.wait()

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        kind = kind_of(request)
        if isinstance(request, AskApproval):
            return await self._approval(request, call_next)
        held = kind in self._hold or "request" in self._hold
        if kind != "event" and (not held or self._interrupted):
            return await call_next(request)
        answer = await self._ask_person(kind, request)
        if isinstance(answer, PerformEdited):
            return await call_next(answer.request)
        return await call_next(request) if answer is PERFORM else answer

    async def _approval(self, request: AskApproval, call_next: Perform) -> Any:
        """Apply the turn's own rules first, so that a forbidden call stays forbidden. When they leave the
        decision to a person, ask the debugger as well; the first answer wins. Until then the debugger can
        only deny."""
        asked = self.gate.questions[request.call_id]
        own, person = asyncio.ensure_future(call_next(request)), asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait({own, person}, timeout=SETTLES, return_when=asyncio.FIRST_COMPLETED)
            if own.done() and not _is_unanswered(own.result()):
                return own.result()
            answer = await self._ask_person("approval", request, None if own.done() else own, person)
            return await own if answer is PERFORM else answer
        finally:
            own.cancel()
            person.cancel()

    async def _ask_person(
        self,
        kind: HeldKind,
        request: Any,
        other: asyncio.Future[Any] | None = None,
        person: asyncio.Future[Any] | None = None,
    ) -> Any:
        """Wait for a person, for ``other`` to answer instead, or for an interrupt. ``person`` completes once
        a person is being asked, which means that the rules allow the call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop = loop
            held = PendingRequest(
                next(self._numbers), kind, request, loop.create_future(), elsewhere=other is not None
            )
            held.allowable = other is None or person is None or person.done()
            self._held[held.id] = held
        self._tell_waiting()
        stop = asyncio.ensure_future(self.gate.signals.event().wait())
        try:
            while True:
                more = {one for one in (other, None if held.allowable else person) if one is not None}
                await asyncio.wait({held.answer, stop, *more}, return_when=asyncio.FIRST_COMPLETED)
                if held.answer.done():
                    return held.answer.result()
                if stop.done():
                    return Approval(False, "interrupted", interrupted=True) if kind == "approval" else PERFORM
                if other is not None and other.done():
                    if not _is_unanswered(other.result()):
                        return other.result()
                    other, held.elsewhere = None, False  # no other approver was asked; the debugger is
                held.allowable = True
                self._tell_waiting()
        finally:
            stop.cancel()
            with self._lock:
                self._held.pop(held.id, None)
            self._tell_waiting()

    def _on_exchange(self, exchange: Exchange) -> None:
        kinds = [type(one).__name__ for one in exchange.requests]
        self._visit = [*self._visit, exchange]
        self._tell("exchanged", ordinal=exchange.ordinal, kinds=kinds)
        with self._lock:
            if self._mode == "into":
                self._stop("step", f"{', '.join(dict.fromkeys(kinds))} done")

    def _on_move(self, step: Step) -> None:
        visit, self._visit = self._visit, []
        asked = [entry for exchange in visit for entry in entries(exchange)]
        note = note_of(asked, price_by(self.gate.turn))
        self._tell("moved", **step_dict(step, time.time()), **note)
        facts = MoveFacts(
            step, self.gate.turn.counters(), lambda: asked, lambda: cost_of_turn(self.gate.turn)
        )
        hits = [] if self._interrupted else self.breakpoints.match(facts)
        for hit in hits:
            if not hit.stops:
                self._tell("log", breakpoint=hit.breakpoint.id, text=hit.text)
        stops = [hit for hit in hits if hit.stops]
        with self._lock:
            if stops:
                names = ", ".join(str(hit.breakpoint) for hit in stops)
                self._stop("breakpoint", f"breakpoint: {names}", tuple(hit.breakpoint.id for hit in stops))
            elif self._has_arrived(step):
                self._stop("step", f"{step.source} –{step.event}→ {step.dest}")

    def close(self, ended: bool) -> None:
        """Record that the turn stopped running here, because it has ``ended`` or was left."""
        with self._lock:
            self._ended, self._left = ended, not ended
            self._standing = False
        self._tell("ended" if ended else "left")

    def _stopped_children(self) -> list[Controller]:
        return [one for one in self._inner if one.status().phase in ("paused", "waiting")]

    def status(self) -> Status:
        """Return where the engine is."""
        inside = self._stopped_children()  # without the lock: inner ones report to this one, holding theirs
        with self._lock:
            phase: Phase = "running"
            if self._ended:
                phase = "ended"
            elif self._left:
                phase = "idle"
            elif self._open():
                phase = "waiting"
            elif self._mode == "paused" and (self._standing or not self.gate.running):
                phase = "paused"
            turn, held = self.gate.turn, tuple(one.describe() for one in self._open())
            status = Status(
                phase, turn.seq, turn.state, held=held, hold=tuple(sorted(self._hold)), where="here",
                interrupted=self._interrupted,
                inner=tuple(one.turn.turn_id for one in self.gate.inner if one.running),
            )  # fmt: skip
            if phase == "running" and inside:
                ids = ", ".join(one.gate.turn.turn_id for one in inside)
                return replace(status, phase="paused", reason="step", text=f"inside {ids}")
            if phase == "paused":
                status = replace(status, reason=self._reason, text=self._text, breakpoints=self._met)
            return status

    def visit(self) -> list[dict[str, Any]]:
        """Return the exchanges of the current visit, as the journal will record them."""
        return [entry for exchange in self._visit for entry in entries(exchange)]

    # Inside

    def _has_arrived(self, step: Step) -> bool:
        match self._mode:
            case "step" | "into":
                return True
            case "over":
                over = self.gate.kind.over
                return step.dest == over if over is not None else step.dest != step.source
            case "to" if isinstance(self._until, Breakpoint):
                return self._until.meets(step)
            case "to":
                return step.seq == self._until
            case "paused" | "free":
                return False
            case _:
                assert_never(self._mode)

    def _go(self, mode: Mode, until: Breakpoint | int | None = None) -> None:
        with self._lock:
            was = self._mode
            self._mode, self._until, self._announced, self._left = mode, until, False, False
            self._notify()
        for inner in self._inner:
            inner._go("free")
        if was == "paused":
            self._tell("running")

    def _stop(self, reason: Reason, text: str, met: tuple[int, ...] = ()) -> None:
        self._mode, self._reason, self._text, self._met, self._announced = "paused", reason, text, met, False

    def _waiting(self, number: int) -> PendingRequest:
        with self._lock:
            waiting = {one.id: one for one in self._open()}
        if number not in waiting:
            raise ConfigError(
                "nothing waits for an answer under this number",
                number,
                ", ".join(map(str, waiting)) or "none",
            )
        return waiting[number]

    def _open(self) -> list[PendingRequest]:
        """Return the requests that still wait for a person."""
        return [one for one in self._held.values() if not one.answered]

    def _resolve(self, held: PendingRequest, answer: Any) -> None:
        held.answered = True

        def settle() -> None:
            if not held.answer.done():
                held.answer.set_result(answer)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits anymore
            held.answer.get_loop().call_soon_threadsafe(settle)

    def _notify(self) -> None:
        if self._wake is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    def _tell_waiting(self) -> None:
        with self._lock:
            shown = [one.describe() for one in self._open()]
        self._tell("waiting", held=shown)

    def _tell(self, kind: EventKind, **data: Any) -> None:
        turn = self.gate.turn
        self.listeners.publish(
            DebugEvent(kind, {"turn": turn.turn_id, "seq": turn.seq, "state": turn.state} | data)
        )


def _is_unanswered(answer: Approval | NotYet) -> bool:
    return isinstance(answer, NotYet) or answer.reason.startswith(NOBODY)
