"""MCP over HTTP, tried on a scripted server."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.http_server import Answer, Asked, HttpServer
from tests.helpers.mcp_bench import bench
from tests.helpers.signpost import Signpost

pytestmark = pytest.mark.anyio
TOKEN = "tok-over-http-1"


PLAIN, JSON = "text/plain", "application/json"
WRONG = {
    "packed": Answer(200, gzip.compress(b"x" * 1_000_000), JSON, {"Content-Encoding": "gzip"}),
    "broken": Answer(502, b"the machine behind me is away", PLAIN),
    "html": Answer(200, b"<html>a proxy's page</html>", "text/html"),
}
"""Answers to a call that are none."""


class Server(HttpServer):
    """One endpoint with sessions that answers with plain JSON. ``how`` it answers calls, ``sessions``: those that it
    knows, ``heard``: the method and the headers of each message."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.how, self.elsewhere, self.calls = "well", "", 0
        self.sessions: set[str] = set()
        self.heard: list[tuple[str, Mapping[str, str]]] = []
        self.over = threading.Event()

    def bench(self, home: Path, **limits: Any) -> Any:
        config = {"url": f"{self.root}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}
        return bench(home, {"h": config}, environment={"TOKEN": TOKEN}, **limits)

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return Answer(405)
        session = asked.headers.get("mcp-session-id", "")
        if asked.method == "DELETE":
            self.sessions.discard(session)
            return Answer(204)
        message = asked.body
        method = message.get("method", "")
        self.heard.append((method, asked.headers))
        if self.how == "locked":
            return Answer(401, b"who are you?", PLAIN)
        if self.how == "elsewhere":
            return Answer(307, headers={"location": self.elsewhere})
        if method == "initialize":
            made = f"session-{len(self.heard)}"
            self.sessions.add(made)
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
            return reply(message, {"protocolVersion": "2025-06-18", **about}, **{"mcp-session-id": made})
        if method == "server/discover" or (session not in self.sessions and method):
            return Answer(404, b"no such session", PLAIN)
        if "id" not in message:
            return Answer(202)
        if method == "tools/list":
            return reply(message, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        return self.call(message)

    def call(self, message: dict[str, Any]) -> Answer:
        self.calls += 1
        if self.how == "silent":
            self.over.wait()
        if self.how == "refused":
            error = {"code": -32000, "message": f"quota; token {TOKEN}"}
            body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
            return Answer(429, json.dumps(body).encode(), JSON)
        if self.how in WRONG:
            return WRONG[self.how]
        text = "x" * 300_000 if self.how == "big" else str(message["params"]["arguments"].get("text"))
        return reply(message, {"content": [{"type": "text", "text": text}]})


def reply(message: dict[str, Any], result: dict[str, Any], **headers: str) -> Answer:
    body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    return Answer(200, json.dumps(body).encode(), JSON, headers)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.over.set()


async def test_tools_are_called_with_the_headers_and_the_session_is_ended(
    server: Server, tmp_path: Path
) -> None:
    async with server.bench(tmp_path) as table:
        assert await table.ready() == ()
        assert (await table.call("h__echo", text="hello")).text == "hello"
        assert {headers["authorization"] for _, headers in server.heard} == {f"Bearer {TOKEN}"}
        assert len(server.sessions) == 1
        # a session that the server forgot is begun again, and the call is made once
        server.sessions.clear()
        assert (await table.call("h__echo", text="again")).text == "again"
        assert server.calls == 2
    assert not server.sessions


async def test_a_refusal_is_told_with_its_status_and_without_the_token(
    server: Server, tmp_path: Path
) -> None:
    server.how = "locked"
    async with server.bench(tmp_path) as table:
        (line,) = await table.ready()
        assert line.startswith("MCP server h: missing, ")
        assert "HTTP 401 Unauthorized" in line
    server.how = "refused"
    async with server.bench(tmp_path) as table:
        await table.ready()
        outcome = await table.call("h__echo", text="x")
        assert outcome.status == "error"
        assert "quota; token *** (HTTP 429 Too Many Requests)" in outcome.text
        assert TOKEN not in outcome.text


async def test_an_answer_that_is_none_is_contained(server: Server, tmp_path: Path) -> None:
    async with server.bench(tmp_path, max_message_bytes=100_000) as table:
        await table.ready()
        for how, why in (
            ("big", "more than 100,000 bytes"),
            ("packed", "compressed"),
            ("html", "text/html"),
            ("broken", "HTTP 502 Bad Gateway"),
        ):
            server.how = how
            outcome = await table.call("h__echo", text="x")
            assert outcome.status == "unknown", how
            assert why in outcome.text
            server.how = "well"
            assert (await table.call("h__echo", text="fine again")).text == "fine again", how


async def test_a_silent_server_costs_the_limit_of_the_call(server: Server, tmp_path: Path) -> None:
    async with server.bench(tmp_path) as table:
        await table.ready()
        server.how = "silent"
        assert (await table.call("h__echo", timeout=0.3, text="x")).status == "timeout"
        server.how = "well"
        assert (await table.call("h__echo", text="there")).text == "there"


async def test_the_token_does_not_follow_a_redirect_elsewhere(server: Server, tmp_path: Path) -> None:
    with Signpost() as elsewhere:
        server.how, server.elsewhere = "elsewhere", elsewhere.url("/stolen?with=1")
        async with server.bench(tmp_path) as table:
            (line,) = await table.ready()
            assert f"Redirect to {elsewhere.url('/stolen')} not followed" in line
    assert server.heard, "the first place was asked"
    assert elsewhere.requests == []
