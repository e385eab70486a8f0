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


@dataclass
class Behaviour:
    """How the server answers, and what it heard. ``sessions``: those that it knows; ``how`` it answers
    calls."""

    how: str = "well"
    sessions: set[str] = field(default_factory=set)
    heard: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    calls: int = 0
    elsewhere: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """One endpoint with sessions that answers with plain JSON."""

    behaviour: Behaviour

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message.get("method", "")
        self.behaviour.heard.append((method, {name.lower(): value for name, value in self.headers.items()}))
        known = self.headers.get("mcp-session-id") in self.behaviour.sessions
        if self.behaviour.how == "locked":
            self.answer(401, b"who are you?", "text/plain")
        elif self.behaviour.how == "elsewhere":
            self.answer(307, b"", location=self.behaviour.elsewhere)
        elif method == "initialize":
            session = f"session-{len(self.behaviour.heard)}"
            self.behaviour.sessions.add(session)
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "h", "version": "1"},
            }
            self.reply(message, result, {"mcp-session-id": session})
        elif method == "server/discover" or (not known and method):
            self.answer(404, b"no such session", "text/plain")
        elif "id" not in message:
            self.answer(202, b"")
        elif method == "tools/list":
            self.reply(message, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        else:
            self.call(message)

    def call(self, message: dict[str, Any]) -> None:
        self.behaviour.calls += 1
        match self.behaviour.how:
            case "big":
                self.reply(message, {"content": [{"type": "text", "text": "x" * 300_000}]})
            case "packed":
                self.answer(200, gzip.compress(b"x" * 1_000_000), encoding="gzip")
            case "silent":
                self.behaviour.over.wait()
            case "broken":
                self.answer(502, b"the machine behind me is away", "text/plain")
            case "html":
                self.answer(200, b"<html>a proxy's page</html>", "text/html")
            case "refused":
                body = {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "error": {"code": -32000, "message": f"quota; token {TOKEN}"},
                }
                self.answer(429, json.dumps(body).encode())
            case _:
                self.reply(
                    message,
                    {"content": [{"type": "text", "text": str(message["params"]["arguments"].get("text"))}]},
                )

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        self.behaviour.sessions.discard(self.headers.get("mcp-session-id", ""))
        self.answer(204, b"")

    def reply(
        self, message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        self.answer(
            200,
            json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode(),
            **(headers or {}),
        )

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


def config(behaviour: Behaviour) -> dict[str, Any]:
    return {"url": behaviour.url, "headers": {"Authorization": "Bearer ${TOKEN}"}}


async def test_tools_are_called_with_the_headers_and_the_session_is_ended(
    server: Behaviour, tmp_path: Path
) -> None:
    async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
        assert await table.ready() == ()
        assert (await table.call("h__echo", text="hello")).text == "hello"
        assert {headers["authorization"] for _, headers in server.heard} == {f"Bearer {TOKEN}"}
        assert len(server.sessions) == 1
    assert not server.sessions


async def test_a_refusal_is_told_with_its_status_and_without_the_token(
    server: Behaviour, tmp_path: Path
) -> None:
    server.how = "locked"
    async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
        (line,) = await table.ready()
        assert line.startswith("MCP server h: missing, ")
        assert "HTTP 401 Unauthorized" in line
        server.how = "refused"
    async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
        await table.ready()
        outcome = await table.call("h__echo", text="x")
        assert outcome.status == "error"
        assert "quota; token *** (HTTP 429 Too Many Requests)" in outcome.text
        assert TOKEN not in outcome.text


async def test_a_forgotten_session_is_begun_again_and_the_call_is_made_once(
    server: Behaviour, tmp_path: Path
) -> None:
    async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
        await table.ready()
        server.sessions.clear()
        assert (await table.call("h__echo", text="again")).text == "again"
        assert server.calls == 1


@pytest.mark.parametrize(
    ("how", "status", "why"),
    [
        ("big", "unknown", "more than 100,000 bytes"),
        ("packed", "unknown", "compressed"),
        ("html", "unknown", "text/html"),
        ("broken", "unknown", "HTTP 502 Bad Gateway"),
    ],
)
async def test_an_answer_that_is_none_is_contained(
    how: str, status: str, why: str, server: Behaviour, tmp_path: Path
) -> None:
    async with bench(
        tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}, max_message_bytes=100_000
    ) as table:
        await table.ready()
        server.how = how
        outcome = await table.call("h__echo", text="x")
        assert outcome.status == status
        assert why in outcome.text
        server.how = "well"
        assert (await table.call("h__echo", text="fine again")).text == "fine again"


async def test_a_silent_server_costs_the_limit_of_the_call(server: Behaviour, tmp_path: Path) -> None:
    async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
        await table.ready()
        server.how = "silent"
        assert (await table.call("h__echo", timeout=0.3, text="x")).status == "timeout"
        server.how = "well"
        assert (await table.call("h__echo", text="there")).text == "there"


async def test_the_token_does_not_follow_a_redirect_to_another_place(
    server: Behaviour, tmp_path: Path
) -> None:
    with Signpost() as elsewhere:
        server.how, server.elsewhere = "elsewhere", elsewhere.url("/stolen?with=1")
        async with bench(tmp_path, {"h": config(server)}, environment={"TOKEN": TOKEN}) as table:
            (line,) = await table.ready()
            assert f"Redirect to {elsewhere.url('/stolen')} not followed" in line
    assert server.heard, "the first place was asked"
    assert elsewhere.requests == []
