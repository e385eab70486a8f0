"""Real servers: clients that drop, servers that are killed, servers that leave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import ScriptedServer, call, slow, text, tools
from tests.dispatch.app import lines
from tests.serve.processes import ServerProcess, key_of, text_of, told

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
                while not lines(tmp_path, "puts"):
                    await asyncio.sleep(0.01)
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
