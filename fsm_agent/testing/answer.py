"""Playing one scripted reply to one client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.providers.scripted import wire
from fsm_agent.providers.scripted.dialects import Dialect
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.testing import http

Served = Callable[[Usage], object]
"""Told of the tokens just before they are sent: a client that has read them must find them counted."""


async def answer(
    reply: Reply, dialect: Dialect, stream: bool, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    """Write a reply as a stream or as one object. May the connection be used again?

    Raises ``ConnectionError`` when the client is gone.
    """
    if reply.shape == "drop":
        return False
    if reply.shape == "mute":
        await _hold(reply)
    if reply.shape in ("status", "verbatim"):
        body = dialect.error(reply) if reply.shape == "status" else reply.body
        await _send(writer, http.whole(reply.status, body, reply.headers))
        return True
    if stream and not reply.whole:
        return await _as_stream(reply, dialect, number, writer, served)
    return await _as_object(reply, dialect, number, writer, served)


async def _as_stream(
    reply: Reply, dialect: Dialect, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    await _send(writer, http.head(200, {**http.STREAM, **reply.headers}))
    if reply.shape == "message":
        for event in dialect.events(reply, number):
            if reply.delay and event.delta:
                await asyncio.sleep(reply.delay)
            if event.counted:
                served(reply.usage or NO_USAGE)
            await _send(writer, http.event(json.dumps(event.data), event.name))
    for line in reply.raw:
        await _send(writer, http.event(line))
    if reply.end == "hold":
        await _hold(reply)
    if reply.end == "cut":
        await _send(writer, b"400\r\ndata: {")
        return False
    done = http.event(dialect.done) if dialect.done and reply.end == "done" else b""
    await _send(writer, done + http.LAST_CHUNK)
    return True


async def _as_object(
    reply: Reply, dialect: Dialect, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    await asyncio.sleep(reply.delay)
    if reply.shape == "empty":
        await _send(writer, http.whole(200, ""))
        return True
    response = http.whole(200, "".join(reply.raw) or dialect.whole(reply, number), reply.headers)
    if reply.end in ("cut", "hold"):
        await _send(writer, response[: response.index(b"\r\n\r\n") + 5])
        if reply.end == "hold":
            await _hold(reply)
        return False
    served(wire.served_usage(reply) or NO_USAGE)
    await _send(writer, response)
    return True


async def _hold(reply: Reply) -> None:
    """Silence until the client goes away or the server is closed, which cancels this."""
    if reply.on_hold is not None:
        await asyncio.to_thread(reply.on_hold)
    await asyncio.Event().wait()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
