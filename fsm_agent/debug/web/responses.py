"""All that leaves for the page, without secrets: answers as JSON, and events as they happen (server-sent
events). (Why: decision 47.)"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, assert_never

from starlette.responses import Response

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import DebugEvent
from fsm_agent.fsm.codec import dumps
from fsm_agent.support.redaction import mask_json

ALIVE = 1.0
"""Seconds after which a stream without news looks whether the turn came to life elsewhere, and says that it
is still there."""


def answer(value: Any, secrets: Sequence[str] = (), status: int = 200) -> Response:
    """Return a JSON response, masked, that is kept nowhere."""
    return Response(
        dumps(mask_json(value, secrets)), status, {"cache-control": "no-store"}, "application/json"
    )


async def events(opened: Callable[[], Debugger], secrets: Sequence[str]) -> AsyncIterator[str]:
    """Yield the events of a turn for ever. ``opened`` gives its debugger, another one when the turn has come
    to life since."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[DebugEvent] = asyncio.Queue()

    def hear(event: DebugEvent) -> None:
        if event.kind != "exchanged":
            # there are many a move, and a page shows them when the engine stands still
            loop.call_soon_threadsafe(waiting.put_nowait, event)

    debugger = await asyncio.to_thread(opened)
    stop = debugger.listen(hear)
    try:
        yield _hello(debugger, secrets)
        while True:
            try:
                event = await asyncio.wait_for(waiting.get(), ALIVE)
            except TimeoutError:
                newest = await asyncio.to_thread(opened)
                if newest is debugger:
                    yield ": still here\n\n"
                    continue
                stop()
                debugger, stop = newest, newest.listen(hear)
                yield _hello(debugger, secrets)
                continue
            match event.kind:
                case "moved" | "log" | "exchanged":
                    yield _line(event.kind, event.data, secrets)
                case "paused" | "running" | "waiting" | "ended" | "left":
                    yield _line(event.kind, {**event.data, "status": debugger.status.to_dict()}, secrets)
                case _:
                    assert_never(event.kind)
    finally:
        stop()


def _hello(debugger: Debugger, secrets: Sequence[str]) -> str:
    return _line("hello", {"status": debugger.status.to_dict(), "count": debugger.record.count}, secrets)


def _line(kind: str, data: Mapping[str, Any], secrets: Sequence[str]) -> str:
    body = {"kind": kind, "data": mask_json(data, secrets), "sent": time.time()}
    return f"data: {dumps(body)}\n\n"
