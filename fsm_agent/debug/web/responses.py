"""All that leaves for the page, without secrets: answers as JSON, and events as they happen (server-sent events)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import Response

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import Event
from fsm_agent.fsm.codec import dumps
from fsm_agent.support.redaction import mask_json

ALIVE = 1.0
"""Seconds after which a stream without news looks whether the turn came to life elsewhere, and says that it is still there."""
NOT_SENT = ("exchanged",)
"""There are many a move, and a page shows them when the engine stands still."""
WITH_STATUS = ("paused", "running", "waiting", "ended", "left")


def answer(value: Any, secrets: Sequence[str] = (), status: int = 200) -> Response:
    """Return a JSON response, masked, that is kept nowhere."""
    return Response(dumps(mask_json(value, secrets)), status, {"cache-control": "no-store"}, "application/json")


async def events(opened: Callable[[], Debugger], secrets: Sequence[str]) -> AsyncIterator[str]:
    """The events of a turn for ever. ``opened`` gives its debugger, another one when the turn has come to life since."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[Event] = asyncio.Queue()

    def hear(event: Event) -> None:
        if event.kind in NOT_SENT:
            return
        loop.call_soon_threadsafe(waiting.put_nowait, event)

    debugger = await asyncio.to_thread(opened)
    stop = debugger.listen(hear)
    try:
        yield _line("hello", {"status": debugger.status.to_dict(), "count": debugger.record.count}, secrets)
        while True:
            try:
                event = await asyncio.wait_for(waiting.get(), ALIVE)
            except TimeoutError:
                newest = await asyncio.to_thread(opened)
                if newest is not debugger:
                    stop()
                    debugger, stop = newest, newest.listen(hear)
                    yield _line("hello", {"status": debugger.status.to_dict(), "count": debugger.record.count}, secrets)
                else:
                    yield ": still here\n\n"
                continue
            data = dict(event.data)
            if event.kind in WITH_STATUS:
                data["status"] = debugger.status.to_dict()
            yield _line(event.kind, data, secrets)
    finally:
        stop()


def _line(kind: str, data: dict[str, Any], secrets: Sequence[str]) -> str:
    body = {"kind": kind, "data": mask_json(data, secrets), "sent": time.time()}
    return f"data: {dumps(body)}\n\n"
