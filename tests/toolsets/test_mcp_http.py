"""MCP over HTTP against a server that does what it is told."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mcp_bench import bench
from tests.helpers.signpost import Signpost

pytestmark = pytest.mark.anyio

TOKEN = "tok-over-http-1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


PLAIN = "text/plain"
WRONG: dict[str, tuple[int, bytes, str, str]] = {
    "packed": (200, gzip.compress(b"x" * 1_000_000), "application/json", "gzip"),
    "broken": (502, b"the machine behind me is away", PLAIN, ""),
    "html": (200, b"<html>a proxy's page</html>", "text/html", ""),
}
"""Answers to a call that are none: status, body, type, encoding."""


@dataclass
class Behaviour:
    """How the server answers calls, and what it heard. ``sessions``: those that it knows."""

    how: str = "well"
    sessions: set[str] = field(default_factory=set)
    heard: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    calls: int = 0
    elsewhere: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def bench(self, home: Path, **limits: Any) -> Any:
        config = {"url": self.url, "headers": {"Authorization": "Bearer ${TOKEN}"}}
        return bench(home, {"h": config}, environment={"TOKEN": TOKEN}, **limits)


class Handler(BaseHTTPRequestHandler):
    """One endpoint with sessions that answers with plain JSON."""

    behaviour: Behaviour

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message.get("method", "")
        self.behaviour.heard.append((method, {name.lower(): value for name, value in self.headers.items()}))
        known = self.headers.get("mcp-session-id") in self.behaviour.sessions
        if self.behaviour.how == "locked":
            self.answer(401, b"who are you?", PLAIN)
        elif self.behaviour.how == "elsewhere":
            self.answer(307, b"", location=self.behaviour.elsewhere)
        elif method == "initialize":
            session = f"session-{len(self.behaviour.heard)}"
            self.behaviour.sessions.add(session)
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
            self.reply(message, {"protocolVersion": "2025-06-18", **about}, **{"mcp-session-id": session})
        elif method == "server/discover" or (not known and method):
            self.answer(404, b"no such session", PLAIN)
        elif "id" not in message:
            self.answer(202, b"")
        elif method == "tools/list":
            self.reply(message, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        else:
            self.call(message)

    def call(self, message: dict[str, Any]) -> None:
        self.behaviour.calls += 1
        said = str(message["params"]["arguments"].get("text"))
        match self.behaviour.how:
            case "silent":
                self.behaviour.over.wait()
            case "refused":
                error = {"code": -32000, "message": f"quota; token {TOKEN}"}
                body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                self.answer(429, json.dumps(body).encode())
            case how if how in WRONG:
                self.answer(*WRONG[how])
            case how:
                text = "x" * 300_000 if how == "big" else said
                self.reply(message, {"content": [{"type": "text", "text": text}]})

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        self.behaviour.sessions.discard(self.headers.get("mcp-session-id", ""))
        self.answer(204, b"")

    def reply(self, message: dict[str, Any], result: dict[str, Any], **headers: str) -> None:
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        self.answer(200, json.dumps(body).encode(), **headers)

    def answer(
        self, status: int, body: bytes, kind: str = "application/json", encoding: str = "", **headers: str
    ) -> None:
        self.send_response(status)
        named = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
        for name, value in (named | ({"Content-Encoding": encoding} if encoding else {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Behaviour]:
    behaviour = Behaviour()
    made = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"behaviour": behaviour}))
    made.daemon_threads = True
    behaviour.url = f"http://127.0.0.1:{made.server_port}/mcp"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield behaviour
    behaviour.over.set()
    made.shutdown()
    made.server_close()
    thread.join()


async def test_tools_are_called_with_the_headers_and_the_session_is_ended(
    server: Behaviour, tmp_path: Path
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
    server: Behaviour, tmp_path: Path
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


async def test_an_answer_that_is_none_is_contained(server: Behaviour, tmp_path: Path) -> None:
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


async def test_a_silent_server_costs_the_limit_of_the_call(server: Behaviour, tmp_path: Path) -> None:
    async with server.bench(tmp_path) as table:
        await table.ready()
        server.how = "silent"
        assert (await table.call("h__echo", timeout=0.3, text="x")).status == "timeout"
        server.how = "well"
        assert (await table.call("h__echo", text="there")).text == "there"


async def test_the_token_does_not_follow_a_redirect_elsewhere(server: Behaviour, tmp_path: Path) -> None:
    with Signpost() as elsewhere:
        server.how, server.elsewhere = "elsewhere", elsewhere.url("/stolen?with=1")
        async with server.bench(tmp_path) as table:
            (line,) = await table.ready()
            assert f"Redirect to {elsewhere.url('/stolen')} not followed" in line
    assert server.heard, "the first place was asked"
    assert elsewhere.requests == []
