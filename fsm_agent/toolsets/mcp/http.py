"""The protocol over streamable HTTP, with limits on what a server may answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from fsm_agent.providers.bounded_body import BoundedBody
from fsm_agent.providers.sdk_port import tls
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.toolsets.mcp.config import HERE
from fsm_agent.toolsets.mcp.endpoint import Endpoint
from fsm_agent.toolsets.mcp.lines import Misbehaved

CONNECT, READ = 15.0, 3_600.0
"""Seconds for a connection, and between two pieces of an answer: a call has a limit of its own, and a server
that pushes messages may be silent for long."""
NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
"""After these no byte of a request has left."""


class Statuses:
    """The status of the last refused request, which the SDK does not pass on; 0 after one that was taken."""

    def __init__(self) -> None:
        self.code, self.phrase = 0, ""

    def note(self, response: httpx2.Response) -> None:
        """Remember how the newest message to the server was answered, if it was refused."""
        if response.request.method == "POST":
            refused = response.status_code >= 400
            self.code, self.phrase = (response.status_code, response.reason_phrase) if refused else (0, "")

    def __str__(self) -> str:
        return f"HTTP {self.code} {self.phrase}".rstrip() if self.code else ""


@asynccontextmanager
async def http(endpoint: Endpoint, most: int, statuses: Statuses) -> AsyncIterator[Any]:
    """The streams of a session. ``most``: bytes of one message. Proxies of the environment are used for other
    machines only."""

    async def look(response: httpx2.Response) -> None:
        statuses.note(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Misbehaved("it answered compressed, which was not asked for and has no bound")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = BoundedBody(response, most)
        response.encoding = "utf-8"  # as JSON is, whatever character set a header names

    context = await in_daemon_thread(tls)  # reading the certificates would hold the loop up
    async with (
        httpx2.AsyncClient(
            verify=context,
            headers={**endpoint.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT, read=READ),
            trust_env=httpx2.URL(endpoint.url).host not in HERE,
            event_hooks={"response": [look]},
        ) as client,
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=most) as streams,
    ):
        yield streams
