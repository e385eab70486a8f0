"""A proxy that passes on what it is asked to, and remembers what that was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Relay:
    """``asked``: first lines of requests, ``auth``: what came as ``Proxy-Authorization``. ``refuses`` is the status
    that it answers instead of passing anything on."""

    def __init__(self, refuses: str = "") -> None:
        self.asked: list[str] = []
        self.auth: list[str] = []
        self.refuses, self.port = refuses, 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.asked.append(lines[0])
        self.auth += [line.partition(": ")[2] for line in lines if line.lower().startswith("proxy-auth")]
        method, target, _ = lines[0].split(" ")
        if self.refuses:
            writer.write(f"HTTP/1.1 {self.refuses}\r\ncontent-length: 0\r\n\r\n".encode())
            writer.close()
            return
        host, _, port = target.removeprefix("http://").partition("/")[0].partition(":")
        onward = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            onward[1].write(head)
        await asyncio.gather(_pipe(reader, onward[1]), _pipe(onward[0], writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65_536):
            writer.write(piece)
    writer.close()
