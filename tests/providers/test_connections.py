"""Connections belong to the process: ports share them and their client, idle ones are looked at, proxies are used."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.sdk_port import CLIENTS, tls
from fsm_agent.providers.transport import CONNECTIONS, Connections
from fsm_agent.testing import ScriptedServer, repeat, text
from tests.helpers.keeper import Keeper
from tests.helpers.ports import CHAT, KEY, WIRES, Seen, Wire
from tests.helpers.relay import Relay
from tests.helpers.waiting import PATIENCE, until_so


async def ask(port: Any) -> None:
    assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)


def pools(server: Keeper) -> int:
    """How many pools of connections to this server there are."""
    return sum(server.url.startswith(origin) for _, origin, _ in CONNECTIONS)


over_both = pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])


@over_both
async def test_ports_share_connections_until_the_last_is_closed(secure: bool) -> None:
    with Keeper(secure=secure).serving() as server:
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


async def test_a_port_that_is_rebuilt_gets_a_new_client_and_takes_none_from_others() -> None:
    with Keeper(secure=False).serving() as server:
        shaken, steady, late = (CHAT.make(server.url, KEY) for _ in range(3))
        await ask(shaken)
        await ask(steady)
        client = await shaken.ready()
        await shaken.rebuild()
        assert not client.is_closed()
        assert await steady.ready() is client
        await ask(steady)
        assert server.connections == 1
        await ask(shaken)
        assert server.connections == 2
        assert await shaken.ready() is await late.ready() is not client
        await ask(late)
        assert server.connections == 2, "who comes later gets the new ones"
        for port in (shaken, steady, late):
            await port.aclose()
        assert client.is_closed()
        assert pools(server) == 0


async def test_a_reply_that_was_read_leaves_no_generator_for_the_loop_to_close() -> None:
    left: list[Any] = []
    with ScriptedServer([text("hi")]) as server:
        port, hooks = CHAT.make(server.url, KEY), sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=left.append)
        try:
            assert isinstance(await port.call(CHAT.request(stream=True), Seen()), ModelReply)
        finally:
            sys.set_asyncgen_hooks(*hooks)
        await port.aclose()
    assert left == []


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


def test_a_loop_that_ends_closes_open_clients() -> None:
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
            assert server.closed.wait(PATIENCE)


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


@pytest.mark.slow
async def test_hundreds_of_requests_at_once_find_a_connection_each() -> None:
    with ScriptedServer(repeat(text("ok"))) as server:
        ports = [CHAT.make(server.url, KEY) for _ in range(4)]
        await asyncio.gather(*(ask(ports[number % 4]) for number in range(300)))
        for port in ports:
            await port.aclose()
    assert server.completions == 300


@pytest.mark.behaviour("CALL-01", "PREP-19")
@over_both
@pytest.mark.parametrize("breaks", [False, True])
def test_a_connection_that_was_closed_while_idle_is_not_used(breaks: bool, secure: bool) -> None:
    told: list[str] = []
    with Keeper(secure=secure, breaks=breaks).serving() as server:
        options = {"toolsets": [], "callbacks": {"status": told.append}}
        with Agent("openai:gpt-x", base_url=server.url, api_key="k", **options) as agent:
            first = agent.run_conversation("one")
            assert server.closed.wait(10 if breaks else 0) == breaks
            second = agent.run_conversation("two")
    assert (first.final_response, second.final_response) == ("ok", "ok")
    assert (first.attempts, second.attempts, server.requests) == (1, 1, 2)
    assert server.connections == (2 if breaks else 1)
    assert not [line for line in told if "attempt" in line or "connection" in line]


@over_both
async def test_the_end_of_a_connection_that_the_loop_had_no_time_to_see_is_seen(secure: bool) -> None:
    """The loop is blocked while the server closes, and the next request comes before it polls again."""
    with Keeper(secure=secure, breaks=True).serving() as server:
        port = CHAT.make(server.url, KEY)
        for number in range(1, 4):
            server.closed.clear()
            assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)
            assert server.requests == server.connections == number
            assert server.closed.wait(PATIENCE)  # in this thread, the loop's
        await port.aclose()


@over_both
async def test_a_request_that_met_the_end_of_its_connection_is_one_and_is_not_sent_again(
    secure: bool,
) -> None:
    """Whether the server has acted on it is unknown: it counts, and only the table sends another."""
    with Keeper(secure=secure, mute_after=1).serving() as server:
        port = CHAT.make(server.url, KEY)
        assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)
        failure = await port.call(CHAT.request(stream=False), Seen())
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.exception, failure.sent) == ("transport", "RemoteProtocolError", True)
        await port.aclose()
    assert (server.requests, server.connections) == (2, 1)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_ports_that_are_alike_share_a_client_until_the_last_one_leaves(wire: Wire) -> None:
    with ScriptedServer(repeat(text("ok"))) as server:
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


OTHERS: list[Callable[[str, pytest.MonkeyPatch], Any]] = [
    lambda url, _: CHAT.make(url, "another key"),
    lambda url, _: CHAT.make(f"{url}/else", KEY),
    lambda url, _: CHAT.make(url, KEY, headers={"X-Who": "somebody"}),
    lambda url, _: CHAT.make(url, KEY, read=7.0),
    lambda url, env: env.setenv("HTTP_PROXY", "http://127.0.0.1:9") or CHAT.make(url, KEY),
    lambda url, env: env.setenv("OPENAI_ORG_ID", "org") or CHAT.make(url, KEY),
]


@pytest.mark.parametrize("other", OTHERS, ids=["key", "address", "headers", "timeout", "proxy", "account"])
async def test_clients_made_of_other_parts_are_not_shared(
    other: Callable[[str, pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = CHAT.make("http://127.0.0.1:9/v1", KEY)
    client = await one.ready()
    two = other("http://127.0.0.1:9/v1", monkeypatch)
    assert await two.ready() is not client
    await one.aclose()
    await two.aclose()


async def test_cookies_of_a_server_are_never_sent_back() -> None:
    with Keeper(secure=False).serving() as server:
        ports = [CHAT.make(server.url, KEY) for _ in range(3)]
        for port in (*ports, ports[0]):
            await ask(port)
        assert (server.requests, server.connections, server.cookies) == (4, 1, [])
        for port in ports:
            await port.aclose()


async def test_an_unused_client_is_forgotten() -> None:
    port = CHAT.make("http://127.0.0.1:9/v1", KEY)
    await port.ready()
    mine = [key for key in CLIENTS if key[0] is asyncio.get_running_loop()]
    assert len(mine) == 1
    del port
    gc.collect()
    assert mine[0] not in CLIENTS


def test_another_loop_has_a_client_of_its_own() -> None:
    port = CHAT.make("http://127.0.0.1:9/v1", KEY)

    async def play() -> Any:
        return await port.ready()

    assert asyncio.run(play()) is not asyncio.run(play())


async def test_a_key_that_is_changed_goes_out_with_the_next_request() -> None:
    with ScriptedServer(repeat(text("ok"))) as server:
        one, two = (CHAT.make(server.url, KEY) for _ in range(2))
        await one.call(CHAT.request(), Seen())
        two.use_key("sk-other")
        await two.call(CHAT.request(), Seen())
        await one.call(CHAT.request(), Seen())
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == [f"Bearer {KEY}", "Bearer sk-other", f"Bearer {KEY}"]
        await one.aclose()
        await two.aclose()


NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def asked(server: Keeper, relay: Relay, patch: pytest.MonkeyPatch, **more: str) -> ModelReply | Failure:
    async def play() -> ModelReply | Failure:
        async with relay.open():
            proxy = f"http://me:secret@127.0.0.1:{relay.port}"
            for name, value in {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, **more}.items():
                patch.setenv(name, value)
            port = CHAT.make(server.url, KEY)
            for _ in range(2):
                got: ModelReply | Failure = await port.call(CHAT.request(stream=False), Seen())
            await port.aclose()
            return got

    return asyncio.run(play())


@over_both
def test_a_request_goes_through_the_proxy(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay()
    with Keeper(secure=secure).serving() as server:
        got = asked(server, relay, monkeypatch)
        place = server.url.partition("//")[2].removesuffix("/v1")
    assert isinstance(got, ModelReply)
    line = f"CONNECT {place} HTTP/1.1" if secure else f"POST {server.url}/chat/completions HTTP/1.1"
    assert relay.asked == [line], "one connection for both"
    assert relay.auth == ["Basic bWU6c2VjcmV0"]
    assert (server.requests, server.connections) == (2, 1)


@over_both
def test_but_not_to_where_none_is_to_be_used(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay()
    with Keeper(secure=secure).serving() as server:
        assert isinstance(asked(server, relay, monkeypatch, NO_PROXY="localhost"), ModelReply)
    assert (server.requests, relay.asked) == (2, [])


def test_a_proxy_that_refuses_a_tunnel_has_passed_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay("403 Forbidden")
    with Keeper(secure=True).serving() as server:
        failure = asked(server, relay, monkeypatch)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.exception, failure.sent) == ("transport", "ProxyError", False)
    assert server.requests == 0
