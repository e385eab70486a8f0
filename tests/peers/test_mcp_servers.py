"""Real third-party MCP servers: listed, called, killed during a call, reconnected.

Two of them speak the protocol as it was in 2025, with a handshake and sessions; ``mcp-server-time`` speaks
the newest, without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.tools.runner import UNKNOWN_EFFECT
from tests.helpers.mcp_bench import Bench, bench
from tests.helpers.processes import alive, children
from tests.helpers.waiting import until_so
from tests.peers import mcp_servers

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

PATIENT = {"start_timeout": 60, "connect_timeout": 60}


async def status_of(table: Bench, wanted: str, number: int = 0) -> None:
    """Wait until a server has this status."""
    await until_so(lambda: table.servers.servers[number].status == wanted, wanted)


async def test_all_three_are_listed_in_parallel_and_end_with_their_agent(tmp_path: Path) -> None:
    before = children()
    servers = {
        "files": mcp_servers.filesystem(tmp_path),
        "all": mcp_servers.everything(),
        "time": mcp_servers.time(),
    }
    async with bench(tmp_path, servers, **PATIENT) as table:
        assert await table.ready() == ()
        assert {"files__read_text_file", "all__echo", "all__get-sum", "time__convert_time"} <= set(
            table.names
        )
        assert len(children() - before) == 3
        for spec in table.runner.specs:
            assert spec.approval == "ask"
            assert spec.effect == "unsafe"
            assert spec.parameters["type"] == "object"
            json.dumps(spec.parameters)
    assert children() <= before


async def test_files_are_written_and_read_within_the_roots(tmp_path: Path) -> None:
    room, outside = tmp_path / "room", tmp_path / "secret.txt"
    room.mkdir()
    outside.write_text("not for the server")
    config = mcp_servers.filesystem(tmp_path) | {"roots": [str(room)], "trust": True}
    async with bench(tmp_path, {"files": config}, **PATIENT) as table:
        await table.ready()
        effects = {spec.name: (spec.effect, spec.approval) for spec in table.runner.specs}
        assert effects["files__read_text_file"] == ("pure", "never")
        assert effects["files__write_file"] == ("idempotent", "ask")
        assert effects["files__move_file"] == ("unsafe", "ask")
        written = await table.call("files__write_file", path=str(room / "a.txt"), content="one\ntwo\n")
        assert written.status == "ok"
        assert (room / "a.txt").read_text() == "one\ntwo\n"
        read = await table.call("files__read_text_file", path=str(room / "a.txt"), head=1)
        assert (read.status, read.text) == ("ok", "one")
        denied = await table.call("files__read_text_file", path=str(outside))
        assert denied.status == "error"
        assert "Access denied" in denied.text
        assert "not for the server" not in denied.text
        wrong = await table.call("files__read_text_file")
        assert wrong.status == "error"
        assert "path" in wrong.text


async def test_every_kind_of_result_of_server_everything(tmp_path: Path) -> None:
    mine = dict(os.environ) | {"EVERYTHING_TOKEN": "tok-of-the-server"}
    config = mcp_servers.everything() | {"env": {"A_TOKEN": "${EVERYTHING_TOKEN}"}}
    async with bench(tmp_path, {"all": config}, environment=mine, **PATIENT) as table:
        await table.ready()
        assert (await table.call("all__get-sum", a=2, b=40)).text == "The sum of 2 and 40 is 42."
        image = await table.call("all__get-tiny-image")
        assert image.content[0]["image_url"]["url"].startswith("data:image/png;base64,")
        weather = await table.call("all__get-structured-content", location="Chicago")
        assert weather.text.count("temperature") == 1, "what is said twice is passed on once"
        assert "[resource " in (await table.call("all__get-resource-links", count=2)).text
        assert (
            "[resource demo://" in (await table.call("all__get-resource-reference", resourceType="Text")).text
        )
        assert tmp_path.resolve().as_uri() in (await table.call("all__get-roots-list")).text
        environment = (await table.call("all__get-env")).text
        assert '"A_TOKEN": "***"' in environment
        assert "tok-of-the-server" not in environment
        assert not [name for name in mine if "API_KEY" in name and f'"{name}"' in environment]


async def test_a_server_of_the_newest_protocol(tmp_path: Path) -> None:
    async with bench(tmp_path, {"time": mcp_servers.time()}, **PATIENT) as table:
        await table.ready()
        told = await table.call(
            "time__convert_time", source_timezone="Europe/Oslo", time="12:00", target_timezone="Asia/Tokyo"
        )
        assert "+09:00" in told.text
        assert (await table.call("time__get_current_time", timezone="Nowhere/Else")).status == "error"


async def test_killed_in_mid_call_and_connected_again(tmp_path: Path) -> None:
    before = children()
    async with bench(tmp_path, {"all": mcp_servers.everything()}, **PATIENT) as table:
        await table.ready()
        (pid,) = children() - before
        working = asyncio.create_task(
            table.call("all__trigger-long-running-operation", timeout=60, duration=30, steps=3)
        )
        await asyncio.sleep(0.5)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        outcome = await working
        assert time.monotonic() - began < 2
        assert outcome.status == "unknown"
        assert outcome.text.startswith("MCP server all is gone: the process ended with signal SIGKILL")
        assert UNKNOWN_EFFECT in outcome.text
        assert (await table.call("all__echo", message="back")).text == "Echo: back"
        (other,) = children() - before
        assert other != pid
    assert not alive(other)


async def test_killed_between_turns_and_connected_again(tmp_path: Path) -> None:
    before = children()
    async with bench(tmp_path, {"time": mcp_servers.time()}, **PATIENT) as table:
        await table.ready()
        named = table.names
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        await status_of(table, "down")
        assert await table.ready() == ()
        assert table.names == named
        assert "UTC" in (await table.call("time__get_current_time", timezone="Etc/UTC")).text


async def test_a_call_that_runs_out_of_time_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with bench(tmp_path, {"all": mcp_servers.everything()}, **PATIENT) as table:
        await table.ready()
        outcome = await table.call("all__trigger-long-running-operation", timeout=0.3, duration=30, steps=30)
        assert outcome.status == "timeout"
        assert (await table.call("all__echo", message="still there")).text == "Echo: still there"


async def test_streamable_http(tmp_path: Path) -> None:
    """Listed, called, killed in mid-call, away, back with another memory."""
    with mcp_servers.EverythingOverHttp() as server:
        async with bench(tmp_path, {"far": {"url": server.url}}, **PATIENT) as table:
            assert await table.ready() == ()
            assert (await table.call("far__echo", message="over http")).text.count("Echo: over http") == 1
            assert (await table.call("far__get-tiny-image")).content
            working = asyncio.create_task(
                table.call("far__trigger-long-running-operation", timeout=60, duration=30, steps=3)
            )
            await asyncio.sleep(0.5)
            server.kill()
            outcome = await working
            assert outcome.status == "unknown"
            assert "MCP server far is gone" in outcome.text
            away = await table.call("far__echo", message="?")
            assert away.status == "error"
            assert "is not there" in away.text
            assert "Nothing was run" in away.text
            server.start()
            await asyncio.sleep(2.1)
            assert "Echo: back" in (await table.call("far__echo", message="back")).text
            server.kill()
            server.start()
            # a session that the server forgot is started again
            forgotten = await table.call("far__echo", message="you do not know me")
            assert "Echo: you do not know me" in forgotten.text


def test_a_whole_turn_with_two_servers(tmp_path: Path) -> None:
    (tmp_path / "when.txt").write_text("12:00")
    asked = {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    reads = tools(call("files__read_text_file", {"path": str(tmp_path / "when.txt")}))
    script = [reads, tools(call("time__convert_time", asked)), text("21:00 in Tokyo")]
    servers = {
        "files": mcp_servers.filesystem(tmp_path) | {"trust": True},
        "time": mcp_servers.time() | {"approval": "never"},
    }
    options = {"home": tmp_path / "home", "workdir": tmp_path, "settings": {"mcp": PATIENT}}
    agent = Agent(ScriptedModel(script), mcp=servers, **options)
    try:
        result = agent.run_conversation("When is that in Tokyo?")
    finally:
        agent.close()
    rows = [row["content"] for row in result.messages if row["role"] == "tool"]
    assert rows[0] == "12:00"
    assert "T21:00:00+09:00" in rows[1]
    assert result.final_response == "21:00 in Tokyo"
