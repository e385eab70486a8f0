"""How the web server ends: it leaves no connection open, whatever a client does at that moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from fsm_agent.support.local_server import bind_loopback
from fsm_agent.support.web_server import WebServer


async def endless(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
    """An answer that begins and does not end."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})


class Prompt(WebServer):
    """Ends in the very pass of the loop in which ``leave`` is set, not at the next tenth of a second."""

    async def main_loop(self) -> None:
        self.leave = asyncio.Event()
        await self.leave.wait()


def left_open(passes: int, sent: bytes = b"") -> list[str]:
    """Return what Python reports as left open when a server ends ``passes`` passes of its loop after a client
    connected and sent ``sent``. The client stays."""
    listening, client = bind_loopback(0), socket.socket()
    config = uvicorn.Config(
        endless, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0
    )
    server = Prompt(config)

    async def connect_and_leave() -> None:
        client.connect(listening.getsockname())
        client.sendall(sent)
        for _ in range(passes):
            await asyncio.sleep(0)
        server.leave.set()

    async def serve() -> None:
        clients: list[asyncio.Task[None]] = []
        server.ready = lambda: clients.append(asyncio.create_task(connect_and_leave()))
        await server.serve([listening])
        await clients[0]

    with warnings.catch_warnings(record=True) as caught, client:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(serve())
        gc.collect()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("passes", range(8))
def test_a_client_that_connects_while_the_server_ends_is_closed(passes: int) -> None:
    assert left_open(passes) == []


def test_a_client_that_does_not_read_is_closed() -> None:
    assert left_open(100, b"GET / HTTP/1.1\r\nhost: here\r\n\r\n") == []
