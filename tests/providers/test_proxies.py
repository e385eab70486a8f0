"""Proxies of the environment are used as every HTTP client uses them."""

from __future__ import annotations

import asyncio

import pytest

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from tests.helpers.keeper import Keeper
from tests.helpers.ports import CHAT, KEY, Seen
from tests.helpers.relay import Relay

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
over_both = pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])


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
