"""A connection that was closed while it was idle costs no request: it is looked at before one is written to
it (PREP-19). One that breaks under a request does."""

from __future__ import annotations

import asyncio

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from tests.helpers.keeper import Keeper
from tests.helpers.ports import CHAT, KEY, Seen

over_both = pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])


@pytest.mark.behaviour("CALL-01", "PREP-19")
@over_both
@pytest.mark.parametrize("breaks", [False, True])
def test_a_connection_that_was_closed_while_idle_is_not_used(breaks: bool, secure: bool) -> None:
    told: list[str] = []
    with Keeper(secure=secure, breaks=breaks).serving() as server:
        agent = Agent(
            "openai:gpt-x", base_url=server.url, api_key="k", toolsets=[], callbacks={"status": told.append}
        )
        first = agent.run_conversation("one")
        assert server.closed.wait(10 if breaks else 0) == breaks
        second = agent.run_conversation("two")
        agent.close()
    assert (first.final_response, second.final_response) == ("ok", "ok")
    assert (first.attempts, second.attempts, server.requests) == (1, 1, 2)
    assert server.connections == (2 if breaks else 1)
    assert not [line for line in told if "attempt" in line or "connection" in line]


@over_both
def test_the_end_of_a_connection_that_the_loop_had_no_time_to_see_is_seen(secure: bool) -> None:
    """The loop stands still while the server closes, and the next request comes before it looks around."""

    async def play(server: Keeper) -> None:
        port = CHAT.make(server.url, KEY)
        for number in range(1, 4):
            server.closed.clear()
            assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)
            assert server.requests == server.connections == number
            assert server.closed.wait(10)  # in this thread, the loop's
        await port.aclose()

    with Keeper(secure=secure, breaks=True).serving() as server:
        asyncio.run(play(server))


@over_both
def test_a_request_that_met_the_end_of_its_connection_is_one_and_is_not_sent_again(secure: bool) -> None:
    """Nobody knows what the server has done with it: it counts, and only the table sends another."""

    async def play(server: Keeper) -> None:
        port = CHAT.make(server.url, KEY)
        assert isinstance(await port.call(CHAT.request(stream=False), Seen()), ModelReply)
        failure = await port.call(CHAT.request(stream=False), Seen())
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.exception, failure.sent) == ("transport", "RemoteProtocolError", True)
        await port.aclose()

    with Keeper(secure=secure, mute_after=1).serving() as server:
        asyncio.run(play(server))
    assert (server.requests, server.connections) == (2, 1)
