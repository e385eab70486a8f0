"""Ports share the client of their SDK where all that it is made of is the same, and nowhere else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent.runtime.registry import CLIENTS
from fsm_agent.testing import ScriptedServer, repeat, text
from tests.helpers.keeper import Keeper
from tests.helpers.ports import CHAT, KEY, WIRES, Seen, Wire
from tests.providers.test_connections import ask


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_ports_that_are_alike_share_a_client_until_the_last_one_leaves(wire: Wire) -> None:
    async def play(server: ScriptedServer) -> None:
        first, second = (wire.make(server.url, KEY) for _ in range(2))
        client = await first.ready()
        assert await second.ready() is client
        assert await first.ready() is client
        await first.aclose()
        assert not client.is_closed()
        assert await second.ready() is client
        await second.aclose()
        assert client.is_closed()
        assert await first.ready() is not client
        await first.aclose()

    with ScriptedServer(repeat(text("ok"))) as server:
        asyncio.run(play(server))


OTHERS: list[Callable[[str, pytest.MonkeyPatch], Any]] = [
    lambda url, _: CHAT.make(url, "another key"),
    lambda url, _: CHAT.make(f"{url}/else", KEY),
    lambda url, _: CHAT.make(url, KEY, headers={"X-Who": "somebody"}),
    lambda url, _: CHAT.make(url, KEY, read=7.0),
    lambda url, env: env.setenv("HTTP_PROXY", "http://127.0.0.1:9") or CHAT.make(url, KEY),
    lambda url, env: env.setenv("OPENAI_ORG_ID", "org") or CHAT.make(url, KEY),
]


@pytest.mark.parametrize(
    "other", OTHERS, ids=["key", "address", "headers", "timeout", "proxy", "organisation"]
)
def test_what_is_made_of_other_things_is_shared_with_nobody(
    other: Callable[[str, pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        one = CHAT.make("http://127.0.0.1:9/v1", KEY)
        client = await one.ready()
        two = other("http://127.0.0.1:9/v1", monkeypatch)
        assert await two.ready() is not client
        await one.aclose()
        await two.aclose()

    asyncio.run(play())


def test_a_port_that_is_rebuilt_leaves_the_client_to_the_others() -> None:
    async def play() -> None:
        shaken, steady, late = (CHAT.make("http://127.0.0.1:9/v1", KEY) for _ in range(3))
        client = await shaken.ready()
        assert await steady.ready() is client
        await shaken.rebuild()
        assert not client.is_closed()
        assert await late.ready() is not client
        assert await shaken.ready() is await late.ready()
        assert await steady.ready() is client
        for port in (shaken, steady, late):
            await port.aclose()
        assert client.is_closed()

    asyncio.run(play())


def test_no_port_tells_what_a_server_had_it_remember() -> None:
    async def play(server: Keeper) -> None:
        port = CHAT.make(server.url, KEY)
        await ask(port)
        await ask(port)
        assert (server.requests, server.cookies) == (2, [])
        await port.aclose()

    with Keeper(secure=False).serving() as server:
        asyncio.run(play(server))


def test_a_client_that_nobody_has_any_more_is_forgotten() -> None:
    async def play() -> None:
        port = CHAT.make("http://127.0.0.1:9/v1", KEY)
        await port.ready()
        mine = [key for key in CLIENTS if key[0] is asyncio.get_running_loop()]  # type: ignore[index]
        assert len(mine) == 1
        del port
        gc.collect()
        assert mine[0] not in CLIENTS

    asyncio.run(play())


def test_another_loop_has_a_client_of_its_own() -> None:
    port = CHAT.make("http://127.0.0.1:9/v1", KEY)

    async def play() -> Any:
        return await port.ready()

    assert asyncio.run(play()) is not asyncio.run(play())


def test_a_key_that_is_changed_goes_out_with_the_next_request() -> None:
    async def play(server: ScriptedServer) -> None:
        one, two = (CHAT.make(server.url, KEY) for _ in range(2))
        await one.call(CHAT.request(), Seen())
        two.use_key("sk-other")
        await two.call(CHAT.request(), Seen())
        await one.call(CHAT.request(), Seen())
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == [f"Bearer {KEY}", "Bearer sk-other", f"Bearer {KEY}"]
        await one.aclose()
        await two.aclose()

    with ScriptedServer(repeat(text("ok"))) as server:
        asyncio.run(play(server))
