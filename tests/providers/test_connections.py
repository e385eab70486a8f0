"""Connections belong to the process: ports of one event loop share them by origin, and the last one closes them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.connections import Connections
from fsm_agent.providers.sdk_port import tls
from fsm_agent.runtime.registry import CONNECTIONS
from fsm_agent.testing import ScriptedServer, repeat, text
from tests.helpers.keeper import Keeper
from tests.helpers.ports import CHAT, KEY, Seen
from tests.helpers.waiting import until_so


async def ask(port: Any) -> None:
    assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)


def pools(server: Keeper) -> int:
    """How many pools of connections to this server there are."""
    return sum(server.url.startswith(origin) for _, origin, _ in CONNECTIONS)


@pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])
def test_ports_share_connections_until_the_last_is_closed(secure: bool) -> None:
    async def play(server: Keeper) -> None:
        ports = [CHAT.make(server.url, key) for key in (KEY, "another key")]
        for port in ports * 2:
            await ask(port)
        assert (server.connections, pools(server)) == (1, 1)
        await ports[0].aclose()
        await ask(ports[1])
        assert (server.connections, pools(server)) == (1, 1)
        await ports[1].aclose()
        assert pools(server) == 0
        assert await asyncio.to_thread(server.closed.wait, 10)

    with Keeper(secure=secure).serving() as server:
        asyncio.run(play(server))


def test_a_port_that_is_rebuilt_gets_new_connections_and_takes_none_from_others() -> None:
    async def play(server: Keeper) -> None:
        shaken, steady, late = (CHAT.make(server.url, KEY) for _ in range(3))
        await ask(shaken)
        await ask(steady)
        await shaken.rebuild()
        await ask(steady)
        assert server.connections == 1
        await ask(shaken)
        assert server.connections == 2
        await ask(late)
        assert server.connections == 2, "who comes later gets the new ones"
        for port in (shaken, steady, late):
            await port.aclose()
        assert pools(server) == 0

    with Keeper(secure=False).serving() as server:
        asyncio.run(play(server))


def test_nothing_that_a_server_has_one_port_remember_is_told_by_another() -> None:
    async def play(server: Keeper) -> None:
        ports = [CHAT.make(server.url, KEY) for _ in range(3)]
        for port in ports:
            await ask(port)
        assert server.connections == 1
        assert server.cookies == []

    with Keeper(secure=False).serving() as server:
        asyncio.run(play(server))


def test_a_port_that_is_dropped_lets_its_connections_go() -> None:
    async def play(server: Keeper) -> None:
        port, other = CHAT.make(server.url, KEY), CHAT.make(server.url, KEY)
        await ask(port)
        await ask(other)
        del port
        gc.collect()
        await asyncio.sleep(0)
        await ask(other)
        assert (server.connections, pools(server)) == (1, 1)
        del other
        gc.collect()
        await until_so(lambda: pools(server) == 0)
        assert await asyncio.to_thread(server.closed.wait, 10)

    with Keeper(secure=False).serving() as server:
        asyncio.run(play(server))


def test_a_loop_that_ends_closes_what_nobody_closed() -> None:
    async def play(server: Keeper) -> None:
        port = CHAT.make(server.url, KEY)
        await ask(port)
        kept.append(port)
        assert pools(server) == 1

    kept: list[Any] = []

    with Keeper(secure=False).serving() as server:
        for number in (1, 2):
            server.closed.clear()
            asyncio.run(play(server))
            assert (server.connections, pools(server)) == (number, 0)
            assert server.closed.wait(10)


def test_a_loop_that_is_closed_without_being_shut_down_leaves_nothing_to_the_next() -> None:
    async def play(user: object) -> Connections:
        return await Connections.used_by(user, "http://model.test", "", tls)

    users = (Seen(), Seen())
    for user in users:
        loop = asyncio.new_event_loop()
        pool = loop.run_until_complete(play(user))
        assert [key[0] for key in CONNECTIONS if key[1] == "http://model.test"] == [loop]
        if user is users[0]:
            loop.close()
    loop.run_until_complete(pool.leave(users[1]))
    loop.close()


def test_hundreds_of_requests_at_once_find_a_connection_each() -> None:
    async def play(server: ScriptedServer) -> None:
        ports = [CHAT.make(server.url, KEY) for _ in range(4)]
        await asyncio.gather(*(ask(ports[number % 4]) for number in range(300)))
        for port in ports:
            await port.aclose()

    with ScriptedServer(repeat(text("ok"))) as server:
        asyncio.run(play(server))
    assert server.completions == 300
