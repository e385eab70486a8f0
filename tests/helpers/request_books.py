"""Do the books of every turn that a test runs agree? Rows spend attempts, states say what became of each, wires say
what left. ``tests/conftest.py`` lets ``Books`` listen everywhere."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from fsm_agent.conversation.effects import CallModel
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.runtime.events import EVERYWHERE, TURN, Named, Opened, Stopped, Stream

if TYPE_CHECKING:
    from fsm_agent.fsm.pause_point import PausePoint
    from fsm_agent_states.turn import TurnState

ATTEMPT = "model:attempt"


class RequestBooks:
    """Compares three counts of the requests of one turn after each move: those paid for by the table's rows,
    those that the turn accounts for, and those sent on a wire. A fork may begin with other counters, so only
    what was added since then is compared, and nothing after an internal error. A debugger at the gate may
    answer in place of a model."""

    def __init__(self, gate: PausePoint) -> None:
        self.gate = weakref.ref(gate)  # a turn that is dropped releases its session
        self._turn = cast("TurnState", gate.turn)
        self._unaccounted, self._sent_before = self._open(), self._turn.accounting.request_count
        self._departed = self._attempts = 0
        self._closed = self._by_hand = False

    def attempted(self, data: Any) -> None:
        """A request went to a wire, which says whether it left."""
        self._attempts += 1
        self._departed += data["sent"]

    def exchanged(self, exchange: Exchange) -> None:
        """A request to a model has its reply; where no wire was asked, it is known to have left elsewhere, or not at
        all."""
        replies = exchange.reply if isinstance(exchange.request, list) else [exchange.reply]
        for request, reply in zip(exchange.requests, replies, strict=True):
            if isinstance(request, CallModel):
                self._departed += 0 if self._attempts else getattr(reply, "sent", True)
                self._attempts = 0

    def moved(self, step: Step) -> None:
        """Raises ``AssertionError`` when they do not agree."""
        gate = self.gate()
        assert gate is not None
        self._by_hand = self._by_hand or gate.debugger is not None
        self._closed = self._closed or step.event == CRASHED
        sent = self._turn.accounting.request_count - self._sent_before
        agree = sent >= self._departed if self._by_hand else sent == self._departed
        assert self._closed or (agree and self._open() == self._unaccounted), f"{step.row}: {self}"

    def _open(self) -> int:
        """Attempts that were paid for and that nothing is said of, without the one that a row has just paid for."""
        turn = self._turn
        paid = turn.count("attempts") - ("attempts" in turn.spent)
        return paid - turn.accounting.request_count - turn.accounting.unsent

    def __str__(self) -> str:
        turn = self._turn
        return (
            f"{turn.count('attempts')} attempts spent, {turn.accounting.request_count} requests sent,"
            f" {turn.accounting.unsent} not sent, {self._departed} left"
        )


class Books:
    """Those of all turns that run in this process. Two that run the same turn each have their own."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Stream, RequestBooks] = WeakKeyDictionary()
        EVERYWHERE.subscribe(self._heard, Opened, Stopped, Named, Exchange, Step)

    def _heard(self, event: Opened | Stopped | Named | Exchange | Step) -> None:
        match event:
            case Opened(gate) if gate.kind.talks:
                self._of[gate.stream] = RequestBooks(gate)
            case Stopped():
                self._of.pop(TURN.get(), None)
        if (books := self._of.get(TURN.get())) is None:
            return
        match event:
            case Named(name, data) if name == ATTEMPT:
                books.attempted(data)
            case Exchange():
                books.exchanged(event)
            case Step():
                books.moved(event)
