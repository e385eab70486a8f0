"""Queued turns: written down first, run by workers in order, taken back, handed over."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fsm_agent import Agent, RunContext, TurnResult, tool
from fsm_agent.cli.view import ProgressView
from fsm_agent.composition.services import Services
from fsm_agent.dispatch.dispatcher import DIGEST, InProcess, Order, cancel, control, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.worker import SUSPENDED, WITHDRAWN, App
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.queued import find_queued, queue, to_be_run
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.dispatch.scene import Held, Told, agent_with, asks, attempted, says, served, told
from tests.helpers.processes import ran
from tests.helpers.waiting import until_so


def test_a_turn_that_nobody_was_told_of_is_found_run_and_followed(tmp_path: Path) -> None:
    store, told = Store(tmp_path), Told()
    held = Held()
    held.go.set()

    async def main() -> Any:
        async with served(store, agent_with(held)):
            order = await submit(store, InProcess(), "hi")
            assert len(repr(tuple(order))) < 300
            return order, await Follower(store, told).follow(order.turn)

    order, result = asyncio.run(main())
    assert (result.final_response, result.turn_id, result.completed) == ("after put x", order.turn, True)
    assert [row["role"] for row in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert told.moves[:3] == ["BuildMessages", "CallLLM", "ExecuteTools"]
    assert told.calls == [("put", "put x")]
    row = find_queued(store, order.turn)
    assert row is None or row.request == {}, "the message is not kept twice"


def test_who_follows_a_turn_sees_how_long_its_tools_took(tmp_path: Path) -> None:
    shown = io.StringIO()

    @tool(effect="pure")
    def book() -> int:
        """Take a while."""
        return sum(range(2_000_000))

    script = [tools(call("book")), text("done")]
    agent = Agent(ScriptedModel(script), tools=[book], toolsets=[], home=tmp_path)
    turn = agent.start("go")
    turn.run()
    view = ProgressView(Console(file=shown, width=120), verbose=True)
    asyncio.run(Follower(Store(tmp_path), view).follow(turn.id))
    view.stop()
    asked = (one for seq in range(len(turn.steps)) for one in agent.journal.effects(turn.id, seq))
    took = next(one.seconds for one in asked if one.kind == "RunTool")
    state = next(one.seconds for one in turn.steps if one.source == "ExecuteTools")
    assert took
    assert f"✓ book  {took:.2f} s" in shown.getvalue()
    assert re.search(rf"ExecuteTools .* {state:.2f} s", shown.getvalue())
    assert "0.00" not in f"{took:.2f}"


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
                await Follower(store, Told()).follow(order.turn)
            return orders

    orders = asyncio.run(main())
    turns = [Turns(store.database).info(order.turn) for order in orders]
    assert turns[0].ended is not None
    assert turns[0].ended <= turns[1].began
    assert [one.split()[0] for one in held.begun].count(orders[0].turn) == 1


@pytest.mark.behaviour("WORK-01")
async def test_a_message_is_queued_once_and_an_ended_turn_is_not_run_again(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    held.go.set()
    async with served(store, agent_with(held)) as dispatcher:
        order = await submit(store, dispatcher, "one", turn_id="t-1")
        await Follower(store, Told()).follow(order.turn)
        again = Order(order.session, order.turn, DIGEST)
        assert await attempted(store, again, None, agent_with(held)) == "text_response"
        await queue(store, order.turn, order.session, DIGEST, {"user_message": "one"})
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
                await Follower(store, Told()).follow(waits.turn)
            await cancel(store, dispatcher, runs.turn)
            result = await Follower(store, Told()).follow(runs.turn)
            assert result.interrupted
            return runs, waits

    runs, waits = asyncio.run(main())
    assert [one.id for one in Turns(store.database).recent()] == [runs.turn]
    assert find_queued(store, waits.turn) is not None


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
            return await Follower(store, Told()).follow(order.turn)

    result = asyncio.run(main())
    assert "and be brief" in str(result.messages)


def test_a_turn_that_waits_for_an_answer_goes_on_when_it_is_there(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    held.go.set()
    asks_first = {"approval": {"policy": {"put": "ask"}, "unanswered": "suspend", "timeout": 0}}
    make = agent_with(held, settings=asks_first)

    async def main() -> Any:
        async with served(store, make) as dispatcher:
            order = await submit(store, dispatcher, "go")
            with pytest.raises(TurnSuspended) as waits:
                await Follower(store, Told()).follow(order.turn)
            assert not held.begun
            asked = Agent(ScriptedModel([]), home=tmp_path, store=store)
            asked.answer(waits.value.pending[0].id, "once")
            await until_so(lambda: bool(held.begun), "the tool")
            return await Follower(store, Told()).follow(order.turn)

    assert asyncio.run(main()).final_response == "after put x"
    assert SUSPENDED != WITHDRAWN


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
            first = await Follower(store, told).follow(order.turn)
            empty = await submit(store, dispatcher, " ")
            with pytest.raises(ConfigError, match="cannot begin: the message is empty"):
                await Follower(store, told).follow(empty.turn)
            return first

    assert asyncio.run(main()).final_response == "here I am"
    assert any("is tried again: --app failed (ValueError: no model today)" in line for line in told.lines)


@pytest.mark.behaviour("WORK-06")
async def test_a_turn_of_another_table_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    store, lines, told = Store(tmp_path), list[str](), Told()
    async with served(store, says("never"), tell=lines.append):
        await queue(store, "t-1", "s-1", "0123456789abcdef", {"user_message": "hi"})
        await until_so(lambda: bool(lines), "a line")
        following = asyncio.create_task(Follower(store, told, patient=0).follow("t-1"))
        await until_so(lambda: bool(told.lines), "a line")
        following.cancel()
    assert told.lines == ["queued; it waits for a worker with table 0123456789abcdef"]
    assert lines == [f"1 turn waits for a worker with table 0123456789abcdef; this one has {DIGEST}"]
    assert find_queued(store, "t-1") is not None
    assert not Turns(store.database).recent()


def delegating(held: Held, **task: Any) -> Callable[[], Agent]:
    """A parent that gives a task to a child with the tool."""

    def model(body: dict[str, Any]) -> Any:
        rows = [row for row in body["messages"] if row["role"] != "system"]
        if "find out" in str(rows[0]["content"]):
            return asks(body)
        if rows[-1]["role"] == "tool":
            return text("it is under way" if task else "my child has answered")
        return tools(call("delegate_task", {"goal": "find out", **task}, "c0"))

    def make() -> Agent:
        settings = {"delegation": {"background": True}}
        given = {"tools": [held.tool], "toolsets": ["delegate"], "settings": settings}
        return Agent(ScriptedModel(repeat(model)), **given)

    return make


def test_children_run_in_the_slot_of_their_parent(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    held.go.set()

    async def main() -> Any:
        async with served(store, delegating(held), slots=1) as dispatcher:
            return await told(store, dispatcher, "go")

    result = asyncio.run(main())
    assert result.final_response == "my child has answered"
    assert [child.turn_exit_reason for child in result.children] == ["text_response"]


def test_tasks_in_the_background_outlive_their_turn_on_a_worker(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()

    async def main() -> Any:
        async with served(store, delegating(held, background=True)) as dispatcher:
            result = await told(store, dispatcher, "go")
            await until_so(lambda: bool(held.begun), "the tool of the child")
            held.go.set()
            open_turns = "SELECT 1 FROM turns WHERE ended IS NULL"
            await until_so(lambda: not store.database.select(open_turns), "the task in the background")
            return result

    assert asyncio.run(main()).final_response == "it is under way"
    assert len(held.begun) == 1


def test_a_conversation_is_handed_over_within_a_slot(store: Store) -> None:

    def make() -> Any:
        other = Agent(ScriptedModel(repeat(text("I am the other"))), toolsets=[], name="other")
        over = tools(call("transfer_to_other", {"note": "please"}, "c1"))
        return Agent(ScriptedModel(repeat(over)), toolsets=[], name="first", handoffs=[other])

    async def main() -> Any:
        async with served(store, make) as dispatcher:
            return await told(store, dispatcher, "hi")

    result = asyncio.run(main())
    assert (result.final_response, result.agent) == ("I am the other", "other")


@pytest.mark.parametrize(
    ("factory", "says_so"),
    [
        (says("x")(), "is an agent, and each turn needs one"), (3, "is not a factory"),
        (lambda order, more: None, "wants more than the order"),
        (lambda: "an agent", "gave no agent; given: str"), (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)  # fmt: skip
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
        one = Agent[str, str](ScriptedModel(repeat(asks)), tools=[put], toolsets=[])
        return one, f"deps of {order.session}"

    async def main() -> TurnResult:
        async with served(store, make) as dispatcher:
            return await told(store, dispatcher, "hi")

    session = asyncio.run(main()).session_id
    assert seen == [(f"deps of {session}", session)]


@pytest.mark.parametrize("suspends", [False, True])
def test_the_agent_of_a_turn_is_the_one_that_the_factory_made(tmp_path: Path, suspends: bool) -> None:
    store, made = Store(tmp_path), list[Any]()

    def make() -> Any:
        made.append(says("x", settings={"approval.timeout": 7.0})())
        return made[-1]

    app = App.of(make, "tests:app", store, suspends=suspends)
    order = Order("s-1", "t-1", DIGEST)
    agent, _ = app.make(order)
    asks = agent.settings.approval
    assert agent is made[-1]
    assert (agent.store, agent.home, agent.session_id) == (store, tmp_path, "s-1")
    assert (agent.options["source"], asks.unanswered == "suspend", asks.timeout) == ("worker", suspends, 7.0)
    kept = says("x")()
    adapted, _ = App.of(lambda: kept, "tests:app", store, suspends=suspends).make(order)
    assert (adapted.store, adapted.options["source"]) == (store, "worker")
    assert (adapted.settings.approval.unanswered == "suspend") == suspends


QUEUES_AND_DIES = """
import asyncio, os, sys
from pathlib import Path
from fsm_agent.dispatch.dispatcher import InProcess, submit
from fsm_agent.sessions.store import Store

store = Store(Path(sys.argv[1]))
asyncio.run(submit(store, InProcess(), "go", "s-1", turn_id="t-1", attended=True))
os.kill(os.getpid(), 9)
"""


async def test_an_attended_turn_that_never_began_is_forgotten_once_its_process_has_ended(
    tmp_path: Path,
) -> None:
    assert ran("-c", QUEUES_AND_DIES, tmp_path).returncode == -9
    store = Store(tmp_path)
    assert find_queued(store, "t-1") is not None
    await submit(store, InProcess(), "go", "s-2", turn_id="t-2", attended=True)  # of a process that lives
    async with served(store, says("never")):
        await until_so(lambda: find_queued(store, "t-1") is None)
    assert find_queued(store, "t-2") is not None
    assert Turns(store.database).recent() == []


@pytest.mark.parametrize("placed", [False, True])
def test_the_agent_of_an_order_is_built_once_and_others_keep_their_homes(
    placed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    build = Services.__init__

    def counting(self: Any, options: Any, *rest: Any) -> None:
        build(self, options, *rest)
        built.append(self.home)

    def factory() -> Agent:
        Agent(ScriptedModel([]), toolsets=[], home=tmp_path / "beside")
        where = {"home": tmp_path / "own"} if placed else {}
        return Agent(ScriptedModel([]), toolsets=[], **where)

    store = Store(tmp_path / "served")
    app = App.of(factory, "factory", store, suspends=True)
    monkeypatch.setattr(Services, "__init__", counting)
    agent, _ = app.make(Order("s-1", "s-1-1", DIGEST))
    assert (agent.store, agent.session_id) == (store, "s-1")
    assert agent.settings.approval.unanswered == "suspend"
    homes = [tmp_path / "beside", *([tmp_path / "own"] if placed else []), tmp_path / "served"]
    assert built == homes
