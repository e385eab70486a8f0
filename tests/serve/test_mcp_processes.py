"""``fsm-agent mcp serve`` as a process of its own, asked by the official SDK's client over both transports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from fsm_agent.serve.mcp import TASKS
from fsm_agent.sessions.store import Store
from tests.helpers.processes import environment, ran
from tests.helpers.waiting import until
from tests.serve.test_mcp import ERAS, Person, words

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
APP = '''
import os
from pathlib import Path
from fsm_agent import Agent, tool

@tool(approval="ask")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    with Path(os.environ["PAID"]).open("a") as file:
        file.write(f"{invoice}\\n")
    return f"paid {invoice}"

@tool(effect="pure")
def wait(path: str) -> str:
    """Wait for a file."""
    import time
    while not Path(path).exists():
        time.sleep(0.01)
    return "it is there"

def make_agent():
    return Agent("offline:demo", toolsets=["skills"], tools=[pay, wait])
'''


class Place:
    """A folder with the agent's module, and how to start its server there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paid = folder, folder / "paid"
        (folder / "app.py").write_text(APP)
        skill = folder / "home" / "skills" / "invoices" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: invoices\ndescription: How invoices are paid\n---\nPay on Fridays.\n")
        self.env = environment(
            FSM_AGENT_HOME=str(folder / "home"), PAID=str(self.paid), PYTHONPATH=_path(folder)
        )

    def command(self, *options: str) -> list[str]:
        words = ["mcp", "serve", "--app", "app:make_agent", "--offer", "pay", "--offer", "wait", *options]
        return [sys.executable, "-m", "fsm_agent", *words]

    @contextmanager
    def http(self, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
        """The process, its address, and its token."""
        said = self.folder / "said"
        with said.open("w") as log:
            process = subprocess.Popen(
                self.command("--http", *options), env=self.env, cwd=self.folder, stderr=log, text=True
            )
        try:
            until(lambda: "token" in said.read_text() or process.poll() is not None, "a server")
            found = re.search(r"(http://\S+)  token (\S+)", said.read_text())
            assert found, said.read_text()
            yield process, found[1], found[2]
        finally:
            process.kill()
            process.wait()
            assert "Traceback" not in said.read_text(), said.read_text()


def _path(folder: Path) -> str:
    return os.pathsep.join((str(folder), str(ROOT), str(ROOT / "states")))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def client(place: Place, transport: str, **options: Any) -> AsyncIterator[Client]:
    """A client of a server that is started for it."""
    if transport == "stdio":
        first, *rest = place.command()
        parameters = StdioServerParameters(command=first, args=rest, env=place.env, cwd=place.folder)
        async with Client(stdio_client(parameters, errlog=sys.__stderr__), **options) as made:
            yield made
        return
    with place.http() as (_, url, token):
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as web,
            Client(streamable_http_client(f"{url}/mcp", http_client=web), **options) as made,
        ):
            yield made


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_official_client_asks_calls_and_is_asked(place: Place, transport: str, era: str) -> None:
    person = Person({"decision": "once"}, None, {"decision": "once"})
    moves: list[str | None] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        moves.append(message)

    async with client(place, transport, mode=era, elicitation_callback=person.elicit) as made:
        assert [one.name for one in (await made.list_tools()).tools] == ["ask", "pay", "wait"]
        assert [one.name for one in (await made.list_prompts()).prompts] == ["invoices"]
        assert words(await made.call_tool("pay", {"invoice": 7})) == "paid 7"
        refused = await made.call_tool("pay", {"invoice": 8})
        assert refused.is_error
        told = await made.call_tool("ask", {"message": "Please call pay(9)."}, progress_callback=heard)
        assert not told.is_error, words(told)
    assert place.paid.read_text().split() == ["7", "9"]
    assert "runs pay" in moves


def line(method: str = "", key: Any = None, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, **({} if key is None else {"id": key}), "params": params}
    return json.dumps(message).encode() + b"\n"


HELLO = line(
    "initialize", 1, protocolVersion=TASKS, capabilities={}, clientInfo={"name": "rude", "version": "1"}
)


def test_what_is_no_message_is_answered_and_costs_nothing_else(place: Place) -> None:
    process = subprocess.Popen(
        place.command(), env=place.env, cwd=place.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    huge = b'{"jsonrpc": "2.0", "id": 9, "method": "' + b"x" * 17_000_000 + b'"}\n'
    said, errors = process.communicate(
        HELLO
        + line("notifications/initialized")
        + b"no json\n"
        + b'{"jsonrpc": "2.0"}\n'
        + b"[" * 10_000
        + b"\n"
        + huge
        + line("no/such/method", 2)
        + line("tools/call", 3, name="nothing")
        + line("tools/call", 4, name="ask", arguments=[1])
        + b'{"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": 5}\n'
        + line("tools/call", 5, name="wait", arguments={"path": str(place.folder)}),
        timeout=60,
    )
    answers = [json.loads(row) for row in said.splitlines()]
    codes = [one["error"]["code"] for one in answers if "error" in one and one["id"] is None]
    assert codes == [-32700, -32600, -32700, -32600]
    by_id = {one["id"]: one for one in answers if one["id"] is not None}
    assert by_id[2]["error"]["code"] == -32601
    assert by_id[3]["error"] == {"code": -32602, "message": "Unknown tool: nothing"}
    assert by_id[4]["error"]["code"] == -32602
    assert by_id[6]["error"]["code"] == -32600, "a client that waits for this id is answered"
    assert process.returncode == 0
    assert b"Traceback" not in errors


def turns_of(place: Place) -> list[tuple[str, str | None]]:
    """(id, how it ended) of each turn."""
    with closing(Store(place.folder / "home")) as store:
        return [(row[0], row[1]) for row in store.database.select("SELECT id, exit FROM turns")]


def test_a_turn_whose_client_left_is_continued_by_the_next_server(place: Place) -> None:
    there = place.folder / "there"
    call = line("tools/call", 2, name="wait", arguments={"path": str(there)})
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(place.command(), env=place.env, cwd=place.folder, **pipes) as process:
        assert process.stdin is not None
        process.stdin.write(HELLO + line("notifications/initialized") + call)
        until(lambda: (place.folder / "home" / "sessions.db").exists() and bool(turns_of(place)), "a turn")
        process.kill()
    [(turn, ended)] = turns_of(place)
    assert ended is None
    there.touch()
    with place.http():
        until(lambda: turns_of(place) == [(turn, "text_response")], "the end of the turn")


async def test_over_http_the_guard_of_the_server_stands_before_the_protocol(place: Place) -> None:
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with place.http() as (_, url, token):
        mine = {**accept, "authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(timeout=60) as web:

            async def post(content: bytes, headers: dict[str, str]) -> httpx2.Response:
                return await web.post(f"{url}/mcp", content=content, headers=headers)

            assert (await post(HELLO, accept)).status_code == 401
            assert (await post(HELLO, {**accept, "authorization": "Bearer wrong"})).status_code == 401
            assert (await post(HELLO, {**mine, "host": "evil.example.org"})).status_code == 421
            assert (await post(HELLO, {**mine, "origin": "https://evil.example.org"})).status_code == 403
            assert (await post(b"x" * 17_000_000, mine)).status_code == 413
            malformed = await post(b"{no json", mine)
            assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, -32700)
            begun = await post(HELLO, mine)
            session = begun.headers["mcp-session-id"]
            for wrong in ({"mcp-session-id": "another"}, {}):
                assert (await post(line("tools/list", 2), {**mine, **wrong})).status_code in (400, 404)
            await post(line("notifications/initialized"), {**mine, "mcp-session-id": session})


async def test_a_client_whose_stream_broke_gets_the_result_on_another(place: Place) -> None:
    there = place.folder / "there"
    with place.http() as (_, url, token):
        headers = {
            "accept": "application/json, text/event-stream", "authorization": f"Bearer {token}",
            "mcp-protocol-version": TASKS, "content-type": "application/json",
        }  # fmt: skip
        async with httpx2.AsyncClient(timeout=60, headers=headers) as web:
            begun = await web.post(f"{url}/mcp", content=HELLO)
            mine = {"mcp-session-id": begun.headers["mcp-session-id"]}
            await web.post(f"{url}/mcp", content=line("notifications/initialized"), headers=mine)
            call = line("tools/call", 2, name="wait", arguments={"path": str(there)})
            async with web.stream("POST", f"{url}/mcp", content=call, headers=mine) as stream:
                first = [row async for row in _until_blank(stream)]
            [last] = [row.removeprefix("id: ") for row in first if row.startswith("id: ")]
            there.touch()
            rest = {**mine, "last-event-id": last}
            async with web.stream("GET", f"{url}/mcp", headers=rest) as stream:
                while not (
                    data := [row[6:] async for row in _until_blank(stream) if row.startswith("data: {")]
                ):
                    pass
    assert json.loads(data[0])["result"]["content"][0]["text"] == "it is there"


async def _until_blank(stream: httpx2.Response) -> AsyncIterator[str]:
    """The lines of one event."""
    async for row in _LINES.setdefault(stream, stream.aiter_lines()):
        if not row.strip():
            return
        yield row


_LINES: dict[httpx2.Response, AsyncIterator[str]] = {}


def add_key(place: Place, name: str) -> str:
    command = ["-m", "fsm_agent", "serve", "keys", "add", name, "--scope", "run"]
    return ran(*command, env=place.env, cwd=place.folder).stdout.strip()


async def test_a_key_does_what_its_scopes_allow_in_its_own_sessions(place: Place) -> None:
    person = Person()
    with place.http() as (_, url, _token):
        for name in ("Ann", "Bob"):
            key = add_key(place, name)
            async with (
                httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as web,
                Client(
                    streamable_http_client(f"{url}/mcp", http_client=web), elicitation_callback=person.elicit
                ) as made,
            ):
                waits = await made.call_tool("pay", {"invoice": 7})
                assert waits.is_error
                assert "this key lacks the scope approve" in words(waits)
                assert not person.asked
                told = await made.call_tool("ask", {"message": "Hello.", "session": "the-one"})
                if name == "Bob":
                    assert (told.is_error, words(told)) == (True, "no such session")
                else:
                    assert not told.is_error
    assert not place.paid.exists()
