"""The service of sessions: what starts, what is told of it, what it comes to."""

from __future__ import annotations

from fsm_agent.runtime.events import StreamDelta, Transition
from fsm_agent.serve.service import Caller
from fsm_agent.testing import text
from tests.serve.conftest import MakeService


async def test_a_turn_is_started_followed_and_has_a_result(serving: MakeService, caller: Caller) -> None:
    async with serving(text("hello there, how are you")) as service:
        turn = await service.start(caller, "hi")
        told = [one async for one in service.events(caller, turn)]
        result = await service.result(caller, turn)
    assert result.final_response == "hello there, how are you"
    pieces = [one.event.values for one in told]
    assert (
        "".join(one.text or "" for one in pieces if isinstance(one, StreamDelta)).strip()
        == result.final_response
    )
    assert [one.dest for one in pieces if isinstance(one, Transition)][-1] == "Finalize"
    assert len({one.id for one in told}) == len(told)


async def test_a_client_that_comes_back_gets_the_rest_from_any_event_on(
    serving: MakeService, caller: Caller
) -> None:
    async with serving(text("hello there, how are you")) as service:
        turn = await service.start(caller, "hi")
        whole = [one async for one in service.events(caller, turn)]
        for place, one in enumerate(whole):
            assert [other async for other in service.events(caller, turn, one.id)] == whole[place + 1 :]
