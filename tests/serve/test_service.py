"""The service of sessions: how turns start, their events, their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fsm_agent import Agent, ResultLater, tool
from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.dispatch import follow
from fsm_agent.dispatch.follow import Place, ServedEvent
from fsm_agent.dispatch.service import (
    BadRequest,
    Busy,
    Caller,
    Forbidden,
    Leaving,
    NotFound,
    ServiceError,
    SessionService,
    TooMany,
)
from fsm_agent.errors import TurnSuspended
from fsm_agent.runtime.events import StreamDelta, ToolComplete, Transition, Voided
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.dispatch.scene import Held
from tests.helpers.waiting import until_so
from tests.serve.conftest import SETTINGS, MakeService


async def test_a_turn_is_started_has_a_result_and_is_followed_from_any_event_on(
    serving: MakeService, caller: Caller
) -> None:
    async with serving(text("hello there, how are you")) as service:
        turn = await service.start(caller, "hi")
        told = [one async for one in service.events(caller, turn)]
        result = await service.result(caller, turn)
        for place, one in enumerate(told):
            assert [other async for other in service.events(caller, turn, one.id)] == told[place + 1 :]
    pieces = [one.event.values for one in told]
    said = "".join(one.text or "" for one in pieces if isinstance(one, StreamDelta)).strip()
    assert said == result.final_response == "hello there, how are you"
    assert [one.dest for one in pieces if isinstance(one, Transition)][-1] == "Finalize"
    assert len({one.id for one in told}) == len(told)


ANN = Caller("k-ann", "Ann", frozenset({"run", "approve"}))
BOB = Caller("k-bob", "Bob", frozenset({"run"}))
READER = Caller("k-ann", "Ann's reader", frozenset({"read"}))


async def test_a_session_goes_on_and_is_listed_and_loaded(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        first = await service.start(caller, "hi", "thread-1")
        await service.result(caller, first)
        second = await service.start(caller, "again", "thread-1")
        await service.result(caller, second)
        loaded = service.load(caller, "thread-1")
        assert [row["content"] for row in loaded["messages"] if row["role"] == "user"] == ["hi", "again"]
        assert [one["turn"] for one in loaded["turns"]] == [first, second]
        assert [one["session"] for one in service.sessions(caller)] == ["thread-1"]
        assert service.sessions(BOB) == []


async def test_the_same_turn_id_begins_one_turn(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        turns = {await service.start(caller, "hi", "thread-1", turn_id="mine", waits=True) for _ in range(3)}
        await service.result(caller, "mine")
        turns.add(await service.start(caller, "hi", "thread-1", turn_id="mine"))
        assert turns == {"mine"}
        assert len(service.load(caller, "thread-1")["turns"]) == 1
        for other in (caller, "thread-2"), (BOB, None), (BOB, "thread-3"):
            with pytest.raises(Busy):
                await service.start(other[0], "hi", other[1], turn_id="mine")
        alone = {await service.start(caller, "hi", turn_id="alone") for _ in range(3)}
        assert alone == {"alone"}
        await service.result(caller, "alone")
        assert len(service.sessions(caller)) == 2


async def test_one_of_several_messages_at_once_begins_a_turn(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        begun = await asyncio.gather(
            *(service.start(caller, f"hi {number}", "thread-1") for number in range(5)),
            return_exceptions=True,
        )
        assert [type(one) for one in begun if not isinstance(one, str)] == [Busy] * 4
        turns = [service.start(caller, "hi", "thread-2", turn_id="turn-2") for _ in range(5)]
        assert await asyncio.gather(*turns) == ["turn-2"] * 5


async def test_one_of_two_servers_begins_a_turn(store: Store, caller: Caller) -> None:
    """Neither runs turns yet: each message waits where only the store knows of it."""
    other = Store(store.home)
    try:
        one, two = (SessionService(lambda: Agent(), each) for each in (store, other))
        turn = await one.start(caller, "hi", "thread-1")
        with pytest.raises(Busy, match="another turn of this session is running"):
            await two.start(caller, "hi too", "thread-1")
        assert await two.start(caller, "hi", "thread-1", turn_id=turn) == turn
        await two.start(caller, "next", "thread-1", waits=True)
        await one.interrupt(caller, turn)
        with pytest.raises(Busy):
            await one.start(caller, "hi again", "thread-1")
    finally:
        other.close()


async def test_what_belongs_to_another_key_is_not_there(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        turn = await service.start(ANN, "hi", "thread-1")
        await service.result(ANN, turn)
        for refused in (
            lambda: service.events(BOB, turn), lambda: service.about(BOB, turn), lambda: service.load(BOB, "thread-1"),
            lambda: service.pending(BOB, turn),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                refused()
        for refusing in (
            service.start(BOB, "hi", "thread-1"), service.result(BOB, turn), service.steer(BOB, turn, "x"),
            service.interrupt(BOB, turn), service.fork(BOB, turn, 1), service.resume(BOB, turn),
            service.result(ANN, "nothing"),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await refusing
        with pytest.raises(Forbidden):
            await service.start(READER, "hi")
        assert service.about(READER, turn)["status"] == "ended"


@pytest.mark.parametrize(
    "content",
    ["", " ", [], [1], {"type": "text"}, None, 3, [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}],
     [{"type": "file", "path": "/etc/passwd"}], [{"type": "image", "source": "/etc/passwd"}]],
)  # fmt: skip
async def test_a_message_that_is_none_is_refused(serving: MakeService, caller: Caller, content: Any) -> None:
    async with serving(text("one")) as service:
        with pytest.raises(BadRequest):
            await service.start(caller, content)


async def test_a_turn_that_cannot_begin_says_so(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        turn = await service.start(caller, "hi", conversation_history=[{"role": "nobody", "content": "x"}])
        with pytest.raises(ServiceError, match="the turn cannot begin"):
            await service.result(caller, turn)
        assert service.about(caller, turn)["status"] == "refused"


async def test_a_running_turn_is_steered_and_interrupted(serving: MakeService, caller: Caller) -> None:
    held = Held()
    async with serving(tools(call("put", {"key": "x"}, "c1")), text("done"), tools=[held.tool]) as service:
        turn = await service.start(caller, "go", "thread-1")
        await until_so(lambda: bool(held.begun))
        with pytest.raises(Busy):
            await service.start(caller, "me too", "thread-1")
        await service.steer(caller, turn, "be brief")
        held.go.set()
        result = await service.result(caller, turn)
        assert any("be brief" in str(row) for row in result.messages)
        with pytest.raises(Busy):
            await service.steer(caller, turn, "too late")
        held.go.clear()
        second = await service.start(caller, "go", "thread-1")
        await until_so(lambda: len(held.begun) == 2)
        await service.interrupt(caller, second)
        assert (await service.result(caller, second)).interrupted
        await service.interrupt(caller, second)


async def test_a_turn_that_waits_in_line_is_taken_back(serving: MakeService, caller: Caller) -> None:
    held = Held()
    async with serving(tools(call("put", {"key": "x"}, "c1")), text("done"), tools=[held.tool]) as service:
        first = await service.start(caller, "go", "thread-1")
        await until_so(lambda: bool(held.begun))
        second = await service.start(caller, "more", "thread-1", waits=True)
        await service.interrupt(caller, second)
        with pytest.raises(Busy, match="taken back"):
            await service.result(caller, second)
        held.go.set()
        assert (await service.result(caller, first)).completed


async def test_an_approval_suspends_the_turn_and_its_answer_continues_it(
    serving: MakeService, caller: Caller, store: Store
) -> None:
    paid: list[int] = []

    @tool(approval="ask")
    def pay(invoice: int) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return f"paid {invoice}"

    script = tools(call("pay", {"invoice": 7}, "c1")), text("it is paid")
    async with serving(*script, tools=[pay]) as service:
        turn = await service.start(caller, "pay 7")
        got = [one async for one in service.events(caller, turn)]
        with pytest.raises(TurnSuspended) as waits:
            await service.result(caller, turn)
        assert service.about(caller, turn)["status"] == "suspended"
    async with serving(text("it is paid"), tools=[pay]) as service:  # as after a restart
        (item,) = service.pending(caller)
        assert (item.id, item.kind) == (waits.value.pending[0].id, "approval")
        without = Caller(caller.id, caller.name, frozenset({"run"}))
        approver = Caller(caller.id, caller.name, frozenset({"run", "approve"}))
        with pytest.raises(Forbidden):
            await service.answer(without, item.id, "once")
        with pytest.raises(Forbidden):
            await service.answer(approver, item.id, "always")
        with pytest.raises(BadRequest):
            await service.answer(approver, item.id, "perhaps")
        with pytest.raises(NotFound):
            await service.answer(BOB, item.id, "once")
        await service.answer(approver, item.id, "once")
        with pytest.raises(Busy):
            await service.answer(approver, item.id, "deny")
        got += [one async for one in service.events(caller, turn, got[-1].id)]
        assert (await service.result(caller, turn)).final_response == "it is paid"
    assert paid == [7]
    assert [one.event.values.result for one in got if isinstance(one.event.values, ToolComplete)] == [
        "paid 7"
    ]


@pytest.mark.parametrize("later", [False, True], ids=["an approval", "a result"])
async def test_an_interrupt_ends_a_suspended_turn(later: bool, serving: MakeService, caller: Caller) -> None:
    @tool(approval="never" if later else "ask")
    def pay(invoice: int) -> str:
        """Pay an invoice."""
        raise ResultLater("the bank is asked")

    async with serving(tools(call("pay", {"invoice": 7}, "c1")), tools=[pay]) as service:
        turn = await service.start(caller, "pay 7")
        with pytest.raises(TurnSuspended):
            await service.result(caller, turn)
        await service.interrupt(caller, turn)
        result = await service.result(caller, turn)
        assert result.turn_exit_reason == "interrupted_in_tools"
        assert service.about(caller, turn)["status"] == "ended"
        assert service.pending(caller) == []


async def test_a_turn_is_forked_into_a_session_of_its_own(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one"), text("two")) as service:
        turn = await service.start(caller, "hi", "thread-1")
        await service.result(caller, turn)
        forked = await service.fork(caller, turn, 2, {"user_message": "hello"})
        got = [one async for one in service.events(caller, forked)]
        assert (await service.result(caller, forked)).final_response == "one"
        assert next(one.id for one in got if isinstance(one.event.values, Transition)) == "3.0"
        assert len(service.sessions(caller)) == 2
        with pytest.raises(BadRequest):
            await service.fork(caller, turn, 99)


async def test_a_fork_is_given_the_result_of_a_tool(serving: MakeService, caller: Caller) -> None:
    look = tool(effect="pure", name="look")(lambda: "rain")
    async with serving(tools(call("look", {}, "c1")), text("done"), tools=[look]) as service:
        turn = await service.start(caller, "hi")
        told = [one.event.values async for one in service.events(caller, turn)]
        moves = [one.dest for one in told if isinstance(one, Transition)]
        at = moves.index("ExecuteTools") + 1
        forked = await service.fork(caller, turn, at, {"results": {"c1": "snow"}})
        values = [one.event.values async for one in service.events(caller, forked)]
    assert next(one.result for one in values if isinstance(one, ToolComplete)) == "snow"


async def test_an_event_that_is_none_is_refused(serving: MakeService, caller: Caller) -> None:
    async with serving(text("one")) as service:
        turn = await service.start(caller, "hi")
        await service.result(caller, turn)
        for wrong in ("x", "1.2.3", "9:1.0", "-1.0", "1.0-", "٣.٤", "1" * 400):
            with pytest.raises(BadRequest):
                service.events(caller, turn, wrong)


async def test_a_conversation_that_is_handed_over_is_followed(serving: MakeService, caller: Caller) -> None:
    other = Agent(ScriptedModel(repeat(text("I am the other"))), name="other", toolsets=[])
    script = tools(call("transfer_to_other", {}, "c1")), text("never")
    async with serving(*script, handoffs=[other]) as service:
        turn = await service.start(caller, "hi")
        whole = [one async for one in service.events(caller, turn)]
        assert (await service.result(caller, turn)).final_response == "I am the other"
        assert len({one.turn for one in whole}) == 2
        assert len({one.id for one in whole}) == len(whole)
        for place, one in enumerate(whole):
            assert [other async for other in service.events(caller, turn, one.id)] == whole[place + 1 :]


async def test_a_key_has_so_many_unfinished_turns(serving: MakeService, caller: Caller) -> None:
    held = Held()
    script = tools(call("put", {"key": "x"}, "c1")), text("done")
    async with serving(*script, tools=[held.tool], service={"most_of_key": 2}) as service:
        turns = [await service.start(caller, "go") for _ in range(2)]
        with pytest.raises(TooMany):
            await service.start(caller, "go")
        held.go.set()
        for turn in turns:
            await service.result(caller, turn)
        await service.start(caller, "go")


async def test_a_service_that_leaves_says_so_and_another_one_goes_on(
    serving: MakeService, caller: Caller
) -> None:
    held, script = Held(), (tools(call("put", {"key": "x"}, "c1")), text("done"))
    got: list[ServedEvent] = []

    async def listen(events: AsyncIterator[ServedEvent]) -> None:
        async for one in events:
            got.append(one)

    async with serving(*script, tools=[held.tool]) as service:
        turn = await service.start(caller, "go")
        await until_so(lambda: bool(held.begun))
        service.leave()
        with pytest.raises(Leaving):
            await service.start(caller, "go")
        held.go.set()
        with pytest.raises(Leaving):
            await listen(service.events(caller, turn))
    async with serving(text("done"), tools=[held.tool]) as service:
        got += [one async for one in service.events(caller, turn, got[-1].id)]
        assert (await service.result(caller, turn)).final_response == "done"
    assert len({one.id for one in got}) == len(got)
    assert not any(isinstance(one.event.values, Voided) for one in got)
    assert len(held.begun) == 1


class Talkative:
    """A model that says very many pieces."""

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply:
        for number in range(200):
            sink.text(f"{number} ")
            if number % 10 == 0:
                await asyncio.sleep(0)
        return ModelReply(SPOKEN, usage=Usage(1, 1), model="talkative")

    def use_key(self, key: str) -> None: ...

    async def rebuild(self) -> None: ...

    async def aclose(self) -> None: ...


SPOKEN = "".join(f"{number} " for number in range(200))


def shown(events: list[ServedEvent]) -> str:
    """The text that a client shows: it drops what is void."""
    text: list[tuple[Place, str]] = []
    for one in events:
        match one.event.values:
            case Voided(after):
                text = [(place, piece) for place, piece in text if place <= Place.read(after)]
            case StreamDelta(str(piece)):
                text.append((Place.read(one.id), piece))
    return "".join(piece for _, piece in text).strip()


@pytest.mark.parametrize(
    "most", [10, pytest.param(60, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.slow)]
)
async def test_more_than_is_kept_is_told_again_as_the_journal_has_it(
    store: Store, caller: Caller, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MOST", most)

    def make_agent() -> Agent[Any, Any]:
        return Agent(Talkative(), toolsets=[], settings=SETTINGS)

    async with SessionService(make_agent, store) as service:
        turn = await service.start(caller, "speak")
        whole = [one async for one in service.events(caller, turn)]
        assert shown(whole) == SPOKEN.strip()
        for place, one in enumerate(whole[:: 1 if most == 60 else 7]):
            before = whole[: whole.index(one) + 1]
            rest = [other async for other in service.events(caller, turn, one.id)]
            assert shown(before + rest) == SPOKEN.strip(), place
        again = [one async for one in service.events(caller, turn)]
        assert shown(again) == SPOKEN.strip()
    async with SessionService(make_agent, store) as service:  # another process: the journal alone
        again = [one async for one in service.events(caller, turn)]
        assert shown(again) == SPOKEN.strip()
        for one in whole:
            rest = [other async for other in service.events(caller, turn, one.id)]
            assert shown([*whole[: whole.index(one) + 1], *rest]) == SPOKEN.strip()
