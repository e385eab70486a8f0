"""The little of HTTP/1.1 that a scripted server needs: read one request, write one response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived. ``headers`` have lower-case names; ``time`` is wall time in seconds.
    ``cut_off``: the client went away before the body was whole."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    time: float
    cut_off: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body; empty when there is none or it is no object."""
        try:
            value = json.loads(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


async def read_request(reader: asyncio.StreamReader, first: bytes, now: float) -> Received | None:
    """Read a request whose first bytes may have been read already. ``None`` when the client is gone before
    its headers were whole."""
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = start.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        size = int(headers.get("content-length", 0))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        return None
    try:
        return Received(method, path, headers, await reader.readexactly(size), now)
    except (asyncio.IncompleteReadError, ConnectionError) as gone:
        partial = gone.partial if isinstance(gone, asyncio.IncompleteReadError) else b""
        return Received(method, path, headers, partial, now, cut_off=True)


def head(code: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers."""
    reason = HTTPStatus(code).phrase if code in set(HTTPStatus) else "Unassigned"
    lines = [f"HTTP/1.1 {code} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def whole(code: int, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """A complete response. A string body is sent as it is, anything else as JSON."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) and body.lstrip().startswith("<") else "application/json"
    fields = {"content-type": kind, "content-length": str(len(content)), **(headers or {})}
    return head(code, fields) + content


STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
LAST_CHUNK = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: str, name: str = "") -> bytes:
    """One server-sent event as a chunk."""
    named = f"event: {name}\n" if name else ""
    return framed(f"{named}data: {data}\n\n".encode())
