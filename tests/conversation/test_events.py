"""The event stream of a turn: the same as the callbacks, for listeners that may be slow."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.errors import SessionBusy
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import (
    CHATTY,
    DROPPED,
    EVERYWHERE,
    TURN,
    Event,
    EventQueue,
    Named,
    Opened,
    StatusText,
    Stopped,
    Stream,
    StreamDelta,
    Thinking,
    Transition,
)
from fsm_agent.testing import call, repeat, text, tools
from tests.helpers.harness import Heard, MakeAgent, echo
from tests.helpers.waiting import PATIENCE, until

pytestmark = pytest.mark.agent(tools=[echo], toolsets=[], clock=None)


def script() -> list[Any]:
    return [tools(call("echo", {"text": "a"})), text("done and dusted")]


def test_the_stream_carries_what_the_callbacks_are_told(agent: MakeAgent) -> None:
    heard = Heard()
    one = agent(*script(), callbacks=heard.functions())
    turn = one.start("go")

    async def listen() -> list[Event]:
        return [event async for event in turn.events()]

    events = asyncio.run(listen())
    assert turn.result is not None
    assert turn.result.final_response == "done and dusted"
    same = [(event.name, event.values) for event in events if event.name != "tool_progress"]
    assert same == heard.calls
    names = {event.name for event in events}
    assert {"transition", "tool_start", "tool_complete", "stream_delta", "step", "thinking"} <= names
    assert {event.turn_id for event in events} == {turn.id}
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_plain_loop_in_a_thread_hears_the_same(agent: MakeAgent) -> None:
    turn = agent(*script()).start("go")
    names = [event.name for event in turn.events()]
    assert (names.count("tool_start"), names[-1]) == (1, "event")
    assert turn.result is not None


def test_listening_to_a_turn_that_somebody_else_runs(agent: MakeAgent) -> None:
    turn = agent(*script()).start("go")
    heard: list[str] = []
    begun = threading.Event()

    def listen() -> None:
        stream = iter(turn.events(run=False))
        begun.set()
        heard.extend(event.name for event in stream)

    listener = threading.Thread(target=listen)
    listener.start()
    assert begun.wait(PATIENCE)
    until(lambda: turn.gate.stream.hears(Transition), "the listener")
    turn.run()
    listener.join(PATIENCE)
    assert not listener.is_alive()
    assert "transition" in heard
    assert list(turn.events(run=False)) == []


def test_leaving_the_loop_stops_the_turn_where_it_is_and_it_can_go_on(agent: MakeAgent) -> None:
    turn = agent(*script()).start("go")

    async def some() -> int:
        stream = turn.events().__aiter__()
        async for event in stream:
            if event.name == "tool_start":
                break
        await stream.aclose()
        return len(turn.steps)

    assert asyncio.run(some()) < 6
    assert turn.result is None
    assert turn.run().completed


async def test_a_message_follows_at_once_when_a_loop_over_a_turn_was_left(agent: MakeAgent) -> None:
    """Python closes a generator that was left only later; the turn of the next message waits for that."""
    one = agent(text("one two three"), text("four five six"), repeat(text("next")))
    async for _ in one.stream_text("go"):
        break
    assert (await one.arun("and now?")).final_response == "four five six"
    async for event in one.start("go").events():
        if event.name == "stream_delta":
            break
    assert (await one.arun("and now?")).final_response == "next"


def test_a_message_follows_at_once_when_a_loop_in_a_thread_was_left(agent: MakeAgent) -> None:
    one = agent(text("one two three"), repeat(text("next")))
    for event in one.start("go").events():
        if event.name == "stream_delta":
            break
    assert one.chat("and now?") == "next"


async def test_what_running_the_turn_raises_is_raised_to_the_listener(agent: MakeAgent) -> None:
    one = agent(*script())
    first, second = one.start("go"), one.start("go")
    await first.step()
    with pytest.raises(SessionBusy):
        async for _ in second.events():
            pass


def test_a_slow_listener_never_holds_the_turn_and_is_told_what_it_missed() -> None:
    queue = EventQueue("t", size=4)
    for number in range(6):
        queue.put(Event("stream_delta", StreamDelta(str(number)), float(number), "t"))
    queue.put(Event("status", StatusText("x"), 9.0, "t"))
    queue.close()
    seen = []
    while (event := queue.wait()) is not None:
        seen.append((event.name, event.values))
    assert seen == [(DROPPED, (3,)), *(("stream_delta", (n,)) for n in "345"), ("status", ("x",))]


def test_what_matters_is_dropped_last() -> None:
    queue = EventQueue("t", size=3)
    for name in ("transition", "reasoning", "transition", "stream_delta", "status", "status"):
        queue.put(Event(name, StatusText(name), 0.0, "t"))
    queue.close()
    first, *rest = iter(queue.wait, None)
    assert (first.name, first.values) == (DROPPED, (3,))
    assert not CHATTY & {event.name for event in rest if event}


def test_two_turns_at_once_do_not_hear_each_other(agent: MakeAgent) -> None:
    one, other = agent(text("one")).start("1"), agent(text("two")).start("2")

    async def both() -> list[list[Event]]:
        async def listen(turn: Any) -> list[Event]:
            return [event async for event in turn.events()]

        return list(await asyncio.gather(listen(one), listen(other)))

    for turn, events in zip((one, other), asyncio.run(both()), strict=True):
        assert {event.turn_id for event in events} == {turn.id}
        said = "".join(event.values[0] or "" for event in events if event.name == "stream_delta")
        assert turn.result is not None
        assert said == turn.result.final_response


# Streams


def test_a_subscriber_hears_the_types_that_it_asked_for_until_it_leaves() -> None:
    beyond = Stream()
    stream = Stream("t", beyond)
    heard: list[Any] = []
    leave = stream.subscribe(heard.append, StatusText, Thinking)
    all_over = beyond.subscribe(lambda event: heard.append(("beyond", event)), StatusText)
    assert stream.hears(Thinking)
    assert not stream.hears(Transition)
    for event in (StatusText("a"), Thinking(True), StreamDelta("b")):
        stream.publish(event)
    beyond.publish(StatusText("elsewhere"))
    assert heard == [("a",), ("beyond", ("a",)), (True,), ("beyond", ("elsewhere",))]
    leave()
    leave()
    stream.publish(StatusText("c"))
    assert heard[4:] == [("beyond", ("c",))]
    all_over()
    assert not stream.hears(StatusText)


def test_what_the_engine_does_is_heard_everywhere_with_the_turn_that_it_belongs_to(agent: MakeAgent) -> None:
    heard: list[tuple[str, Any]] = []
    leave = EVERYWHERE.subscribe(
        lambda event: heard.append((TURN.get().turn_id, event)), Opened, Step, Exchange, Stopped
    )
    try:
        turn = agent(*script()).start("go")
        result = turn.run()
    finally:
        leave()
    kinds = [type(event) for _, event in heard]
    assert kinds[0] is Opened
    assert kinds[-1] is Stopped
    assert [event for _, event in heard if isinstance(event, Step)] == turn.steps
    assert {turn_id for turn_id, _ in heard} == {turn.id}
    assert heard[-1][1] == ("ended", result)


def test_a_turn_that_is_left_can_be_listened_to_when_it_goes_on(agent: MakeAgent) -> None:
    turn = agent(*script()).start("go")
    queue = EventQueue(turn.id)
    turn.gate.stream.subscribe(lambda move: queue.put(Event("transition", move, 0.0, turn.id)), Transition)
    turn.gate.stream.subscribe(queue.over, Stopped)

    async def interrupted() -> None:
        running = asyncio.ensure_future(turn.arun())
        while not turn.steps:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(interrupted())
    turn.run()
    heard = list(iter(queue.wait, None))
    assert len(heard) == len(turn.steps)


def test_the_books_of_a_turn_are_compared_after_each_move(agent: MakeAgent) -> None:
    @tool(effect="pure")
    def cooks_the_books() -> str:
        """Claim that a request left."""
        TURN.get().publish(Named("model:attempt", {"sent": True}))
        return "done"

    one = agent(tools(call("cooks_the_books")), text("ok"), tools=[cooks_the_books])
    with pytest.raises(AssertionError, match="1 attempts spent, 1 requests sent, 0 not sent, 2 left"):
        one.chat("go")


@pytest.mark.behaviour("STR-07b", "STR-08")
@pytest.mark.parametrize("broken", [False, True])
def test_the_second_sink_hears_the_text_too_and_cannot_hurt_the_first(agent: MakeAgent, broken: bool) -> None:
    first, second = [], []

    def speak(delta: str) -> None:
        second.append(delta)
        if broken:
            raise RuntimeError("no sound card")

    one = agent(text("hello there"), callbacks={"stream_delta": first.append, "speech_delta": speak})
    assert one.chat("go") == "hello there"
    assert first[-1] is None, "the first hears where a text ends"
    assert second == [delta for delta in first if delta is not None]


@pytest.mark.behaviour("STR-09")
def test_a_callback_that_answers_may_fail_without_being_an_answer() -> None:
    def broken(name: str) -> str:
        raise ValueError(name)

    callbacks = Callbacks({"before_tool": broken})
    assert asyncio.run(callbacks.ask("before_tool", "x", {})) is None
    with pytest.raises(ValueError, match="x"):
        asyncio.run(callbacks.demand("before_tool", "x", {}))


# What a callback makes of a result


@pytest.mark.behaviour("EXEC-19d")
def test_a_result_can_be_changed_before_the_model_reads_it(agent: MakeAgent) -> None:
    seen: list[Any] = []
    look = tool(effect="pure", name="look")(lambda: "the key is tusk-77")

    async def after(name: str, arguments: Any, text: str, status: str) -> str:
        seen.append((name, dict(arguments), text, status))
        return text.replace("tusk-77", "***")

    completed: list[str] = []
    callbacks = {"after_tool": after, "tool_complete": lambda *values: completed.append(values[3])}
    one = agent(tools(call("look")), text("ok"), tools=[look], callbacks=callbacks)
    result = one.run_conversation("go")
    assert seen == [("look", {}, "the key is tusk-77", "ok")]
    assert completed == ["the key is ***"]
    assert "tusk-77" not in str(result.messages)


@pytest.mark.parametrize("answer", [lambda: None, lambda: 3, lambda: 1 / 0])
def test_a_callback_that_changes_nothing_or_fails_leaves_the_result_as_it_is(
    agent: MakeAgent, answer: Any
) -> None:
    look = tool(effect="pure", name="look")(lambda: "as it is")
    one = agent(tools(call("look")), text("ok"), tools=[look], callbacks={"after_tool": answer})
    assert one.run_conversation("go").messages[2]["content"] == "as it is"
