"""Queued turns: written down first, run by workers in order, taken back, handed over."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, RunContext, tool
from fsm_agent.dispatch.apps import App
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.in_process import InProcess
from fsm_agent.dispatch.port import HandOver, Link, Order
from fsm_agent.dispatch.run_turn import LOST, SUSPENDED, WITHDRAWN, OneAttempt, run_turn
from fsm_agent.dispatch.submit import DIGEST, cancel, control, submit
from fsm_agent.dispatch.worker import Worker
from fsm_agent.errors import ConfigError, StoreError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.queued import found, queue, to_be_run
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.helpers.waiting import until_so


class Told:
    """Hears what a follower tells."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def transition(self, turn_id: str, source: str, event: str, dest: str) -> None:
        self.moves.append(dest)

    def tool_complete(self, call_id: str, name: str, arguments: Any, result: str, status: str) -> None:
        self.calls.append((name, result))

    def status(self, line: str) -> None:
        self.lines.append(line)


class Held:
    """A tool that stands still until it is let go, and counts how often it was begun."""

    def __init__(self) -> None:
        self.begun, self.go = list[str](), asyncio.Event()

        @tool(effect="unsafe")
        async def put(ctx: RunContext[None], key: str) -> str:
            """Do what cannot be undone."""
            self.begun.append(f"{ctx.turn_id} {key}")
            await self.go.wait()
            return f"put {key}"

        self.tool = put


def asks(body: dict[str, Any]) -> Any:
    """One call of the tool, then words."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    last = rows[-1]
    return (
        text(f"after {last['content']}") if last["role"] == "tool" else tools(call("put", {"key": "x"}, "c1"))
    )


def app_of(store: Store, make: Callable[[], Any]) -> App:
    return App.of(make, "tests:app", store)


def agent_with(held: Held, **more: Any) -> Callable[[], Agent[Any, Any]]:
    return lambda: Agent(ScriptedModel(repeat(asks)), tools=[held.tool], toolsets=[], **more)


def says(words: str, **more: Any) -> Callable[[], Agent[Any, Any]]:
    return lambda: Agent(ScriptedModel(repeat(text(words))), toolsets=[], **more)


@asynccontextmanager
async def served(
    store: Store, make: Callable[[], Any], slots: int = 2, **more: Any
) -> AsyncIterator[InProcess]:
    dispatcher, stop = InProcess(), asyncio.Event()
    worker = Worker(store, app_of(store, make), dispatcher, sweep=0.02, **more)
    serving = asyncio.create_task(worker.run(slots, stop))
    try:
        yield dispatcher
    finally:
        stop.set()
        await serving


def test_a_turn_that_nobody_was_told_of_is_found_run_and_followed(tmp_path: Path) -> None:
    store, told = Store(tmp_path), Told()
    held = Held()
    held.go.set()

    async def main() -> Any:
        async with served(store, agent_with(held)):
            order = await submit(store, InProcess(), "hi")
            assert len(repr(tuple(order))) < 300
            return order, await Follower(store, told).followed(order.turn)

    order, result = asyncio.run(main())
    assert (result.final_response, result.turn_id, result.completed) == ("after put x", order.turn, True)
    assert [row["role"] for row in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert told.moves[:3] == ["BuildMessages", "CallLLM", "ExecuteTools"]
    assert told.calls == [("put", "put x")]
    assert (queued := found(store, order.turn)) is None or queued.request == {}, (
        "the message is not kept twice"
    )


@pytest.mark.behaviour("WORK-02")
def test_the_turns_of_a_session_follow_each_other_and_sessions_share_the_slots(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> list[Order]:
        async with served(store, agent_with(held), slots=2) as dispatcher:
            first = await submit(store, dispatcher, "one")
            orders = [first, await submit(store, dispatcher, "two", first.session)]
            orders += [await submit(store, dispatcher, "other"), await submit(store, dispatcher, "third")]
            await until_so(lambda: len(held.begun) == 2, "two turns")
            assert await dispatcher.waiting(first.session) == orders[:2]
            await asyncio.sleep(0.1)
            assert len(held.begun) == 2, "two slots"
            held.go.set()
            for order in orders:
                await Follower(store, Told()).followed(order.turn)
            return orders

    orders = asyncio.run(main())
    turns = [Turns(store.database).info(order.turn) for order in orders]
    assert turns[0].ended is not None
    assert turns[0].ended <= turns[1].began
    assert [one.split()[0] for one in held.begun].count(orders[0].turn) == 1


@pytest.mark.behaviour("WORK-01")
def test_a_message_is_queued_once_and_an_ended_turn_is_not_run_again(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    held.go.set()

    async def main() -> None:
        async with served(store, agent_with(held)) as dispatcher:
            order = await submit(store, dispatcher, "one", turn_id="t-1")
            await Follower(store, Told()).followed(order.turn)
            again = Order(order.session, order.turn, DIGEST)
            link = Link()
            make = app_of(store, agent_with(held)).made
            assert await run_turn(again, None, link, store, make, lambda agent: None) == "text_response"
            await queue(store, order.turn, order.session, DIGEST, {"user_message": "one"})

    asyncio.run(main())
    assert len(held.begun) == 1
    assert not [one for one in to_be_run(store, store.now() + 1) if one.begun]


def test_a_turn_that_waits_is_taken_back_and_one_that_runs_is_interrupted(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> tuple[Order, Order]:
        async with served(store, agent_with(held), slots=1) as dispatcher:
            runs = await submit(store, dispatcher, "runs")
            await until_so(lambda: bool(held.begun), "the tool")
            waits = await submit(store, dispatcher, "waits", runs.session)
            await cancel(store, dispatcher, waits.turn)
            with pytest.raises(ConfigError, match="taken back before it began"):
                await Follower(store, Told()).followed(waits.turn)
            await cancel(store, dispatcher, runs.turn)
            result = await Follower(store, Told()).followed(runs.turn)
            assert result.interrupted
            return runs, waits

    runs, waits = asyncio.run(main())
    assert [one.id for one in Turns(store.database).recent()] == [runs.turn]
    assert found(store, waits.turn) is not None


def test_people_reach_a_turn_on_a_worker_through_the_controls(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> Any:
        async with served(store, agent_with(held)) as dispatcher:
            order = await submit(store, dispatcher, "go")
            await until_so(lambda: bool(held.begun), "the tool")
            untaken = "SELECT 1 FROM controls WHERE taken IS NULL"
            for words in ("and be brief", "now"):  # when the second is taken, the first was heard
                await control(store, order.turn, "steer", {"text": words})
                await until_so(lambda: not store.database.select(untaken), "the control")
            held.go.set()
            return await Follower(store, Told()).followed(order.turn)

    result = asyncio.run(main())
    assert "and be brief" in str(result.messages)


@pytest.mark.behaviour("WORK-03")
def test_a_leaving_worker_hands_its_turn_over_behind_a_move(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> Any:
        order = Order("s-1", "t-1", DIGEST)
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
        make, link = app_of(store, agent_with(held)).made, Link()
        running = asyncio.create_task(run_turn(order, 1, link, store, make, lambda agent: None))
        await until_so(lambda: bool(held.begun), "the tool")
        link.leaving.set()
        held.go.set()
        with pytest.raises(HandOver):
            await running
        info = Turns(store.database).info("t-1")
        assert (info.owner, info.state, info.ended) == (None, "BuildMessages", None)
        other = Store(tmp_path)
        assert (
            await run_turn(order, 2, Link(), other, app_of(other, agent_with(held)).made, lambda agent: None)
            == "text_response"
        )

    asyncio.run(main())
    assert len(held.begun) == 1, "what was done is not done again"


class Mutant(Store):
    """A store in which a late attempt has the right of a new one."""

    async def claim(self, turn_id: str, rank: int | None = None, *more: Any, **names: Any) -> Any:
        return await super().claim(turn_id, None if rank is None else rank + 100, *more, **names)


@pytest.mark.behaviour("WORK-04")
@pytest.mark.parametrize("kind", [Store, Mutant])
def test_a_late_attempt_takes_nothing_from_the_one_that_runs(tmp_path: Path, kind: type[Store]) -> None:
    store, late = Store(tmp_path), kind(tmp_path)
    held, other = Held(), Held()
    other.go.set()

    async def main() -> tuple[str, str]:
        order = Order("s-1", "t-1", DIGEST)
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
        make = app_of(store, agent_with(held)).made
        running = asyncio.create_task(run_turn(order, 5, Link(), store, make, lambda agent: None))
        await until_so(lambda: bool(held.begun), "the tool")
        made = app_of(late, agent_with(other)).made
        said = await run_turn(order, 4, Link(), late, made, lambda agent: None)
        held.go.set()
        return said, await running

    said, running = asyncio.run(main())
    if kind is Store:
        assert (said, running) == (LOST, "text_response")
    else:  # without ranks the late one takes the turn from the one that runs
        assert (said, running) == ("text_response", LOST)


def test_a_later_attempt_in_the_same_process_stops_the_one_before(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> None:
        order, attempts = Order("s-1", "t-1", DIGEST), OneAttempt()
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
        make = app_of(store, agent_with(held)).made

        async def attempt(rank: int) -> str:
            link = Link()
            async with attempts.alone(order.turn, link):
                return await run_turn(order, rank, link, store, make, lambda agent: None)

        first = asyncio.create_task(attempt(1))
        await until_so(lambda: bool(held.begun), "the tool")
        second = asyncio.create_task(attempt(2))
        assert await first == LOST
        held.go.set()
        assert await second == "text_response"

    asyncio.run(main())
    assert len(held.begun) == 1, "nobody knows what became of the first call, so it is not repeated"
    rows = store.database.select("SELECT status FROM effects WHERE name = 'put'")
    assert rows == [("unknown",)]


def test_a_turn_that_waits_for_an_answer_goes_on_when_it_is_there(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    held.go.set()
    asks_first = {"approval": {"policy": {"put": "ask"}, "unanswered": "suspend", "timeout": 0}}
    make = agent_with(held, settings=asks_first)

    async def main() -> Any:
        async with served(store, make) as dispatcher:
            order = await submit(store, dispatcher, "go")
            with pytest.raises(TurnSuspended) as waits:
                await Follower(store, Told()).followed(order.turn)
            assert not held.begun
            asked = Agent(ScriptedModel([]), home=tmp_path, store=store)
            asked.answer(waits.value.pending[0].id, "once")
            await until_so(lambda: bool(held.begun), "the tool")
            return await Follower(store, Told()).followed(order.turn)

    assert asyncio.run(main()).final_response == "after put x"
    assert SUSPENDED != WITHDRAWN


@pytest.mark.slow
def test_a_worker_that_cannot_write_stops_and_another_goes_on(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> str:
        order = Order("s-1", "t-1", DIGEST)
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
        make = app_of(store, agent_with(held)).made
        running = asyncio.create_task(run_turn(order, 1, Link(), store, make, lambda agent: None))
        await until_so(lambda: bool(held.begun), "the tool")
        lock = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        held.go.set()
        with pytest.raises(StoreError, match="lock"):  # and not: it goes on in memory
            await running
        lock.close()
        other = Store(tmp_path)
        made = app_of(other, agent_with(held)).made
        return await run_turn(order, 2, Link(), other, made, lambda agent: None)

    assert asyncio.run(main()) == "text_response"
    assert len(held.begun) == 1


def test_what_keeps_a_turn_from_running_is_said_to_whoever_waits(tmp_path: Path) -> None:
    store, told, tries = Store(tmp_path), Told(), [ValueError("no model today")]

    def make() -> Any:
        if len(tries) == 2:
            raise tries.pop()
        return says("here I am")()

    async def main() -> Any:
        async with served(store, make, tell=told.lines.append) as dispatcher:
            tries.append(ValueError("no model today"))
            order = await submit(store, dispatcher, "hi")
            first = await Follower(store, told).followed(order.turn)
            empty = await submit(store, dispatcher, " ")
            with pytest.raises(ConfigError, match="cannot begin: the message is empty"):
                await Follower(store, told).followed(empty.turn)
            return first

    assert asyncio.run(main()).final_response == "here I am"
    assert any("is tried again: --app failed (ValueError: no model today)" in line for line in told.lines)


@pytest.mark.behaviour("WORK-06")
def test_a_turn_of_another_table_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    store, lines, told = Store(tmp_path), list[str](), Told()

    async def main() -> None:
        async with served(store, says("never"), tell=lines.append):
            await queue(store, "t-1", "s-1", "0123456789abcdef", {"user_message": "hi"})
            await until_so(lambda: bool(lines), "a line")
            following = asyncio.create_task(Follower(store, told, patient=0).followed("t-1"))
            await until_so(lambda: bool(told.lines), "a line")
            following.cancel()

    asyncio.run(main())
    assert told.lines == ["queued; it waits for a worker with table 0123456789abcdef"]
    assert lines == [f"1 turn waits for a worker with table 0123456789abcdef; this one has {DIGEST}"]
    assert found(store, "t-1") is not None
    assert not Turns(store.database).recent()


def delegating(body: dict[str, Any]) -> Any:
    """A parent that gives a task to a child, and the child."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    if "find out" in str(rows[0]["content"]):
        return text("found out")
    if rows[-1]["role"] == "tool":
        return text("my child has answered")
    return tools(call("delegate_task", {"tasks": [{"goal": "find out"}]}, "c1"))


def test_children_run_in_the_slot_of_their_parent(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def make() -> Any:
        return Agent(ScriptedModel(repeat(delegating)), toolsets=["delegate"])

    async def main() -> Any:
        async with served(store, make, slots=1) as dispatcher:
            order = await submit(store, dispatcher, "go")
            return await Follower(store, Told()).followed(order.turn)

    result = asyncio.run(main())
    assert result.final_response == "my child has answered"
    assert [child.turn_exit_reason for child in result.children] == ["text_response"]


@pytest.mark.behaviour("WORK-05")
def test_children_are_taken_over_with_their_parent(tmp_path: Path) -> None:
    store, other, held = Store(tmp_path), Store(tmp_path), Held()

    def model(body: dict[str, Any]) -> Any:
        rows = [row for row in body["messages"] if row["role"] != "system"]
        if "find out" in str(rows[0]["content"]):
            return asks(body)
        said = rows[-1]
        if said["role"] == "tool":
            return text(f"my child: {said['content']}")
        return tools(call("delegate_task", {"goal": "find out"}, "c0"))

    def make() -> Any:
        return Agent(ScriptedModel(repeat(model)), tools=[held.tool], toolsets=["delegate"])

    async def main() -> tuple[str, str]:
        order = Order("s-1", "t-1", DIGEST)
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
        first = run_turn(order, 1, Link(), store, app_of(store, make).made, lambda agent: None)
        running = asyncio.create_task(first)
        await until_so(lambda: bool(held.begun), "the tool of the child")
        second = await run_turn(order, 2, Link(), other, app_of(other, make).made, lambda agent: None)
        held.go.set()  # the old owner wakes when all is done
        return await running, second

    assert asyncio.run(main()) == (LOST, "text_response")
    assert len(held.begun) == 1
    turns = Turns(store.database)
    assert {one.exit for one in turns.recent()} == {"text_response"}
    assert "nobody knows" in str(turns.messages("t-1")) or "unknown" in str(
        store.database.select("SELECT status FROM effects WHERE name = 'put'")
    )


def test_tasks_in_the_background_outlive_their_turn_on_a_worker(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    def model(body: dict[str, Any]) -> Any:
        rows = [row for row in body["messages"] if row["role"] != "system"]
        if "find out" in str(rows[0]["content"]):
            return asks(body)
        if rows[-1]["role"] == "tool":
            return text("it is under way")
        return tools(call("delegate_task", {"goal": "find out", "background": True}, "c0"))

    def make() -> Any:
        settings = {"delegation": {"background": True}}
        return Agent(
            ScriptedModel(repeat(model)), tools=[held.tool], toolsets=["delegate"], settings=settings
        )

    async def main() -> Any:
        async with served(store, make) as dispatcher:
            order = await submit(store, dispatcher, "go")
            result = await Follower(store, Told()).followed(order.turn)
            await until_so(lambda: bool(held.begun), "the tool of the child")
            held.go.set()
            open_turns = "SELECT 1 FROM turns WHERE ended IS NULL"
            await until_so(lambda: not store.database.select(open_turns), "the task in the background")
            return result

    assert asyncio.run(main()).final_response == "it is under way"
    assert len(held.begun) == 1


def test_a_conversation_is_handed_over_within_a_slot(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def make() -> Any:
        other = Agent(ScriptedModel(repeat(text("I am the other"))), toolsets=[], name="other")
        over = tools(call("transfer_to_other", {"note": "please"}, "c1"))
        return Agent(ScriptedModel(repeat(over)), toolsets=[], name="first", handoffs=[other])

    async def main() -> Any:
        async with served(store, make) as dispatcher:
            order = await submit(store, dispatcher, "hi")
            return await Follower(store, Told()).followed(order.turn)

    result = asyncio.run(main())
    assert (result.final_response, result.agent) == ("I am the other", "other")


@pytest.mark.parametrize(
    ("factory", "says_so"),
    [
        (says("x")(), "is an agent, and each turn needs one"),
        (3, "is no factory"),
        (lambda order, more: None, "wants more than the order"),
        (lambda: "an agent", "gave no agent; given: str"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_is_no_app_is_one_line(tmp_path: Path, factory: Any, says_so: str) -> None:
    with pytest.raises(ConfigError, match=says_so):
        App.of(factory, "mine:app", Store(tmp_path))


def test_an_app_may_say_what_its_tools_get(tmp_path: Path) -> None:
    store, seen = Store(tmp_path), list[Any]()

    @tool(effect="pure")
    def put(ctx: RunContext[str], key: str) -> str:
        """Look."""
        seen.append((ctx.deps, ctx.session_id))
        return "seen"

    def make(order: Order) -> Any:
        return Agent[str, str](
            ScriptedModel(repeat(asks)), tools=[put], toolsets=[]
        ), f"deps of {order.session}"

    async def main() -> Order:
        async with served(store, make) as dispatcher:
            order = await submit(store, dispatcher, "hi")
            await Follower(store, Told()).followed(order.turn)
            return order

    order = asyncio.run(main())
    assert seen == [(f"deps of {order.session}", order.session)]
