"""What becomes of a message that comes while another turn of the same agent runs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

from fsm_agent.conversation.result import TurnResult
from fsm_agent.runtime.turn_inbox import TurnInbox
from fsm_agent.sessions.relay import RunnableToEnd
from fsm_agent.settings.model import SecondMessage


class TurnLine:
    """The turns of one agent that were asked for, one after the other, in the order in which they came; from
    any thread and event loop. ``how`` is the setting ``interrupt.second_message``; without one nothing
    waits."""

    def __init__(self, how: SecondMessage | None, inbox: TurnInbox) -> None:
        self._how, self._inbox = how, inbox
        self._lock = threading.Lock()
        self._line: deque[tuple[RunnableToEnd, Future[None]]] = deque()  # each with its end

    async def run(self, turn: RunnableToEnd, message: Any) -> TurnResult:
        """Run the turn that ``message`` is asked in when those before it have ended. A text that is told to a
        running turn, and read in it, has no turn of its own: the result is that one's. Raises ``SessionBusy``
        when somebody else runs a turn on the session."""
        if self._how is None:
            return await turn.arun()
        place = (turn, Future[None]())
        with self._lock:
            running = self._line[0][0] if self._line else None
            self._line.append(place)
        try:
            if running is not None and (told := await self._after(running, turn, message)):
                return told
            return await turn.arun()
        finally:
            with self._lock:
                self._line.remove(place)
            place[1].set_result(None)

    async def _after(self, running: RunnableToEnd, turn: RunnableToEnd, message: Any) -> TurnResult | None:
        """Wait until it is the turn's time. The result of ``running`` when the message was read in it."""
        words = message if isinstance(message, str) else None
        if self._how == "steer" and words:
            self._inbox.steer(words)
        elif self._how == "interrupt":
            self._inbox.interrupt(words)
        while (first := self._line[0])[0] is not turn:
            await asyncio.shield(asyncio.wrap_future(first[1]))
        if self._how == "interrupt":
            self._inbox.clear()  # in case that the turn had ended before it heard of it
        if self._how != "steer" or words is None or running.result is None:
            return None
        unread = [*running.result.pending_steer, *self._inbox.take_steer()]
        return None if words in unread else running.result
