"""Real servers: clients that drop, servers that are killed, servers that leave."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.serve import measure
from fsm_agent.testing import ScriptedServer, call, slow, text, tools
from tests.dispatch.app import lines
from tests.dispatch.crew import WorkerProcess
from tests.helpers.command_line import Cli
from tests.helpers.postgres_server import address, programs, running
from tests.helpers.waiting import until, until_so
from tests.serve.processes import ServerProcess, key_of, servers, text_of, told

pytestmark = pytest.mark.slow
WORDS = " ".join(f"word{number}" for number in range(40))


def model_at(server: ScriptedServer) -> tuple[str, ...]:
    return "--model", "local:m", "--base-url", server.url, "--set", "prompt.context_files=false"


async def begun(client: Any, words: str = "go") -> str:
    answer = await client.post("/api/turns", json={"content": words})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["turn"])


async def test_a_client_that_drops_and_comes_back_gets_every_event_once(tmp_path: Path, home: Path) -> None:
    with (
        ScriptedServer([slow(WORDS, 0.02)]) as model,
        ServerProcess(tmp_path, home, *model_at(model)) as server,
    ):
        async with server.client() as client:
            turn = await begun(client)
            got: list[dict[str, Any]] = []
            while not got or got[-1]["event"] != "end":
                got += await told(client, turn, got[-1]["id"] if got else "", most=7)
            again = await told(client, turn)
    assert [one.get("id") for one in got] == [one.get("id") for one in again]
    assert text_of(got).strip() == WORDS == got[-1]["data"]["final_response"]
    assert model.completions == 1


async def test_a_server_is_killed_while_the_model_speaks(tmp_path: Path, home: Path) -> None:
    key = key_of(home)
    with ScriptedServer([replace(text("word0 word1"), end="hold"), text(WORDS)]) as model:
        with ServerProcess(tmp_path, home, *model_at(model)) as server:
            async with server.client(key) as client:
                turn = await begun(client)
                got: list[dict[str, Any]] = []
                while text_of(got).strip() != "word0 word1":
                    got += await told(client, turn, got[-1]["id"] if got else "", most=1)
            server.kill()
        with ServerProcess(tmp_path, home, *model_at(model)) as server:
            async with server.client(key) as client:
                got += await told(client, turn, got[-1]["id"])
    assert [one["event"] for one in got].count("voided") == 1
    assert text_of(got).strip() == WORDS == got[-1]["data"]["final_response"]
    assert model.completions == 2


async def test_a_server_is_killed_while_a_tool_runs(tmp_path: Path, home: Path) -> None:
    key, script = key_of(home), [tools(call("put", {"key": "x"}, "c1")), text("done")]
    slow_tool = {"DISPATCH_SLOW": "-3"}
    with ScriptedServer(script) as model:
        options = *model_at(model), "--tool", "tests.dispatch.app:put"
        with ServerProcess(tmp_path, home, *options, **slow_tool) as server:
            async with server.client(key) as client:
                turn = await begun(client)
                got: list[dict[str, Any]] = []
                while not any(one["event"] == "tool_start" for one in got):
                    got += await told(client, turn, got[-1]["id"] if got else "", most=1)
                await until_so(lambda: bool(lines(tmp_path, "puts")), "the tool")
            server.kill()
        with ServerProcess(tmp_path, home, *options, **slow_tool) as server:
            async with server.client(key) as client:
                got += await told(client, turn, got[-1]["id"])
                whole = await told(client, turn)
    assert got[-1]["data"]["final_response"] == "done"
    assert len(lines(tmp_path, "puts")) == 1
    assert [one["data"]["values"]["status"] for one in whole if one["event"] == "tool_complete"] == [
        "unknown"
    ]


@pytest.mark.parametrize("dies", ["before", "in"])
async def test_a_server_is_killed_before_or_in_the_turn_of_the_next_agent(
    dies: str, tmp_path: Path, home: Path
) -> None:
    key, app = key_of(home), ("--app", "tests.serve.handing_app:make_agent")
    with ServerProcess(tmp_path, home, *app, HANDING_DIES=dies) as server:
        async with server.client(key) as client:
            turn = await begun(client)
            got: list[dict[str, Any]] = []
            with suppress(httpx2.TransportError):
                while True:
                    got += await told(client, turn, got[-1]["id"] if got else "", most=1)
        assert await asyncio.to_thread(server.process.wait, 60) == -signal.SIGKILL
    query = "SELECT ended IS NULL, exit FROM turns ORDER BY number"
    with closing(sqlite3.connect(home / "sessions.db")) as file:
        left = file.execute(query).fetchall()
    assert left == [(0, "handed_over"), (1, None)][: 1 + (dies == "in")]
    with ServerProcess(tmp_path, home, *app) as server:
        async with server.client(key) as client:
            got += await told(client, turn, got[-1]["id"])
            whole = await told(client, turn)
            with closing(sqlite3.connect(home / "sessions.db")) as file:
                until(lambda: not file.execute("SELECT * FROM queued").fetchall(), "a sweep")
    assert got[-1]["data"]["final_response"] == "I am the other"
    told_once = [
        one["id"] for one in got[:-1] if one["event"] != "voided"
    ]  # which has the id that it goes back to
    assert len(set(told_once)) == len(told_once)
    assert len({one["data"]["turn"] for one in whole}) == 2
    with closing(sqlite3.connect(home / "sessions.db")) as file:
        assert file.execute(query).fetchall() == [(0, "handed_over"), (0, "text_response")]


async def test_a_server_that_leaves_hands_its_turn_over(tmp_path: Path, home: Path) -> None:
    key, script = key_of(home), [slow(tools(call("put", {"key": "x"}, "c1")), 0.5), text("done")]
    with ScriptedServer(script) as model:
        options = *model_at(model), "--tool", "tests.dispatch.app:put"
        with ServerProcess(tmp_path, home, *options) as server:
            async with server.client(key) as client:
                turn = await begun(client)
                got = await told(client, turn, most=3)
                leaving = asyncio.create_task(asyncio.to_thread(server.leave))
                got += [one for one in await told(client, turn, got[-1]["id"]) if "id" in one]
            assert await leaving == 0, server.said
        assert not lines(tmp_path, "puts")
        with ServerProcess(tmp_path, home, *options) as server:
            async with server.client(key) as client:
                got += await told(client, turn, got[-1]["id"])
    assert got[-1]["data"]["final_response"] == "done"
    assert len({one["id"] for one in got[:-1]}) == len(got) - 1
    assert model.completions == 2
    assert len(lines(tmp_path, "puts")) == 1
    assert "Traceback" not in server.said


@pytest.mark.skipif(programs() is None, reason="no PostgreSQL")
async def test_two_servers_of_one_database(tmp_path: Path) -> None:
    script = [replace(text("word0 word1"), end="hold"), text(WORDS), text("more")]
    with running() as postgres, ScriptedServer(script) as model:
        url = address(postgres.folder)
        key = key_of(tmp_path / "home", database_url=url)
        one, two = (
            ServerProcess(tmp_path, tmp_path / f"home-{n}", *model_at(model), database_url=url)
            for n in (1, 2)
        )
        with servers(one, two):
            async with one.client(key) as here, two.client(key) as there:
                turn = await begun(here)
                got: list[dict[str, Any]] = []
                while text_of(got).strip() != "word0 word1":
                    got += await told(here, turn, got[-1]["id"] if got else "", most=1)
                assert (await there.get(f"/api/turns/{turn}")).json()["status"] == "running"
                one.kill()
                got += await told(there, turn, got[-1]["id"])
                assert text_of(got).strip() == WORDS == got[-1]["data"]["final_response"]
                session = got[-1]["data"]["session_id"]
                again = await there.post(f"/api/sessions/{session}/turns", json={"content": "more"})
                result = await there.get(again.json()["result"])
                assert result.json()["final_response"] == "more"
            assert model.completions == 3


async def test_a_server_of_workers_runs_nothing_and_tells_everything(tmp_path: Path, home: Path) -> None:
    key = key_of(home)
    with ServerProcess(tmp_path, home, "--workers", "--app", "tests.dispatch.app:make_agent") as server:
        worker = WorkerProcess(tmp_path, home, slow=0.1).serves()
        try:
            async with server.client(key) as client:
                turn = await begun(client, "k1")
                got = await told(client, turn, most=4)
                got += await told(client, turn, got[-1]["id"])
                whole = await told(client, turn)
        finally:
            worker.end()
    assert got[-1]["data"]["final_response"] == "answer to k1" == text_of(got)
    assert [one.get("id") for one in got] == [one.get("id") for one in whole]
    completed = [one["data"]["values"]["name"] for one in got if one["event"] == "tool_complete"]
    assert completed == ["look", "put"]
    assert {one["pid"] for one in lines(tmp_path, "puts")} == {worker.process.pid}


def test_200_clients_stream_at_once(tmp_path: Path) -> None:
    report = measure(200, 10.0)
    assert report.lost == 0
    assert report.turns >= 200
    assert report.memory_end_mb < report.memory_early_mb + 200


async def test_connections_that_send_nothing_are_closed(tmp_path: Path, home: Path) -> None:
    with ScriptedServer([text("hello")]) as model, ServerProcess(tmp_path, home, *model_at(model)) as server:
        port = int(server.url.rpartition(":")[2])
        slow_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for number, (_, writer) in enumerate(slow_ones):
            writer.write(b"GET /api/sessions HTTP/1.1\r\nhost: x" if number % 2 else b"")
        async with server.client() as client:
            turn = await begun(client)
            assert (await told(client, turn))[-1]["data"]["final_response"] == "hello"
        for reader, writer in slow_ones:
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000)
        with suppress(ConnectionResetError):  # it closes with bytes unread
            assert b" 400 " in (await reader.read()).splitlines()[0]
        writer.close()
        assert server.process.poll() is None
        assert "Traceback" not in server.said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "needs TLS"),
        (("--host", "0.0.0.0", "--insecure"), "needs keys, and there are none"),
        (("--tls-cert", "nothing.pem"), "TLS needs both files"),
        (("--cors", "https://a.example/path"), "no origin"),
        (("--cors", "*"), "no origin"),
    ],
)
def test_what_is_not_safe_is_not_served(cli: Cli, options: tuple[str, ...], said: str) -> None:
    assert said in cli.refused("serve", "--model", "offline:demo", *options)
