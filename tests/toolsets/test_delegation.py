"""Child turns: isolated, at the same time, within their budgets, and never more powerful than their
parent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.helpers.waiting import PATIENCE

Lines = dict[str, list[Any]]


def model(lines: Lines, requests: list[Any] | None = None) -> ScriptedModel:
    """Answers each conversation by its first words: who is asked "go" has other replies than who is asked
    "find the cat"."""
    left = {asked: list(replies) for asked, replies in lines.items()}
    lock = threading.Lock()

    def answer(body: Mapping[str, Any]) -> Any:
        with lock:
            asked = next(row["content"] for row in body["messages"] if row["role"] == "user")
            if requests is not None:
                requests.append((asked, body))
            return left[asked].pop(0)

    return ScriptedModel(repeat(answer))


def agent(home: Path, lines: Lines, requests: list[Any] | None = None, **options: Any) -> Agent:
    return Agent(model(lines, requests), home=home, **{"toolsets": ["delegate", "todo"], **options})


def delegate(*goals: str, **more: Any) -> Any:
    return tools(call("delegate_task", {"tasks": [{"goal": goal} for goal in goals], **more}))


def told(result: Any) -> list[Any]:
    rows = [row["content"] for row in result.messages if row["role"] == "tool"]
    return [json.loads(row) if row.startswith("{") else row for row in rows]


@pytest.mark.behaviour("AGT-05", "AGT-05b", "AGT-05c")
def test_100_only_the_summary_comes_back_and_the_child_sees_nothing_else(tmp_path: Path) -> None:
    requests: list[Any] = []
    note = tool(concurrency="parallel", effect="pure", name="note")(lambda: "a secret detail")
    lines = {
        "my private talk": [
            tools(call("delegate_task", {"goal": "find the cat", "context": "it is grey"})),
            text("The cat sleeps."),
        ],
        "find the cat\n\nContext:\nit is grey": [tools(call("note")), text("It sleeps in the barn.")],
    }
    one = agent(tmp_path, lines, requests, tools=[note])
    result = one.run_conversation("my private talk")
    (report,) = told(result)
    assert result.final_response == "The cat sleeps."
    assert report["results"][0] | {"turn": ""} == {
        "task": "find the cat", "status": "completed", "summary": "It sleeps in the barn.", "turn": "", "iterations": 2,
        "tokens": 30,
    }  # fmt: skip
    assert "secret detail" not in json.dumps(result.messages)
    child = [body for asked, body in requests if asked.startswith("find")]
    assert "my private talk" not in json.dumps(child)
    names = {one["function"]["name"] for one in child[0]["tools"]}
    assert names == {"note", "todo"}


def test_a_childs_turn_and_figures_are_its_own(tmp_path: Path) -> None:
    lines = {"go": [delegate("a", "b"), text("ok")], "a": [text("A")], "b": [text("B")]}
    one = agent(tmp_path, lines)
    result = one.run_conversation("go")
    assert (result.attempts, result.total_tokens) == (2, 30)
    assert [(child.outcome, child.attempts, child.usage.total) for child in result.children] == [
        ("completed", 1, 15)
    ] * 2
    assert {child.turn_id for child in result.children} == {
        entry["turn"] for entry in told(result)[0]["results"]
    }
    # children are turns of their own in the journal
    lines = {"go": [delegate("a"), text("ok")], "a": [text("A")]}
    one = agent(tmp_path / "2", lines)
    turn = one.start("go")
    result = turn.run()
    info = one.journal.info(result.children[0].turn_id)
    assert (info.parent, info.forked_at, info.asked, info.outcome) == (turn.id, None, "a", "completed")
    assert one.journal.steps(info.id)[-1].dest == "Finalize"
    call_id = next(row["tool_calls"][0]["id"] for row in result.messages if row.get("tool_calls"))
    assert result.children[0].task_id == f"{call_id}.0"
    with one._store.database.reading() as c:
        kind, parent = c.execute("SELECT kind, parent FROM sessions WHERE id = ?", (info.session,)).fetchone()
    assert (kind, parent) == ("child", result.session_id)


@pytest.mark.behaviour("AGT-06")
def test_the_results_are_in_task_order_and_the_children_run_at_the_same_time(tmp_path: Path) -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE)

    @tool(effect="pure")
    def meet(after: float) -> str:
        """Come back when all are there."""
        barrier.wait()
        time.sleep(after)
        return "met"

    lines: Lines = {"go": [delegate("a", "b", "c"), text("ok")]}
    lines |= {
        name: [tools(call("meet", {"after": wait})), text(name.upper())]
        for name, wait in zip("abc", (0.06, 0.03, 0), strict=True)
    }
    result = agent(tmp_path, lines, tools=[meet]).run_conversation("go")
    assert [entry["summary"] for entry in told(result)[0]["results"]] == ["A", "B", "C"]


@pytest.mark.behaviour("EXEC-13")
def test_delegations_beyond_the_limit_are_answered_and_not_run(tmp_path: Path) -> None:
    ran: list[Any] = []
    goals = [call("delegate_task", {"goal": name}) for name in "abcd"]
    lines: Lines = {"go": [tools(*goals), delegate("e", "f", "g", "h"), text("ok")]} | {
        n: [text(n)] for n in "abcdefgh"
    }
    results = told(agent(tmp_path, lines, ran).run_conversation("go"))
    assert [isinstance(one, dict) for one in results] == [True, True, True, False, False]
    assert "over the limit of 3" in results[3]
    assert "over the limit of 3" in results[4]
    assert {asked for asked, _ in ran} == {"go", "a", "b", "c"}


@pytest.mark.behaviour("CONC-08", "AGT-01c", "AGT-05")
def test_a_child_has_no_children_by_default_and_no_tools_that_are_withheld(tmp_path: Path) -> None:
    deep = {"delegation": {"max_depth": 2}}
    for settings, names in (({}, {"todo"}), (deep, {"todo", "delegate_task"})):
        requests: list[Any] = []
        lines = {"go": [delegate("a"), text("ok")], "a": [text("A")]}
        agent(tmp_path, lines, requests, settings=settings).run_conversation("go")
        child = next(body for asked, body in requests if asked == "a")
        assert {one["function"]["name"] for one in child["tools"]} == names
    lines = {"go": [delegate("a"), text("ok")], "a": [delegate("b"), text("A")], "b": [text("B")]}
    assert agent(tmp_path, lines, settings=deep).run_conversation("go").completed
    assert "delegate_task" not in str(
        agent(tmp_path, {}, settings={"delegation": {"max_depth": 0}})._services.agent_tools.names
    )
    # withheld tools are withheld whoever made them
    requests = []
    own = [tool(name=name)(lambda: "x") for name in ("memory", "send_message", "execute_code", "fine")]
    lines = {"go": [delegate("a"), text("ok")], "a": [text("A")]}
    agent(
        tmp_path / "2", lines, requests, tools=own, toolsets=["delegate", "clarify", "memory", "code"]
    ).run_conversation("go")
    child = next(body for asked, body in requests if asked == "a")
    assert {one["function"]["name"] for one in child["tools"]} == {"fine"}


def test_a_failing_child_does_not_hurt_the_others(tmp_path: Path) -> None:
    lines = {"go": [delegate("a", "b"), text("ok")], "a": [text("")] * 9, "b": [text("B")]}
    failed, fine = told(agent(tmp_path, lines, settings={"backoff": NO_WAIT}).run_conversation("go"))[0][
        "results"
    ]
    assert (failed["status"], fine["status"]) == ("failed", "completed")
    assert failed["error"]
    # a child that goes in circles is halted also when its parent is attended
    fail = tool(effect="pure", name="fail")(lambda: 1 / 0)
    lines = {"go": [delegate("circle"), text("ok")], "circle": [tools(call("fail"))] * 9}
    result = agent(
        tmp_path / "2", lines, tools=[fail], callbacks={"approval": lambda request: True}
    ).run_conversation("go")
    assert [child.turn_exit_reason for child in result.children] == ["guardrail_halt"]
    assert result.completed


NO_WAIT = {"exception": {"base": 0, "cap": 0}, "invalid": {"base": 0, "cap": 0}}


@pytest.mark.behaviour("AGT-05")
def test_a_long_answer_is_cut_to_its_share_of_the_room_and_kept_whole(tmp_path: Path) -> None:
    long = "fact " * 10_000
    lines = {"go": [delegate("a"), text("ok")], "a": [text(long)]}
    one = agent(tmp_path, lines, settings={"delegation": {"summary_max_chars": 3_000}})
    (entry,) = told(one.run_conversation("go"))[0]["results"]
    assert len(entry["summary"]) <= 3_000
    path = entry["summary"].split("the whole answer is in ")[1].split("]")[0]
    assert Path(path).read_text() == long.strip() or Path(path).read_text() == long
    small = agent(
        tmp_path,
        {"go": [delegate("a", "b"), text("ok")], "a": [text(long)], "b": [text(long)]},
        context_window=20_000,
    )
    first, second = told(small.run_conversation("go"))[0]["results"]
    assert 2_000 * 0.8 < len(first["summary"]) < 20_000
    assert len(first["summary"]) == len(second["summary"])


# Budgets (DIS-01)


def busy(goal: str, rounds: int) -> Lines:
    return {goal: [tools(call("todo", {"todos": [{"id": str(n), "content": "x"}]})) for n in range(rounds)]}


@pytest.mark.behaviour("BUD-03", "BUD-03b", "BUD-03d", "DIS-01")
@pytest.mark.parametrize(
    ("mode", "iterations"),
    [("independent", (4, 4)), ("tree_cap", None), ("shared", None)],
)
def test_the_budgets_of_a_tree(tmp_path: Path, mode: str, iterations: Any) -> None:
    """Root: one iteration before the children. tree_cap 6 and shared 6: the children have five left between
    them."""
    settings = {
        "max_iterations": 6,
        "delegation": {"budget": mode, "max_iterations": 4, "tree_cap_factor": 1},
        "budget": {"grace_call": False},
    }
    lines = {"go": [delegate("a", "b"), text("ok")], **busy("a", 5), **busy("b", 5)}
    result = agent(tmp_path, lines, settings=settings).run_conversation("go")
    children = tuple(child.api_calls for child in result.children)
    if iterations is not None:
        assert children == iterations
    else:
        assert sum(children) == 5
    assert all(child.outcome != "completed" for child in result.children)


@pytest.mark.behaviour("BUD-02d")
def test_a_budget_that_is_handed_in_is_shared_with_the_children(tmp_path: Path) -> None:
    budget = IterationBudget(4)
    lines = {"go": [delegate("a"), text("ok")], **busy("a", 9)}
    agent(tmp_path, lines, budget=budget, settings={"budget": {"grace_call": False}}).run_conversation("go")
    assert budget.used == 4


# Interrupts, heartbeats, staleness


@pytest.mark.behaviour("AGT-06")
def test_an_interrupt_reaches_every_child_and_keeps_what_they_said(tmp_path: Path) -> None:
    started = threading.Semaphore(0)

    @tool(effect="pure")
    async def linger() -> str:
        """Stay."""
        started.release()
        await asyncio.Event().wait()
        return "never"

    lines: Lines = {"go": [delegate("a", "b"), text("never")]} | {
        n: [tools(call("linger")), text("never")] for n in "ab"
    }
    one = agent(tmp_path, lines, tools=[linger])

    def stop() -> None:
        for _ in range(2):
            started.acquire(timeout=PATIENCE)
        one.interrupt("enough")

    stopper = threading.Thread(target=stop)
    stopper.start()
    result = one.run_conversation("go")
    stopper.join()
    assert result.interrupted
    assert [entry["status"] for entry in told(result)[0]["results"]] == ["interrupted"] * 2
    assert [child.outcome for child in result.children] == ["interrupted"] * 2


@pytest.mark.behaviour("LOOP-06", "AGT-06")
def test_a_child_that_does_nothing_is_stopped_and_a_long_one_shows_a_sign_of_life(tmp_path: Path) -> None:
    """Time goes by in two steps: until the sign, which comes once the child is at work, and after it."""
    clock, status = FakeClock(), list[str]()

    @tool(effect="pure", timeout=3_000)
    async def linger() -> str:
        """Stay."""
        clock.advance(70)
        await asyncio.Event().wait()
        return "never"

    def sign(line: str) -> None:
        if "(linger)" in line:
            clock.advance(700)
        status.append(line)

    lines = {"go": [delegate("a"), text("ok")], "a": [tools(call("linger")), text("never")]}
    settings = {"delegation": {"stale_in_tool": 600, "heartbeat": 60}, "poll": {"control": 0.02}}
    one = agent(tmp_path, lines, tools=[linger], settings=settings, callbacks={"status": sign}, clock=clock)
    result = one.run_conversation("go")
    (entry,) = told(result)[0]["results"]
    assert result.completed
    assert entry["status"] == "interrupted"
    assert "in a tool" in entry["error"]
    assert any("1 of 1 delegated tasks at work: a (linger)" in line for line in status)


@pytest.mark.behaviour("LOOP-06")
def test_each_request_of_a_child_is_a_sign_of_life(tmp_path: Path) -> None:
    """Four requests of 170 s each are longer than a child may do nothing, 450 s."""
    clock = FakeClock()
    parent = iter([delegate("a"), text("ok")])
    child = iter([*busy("a", 3)["a"], text("A")])

    def answer(body: Mapping[str, Any]) -> Any:
        if next(row["content"] for row in body["messages"] if row["role"] == "user") == "go":
            return next(parent)
        clock.advance(170)
        return next(child)

    settings = {"poll": {"control": 0.02}}
    one = Agent(
        ScriptedModel(repeat(answer)),
        home=tmp_path,
        toolsets=["delegate", "todo"],
        settings=settings,
        clock=clock,
    )
    (entry,) = told(one.run_conversation("go"))[0]["results"]
    assert (entry["status"], entry["summary"]) == ("completed", "A")


def test_the_parents_events_tell_what_its_children_do(tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    lines = {"go": [delegate("a"), text("ok")], "a": [tools(call("todo", {})), text("A")]}
    one = agent(tmp_path, lines, callbacks={"event": lambda name, data: heard.append((name, data))})
    turn = one.start("go")
    streamed = [event for event in turn.events() if event.name == "event"]
    names = [name for name, _ in heard if name.startswith("child:")]
    assert names == ["child:start", "child:tool", "child:end"]
    assert {event.turn_id for event in streamed} == {turn.id}
    assert names == [event.values[0] for event in streamed if event.values[0].startswith("child:")]


# Approvals: no way around them by delegation (APPR-05)


def danger(ran: list[str]) -> Any:
    @tool(approval="ask")
    def drop_table(name: str) -> str:
        """Drop a table."""
        ran.append(name)
        return "dropped"

    return drop_table


def dangerous(home: Path, ran: list[str], approve: Callable[..., Any] | None, **settings: Any) -> Agent:
    lines = {
        "go": [tools(call("drop_table", {"name": "users"})), delegate("a"), text("ok")],
        "a": [tools(call("drop_table", {"name": "users"})), text("A")],
    }
    callbacks = {} if approve is None else {"approval": approve}
    return agent(home, lines, tools=[danger(ran)], callbacks=callbacks, settings=settings)


def child_rows(one: Agent, result: Any) -> str:
    return json.dumps(one.journal.messages(result.children[0].turn_id))


@pytest.mark.behaviour("APPR-05")
@pytest.mark.parametrize("answer", ["once", "session"])
def test_a_yes_in_the_parent_is_no_yes_in_a_child(tmp_path: Path, answer: str) -> None:
    ran: list[str] = []
    one = dangerous(tmp_path, ran, lambda request: answer)
    result = one.run_conversation("go")
    assert ran == ["users"]
    assert "a child turn may not ask" in child_rows(one, result)


def test_a_child_asks_only_where_that_is_set_and_somebody_is_there(tmp_path: Path) -> None:
    ran: list[str] = []
    asked: list[str] = []

    def approve(request: Any) -> str:
        asked.append(request.origin)
        return "once"

    dangerous(tmp_path, ran, approve, delegation={"approvals": "ask"}).run_conversation("go")
    assert ran == ["users", "users"]
    assert asked == ["", "a"]
    # with nobody there a child that may ask is denied too
    ran = []
    dangerous(tmp_path / "2", ran, None, delegation={"approvals": "ask"}).run_conversation("go")
    assert not ran
    # what is allowed or forbidden for good holds for children
    ran = []
    dangerous(tmp_path / "3", ran, None, approval={"allow": ["drop_table"]}).run_conversation("go")
    assert ran == ["users", "users"]
    dangerous(
        tmp_path / "3" / "b",
        ran,
        lambda request: True,
        approval={"deny": ["drop_table"]},
        delegation={"approvals": "ask"},
    ).run_conversation("go")
    assert ran == ["users", "users"]


@pytest.mark.slow
def test_children_that_ask_at_once_are_answered_one_after_the_other(tmp_path: Path) -> None:
    """The second question waits for the first, and has its whole time after that."""
    ran: list[str] = []
    busy_with: list[int] = [0]
    clock = FakeClock()

    def approve(request: Any) -> str:
        busy_with[0] += 1
        assert busy_with[0] == 1
        clock.advance(60)
        busy_with[0] -= 1
        return "once"

    lines: Lines = {"go": [delegate("a", "b", "c"), text("ok")]}
    lines |= {name: [tools(call("drop_table", {"name": name})), text(name)] for name in "abc"}
    settings = {"delegation": {"approvals": "ask"}, "approval": {"timeout": 100}, "poll": {"control": 0.02}}
    one = agent(
        tmp_path, lines, tools=[danger(ran)], callbacks={"approval": approve}, settings=settings, clock=clock
    )
    one.run_conversation("go")
    assert sorted(ran) == ["a", "b", "c"]


def test_a_check_before_every_tool_holds_for_children_too(tmp_path: Path) -> None:
    ran: list[str] = []
    hit = tool(name="hit")(lambda: ran.append("hit") or "hit")
    lines = {"go": [delegate("a"), text("ok")], "a": [tools(call("hit")), text("A")]}
    hook = {"before_tool": lambda name: "block" if name == "hit" else None}
    one = agent(tmp_path, lines, tools=[hit], callbacks=hook)
    result = one.run_conversation("go")
    assert not ran
    assert "blocked by a check" in child_rows(one, result)


# Going on after a crash


def test_a_delegation_that_was_cut_off_goes_on_with_the_same_children(tmp_path: Path) -> None:
    """The host stops in the middle: one child had ended, one waits in a tool, and both are found again."""
    reached, ran = asyncio.Event(), []

    @tool(effect="pure")
    async def linger(name: str) -> str:
        """Stay the first time."""
        ran.append(name)
        if len(ran) == 1:
            reached.set()
            await asyncio.Event().wait()
        return "came back"

    lines = {
        "go": [delegate("a", "b"), text("both are done")],
        "a": [text("A")],
        "b": [tools(call("linger", {"name": "b"})), text("B")],
    }
    requests: list[Any] = []
    one = agent(tmp_path, lines, requests, tools=[linger])

    async def cut_off() -> str:
        turn = one.start("go")
        running = asyncio.ensure_future(turn.arun())
        await reached.wait()
        while not any(found.asked == "a" and found.ended for found in one.journal.recent()):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        return turn.id

    turn_id = asyncio.run(cut_off())
    result = one.resume(turn_id).run()
    assert result.final_response == "both are done"
    assert [entry["summary"] for entry in told(result)[0]["results"]] == ["A", "B"]
    assert ran == ["b", "b"]
    assert len(result.children) == 2
    assert sorted(asked for asked, _ in requests) == ["a", "b", "b", "go", "go"]


def test_the_same_turn_goes_on_in_the_same_loop_after_its_host_was_cancelled(tmp_path: Path) -> None:
    """The children of the first time are still stopping when the call is made again."""
    reached, ran = asyncio.Event(), []

    @tool(effect="pure")
    async def linger() -> str:
        """Stay the first time, and take a moment to leave."""
        ran.append("x")
        if len(ran) == 1:
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.1)
        return "came back"

    lines = {"go": [delegate("a"), text("done")], "a": [tools(call("linger")), text("A")]}
    one = agent(tmp_path, lines, tools=[linger])

    async def twice() -> Any:
        turn = one.start("go")
        running = asyncio.ensure_future(turn.arun())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
        return await turn.arun()

    result = asyncio.run(twice())
    assert [entry["summary"] for entry in told(result)[0]["results"]] == ["A"]
    assert ran == ["x", "x"]


def test_children_of_a_turn_that_is_given_up_are_given_up_too(tmp_path: Path) -> None:
    reached = asyncio.Event()

    @tool(effect="pure")
    async def linger() -> str:
        """Stay."""
        reached.set()
        await asyncio.Event().wait()
        return "never"

    lines = {"go": [delegate("a"), text("never")], "a": [tools(call("linger")), text("never")]}
    one = agent(tmp_path, lines, tools=[linger], session_id="s-1")

    async def cut_off() -> None:
        running = asyncio.ensure_future(one.start("go").arun())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(cut_off())
    assert len(one.journal.recent(unfinished=True)) == 2
    other = agent(tmp_path, {"go": [text("on we go")]}, session_id="s-1")
    other.run_conversation("something else")
    assert not one.journal.recent(unfinished=True)


def test_a_budget_counts_on_after_a_restart(tmp_path: Path) -> None:
    settings = {"max_iterations": 9, "budget": {"grace_call": False}, "delegation": {"tree_cap_factor": 1}}
    lines = {"go": [delegate("a"), *busy("go", 9)["go"]], **busy("a", 4)}
    lines["a"].append(text("A"))
    one = agent(tmp_path, lines, settings=settings)

    async def some() -> str:
        turn = one.start("go")
        await turn.run_until(state="BuildMessages", event="done")
        return turn.id

    turn_id = asyncio.run(some())
    result = one.resume(turn_id).run()
    assert result.children[0].api_calls == 5
    assert result.api_calls == 4


def test_an_unsafe_tool_of_a_child_is_not_run_again_after_that(tmp_path: Path) -> None:
    reached, ran = asyncio.Event(), []

    @tool(effect="unsafe")
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        reached.set()
        await asyncio.Event().wait()
        return "paid"

    lines = {
        "go": [delegate("a"), text("ok")],
        "a": [tools(call("pay")), text("I do not know whether it was paid.")],
    }
    one = agent(tmp_path, lines, tools=[pay])

    async def cut_off() -> str:
        turn = one.start("go")
        running = asyncio.ensure_future(turn.arun())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
        return turn.id

    result = one.resume(asyncio.run(cut_off())).run()
    assert ran == ["paid"]
    assert "Unknown outcome" in child_rows(one, result)
    assert "do not know" in told(result)[0]["results"][0]["summary"]
