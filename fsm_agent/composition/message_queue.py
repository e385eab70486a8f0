"""``MessageQueue``: what becomes of a message that arrives while another turn of the same agent runs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from fsm_agent.conversation.result import TurnResult
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.sessions.turn import DurableTurn
from fsm_agent.settings.model import SecondMessage

Next = Callable[[TurnResult[Any]], DurableTurn[TurnResult[Any]] | None]


class HandoffChain:
    """A turn and those that follow it while each hands the conversation over: ``following`` returns the next
    one for the result of one, ``None`` after the last. ``result`` is ``None`` until all have ended."""

    def __init__(self, turn: DurableTurn[TurnResult[Any]], following: Next) -> None:
        self.result: TurnResult[Any] | None = None
        self._turn, self._following = turn, following

    async def arun(self) -> TurnResult[Any]:
        """Run all of them, and return the result of the last."""
        turn: DurableTurn[TurnResult[Any]] | None = self._turn
        while turn is not None:
            result = await turn.arun()
            turn = self._following(result)
        self.result = result
        return result


class MessageQueue:
    """Runs the turns of one agent in the order in which they were asked for, from any thread and event loop.
    ``how`` is the setting ``interrupt.second_message``; without one nothing waits."""

    def __init__(self, how: SecondMessage | None, inbox: TurnInbox) -> None:
        self._how, self._inbox = how, inbox
        self._lock = threading.Lock()
        self._queue: deque[tuple[HandoffChain, Future[None]]] = deque()  # each with its end

    def run(self, turn: HandoffChain, message: Any) -> Coroutine[Any, Any, TurnResult[Any]]:
        """Run the turn that ``message`` asks for when those before it have ended. A text that a running turn
        reads as steering gets no turn of its own: the result is the running turn's. Raises ``SessionBusy``
        when another process runs a turn on the session."""
        return turn.arun() if self._how is None else self._run_in_line(turn, message)

    async def _run_in_line(self, turn: HandoffChain, message: Any) -> TurnResult[Any]:
        place = (turn, Future[None]())
        with self._lock:
            running = self._queue[0][0] if self._queue else None
            self._queue.append(place)
        try:
            if running is not None and (read := await self._wait(running, turn, message)):
                return read
            return await turn.arun()
        finally:
            with self._lock:
                self._queue.remove(place)
            place[1].set_result(None)

    async def _wait(self, running: HandoffChain, turn: HandoffChain, message: Any) -> TurnResult[Any] | None:
        """Wait until the turn is first. Return the result of ``running`` if that turn read the message."""
        words = message if isinstance(message, str) else None
        if self._how == "steer" and words:
            self._inbox.steer(words)
        elif self._how == "interrupt":
            self._inbox.interrupt(words)
        while (first := self._queue[0])[0] is not turn:
            await asyncio.shield(asyncio.wrap_future(first[1]))
        if self._how == "interrupt":
            self._inbox.clear()  # the running turn may have ended before it saw the interrupt
        if self._how != "steer" or words is None or running.result is None:
            return None
        unread = [*running.result.pending_steer, *self._inbox.take_steer()]
        return None if words in unread else running.result
