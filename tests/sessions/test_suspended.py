"""A turn that waits for people, for results or for a time is suspended, and continues in any process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, ResultLater, TurnSuspended, WakeAt, tool
from fsm_agent.debug import DebugSession
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_session
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.helpers.store_homes import contents
from tests.helpers.waiting import PATIENCE, until

DROP, CHAIRS = call("drop", {"table": "users"}), call("order", {"what": "chairs"})
ASK = call("clarify", {"question": "Which?"})
SUSPEND = {"approval": {"unanswered": "suspend", "timeout": 0.05, "question_timeout": 0.05}}


class World:
    """What tools did. ``again``: another process, in front of the rest of the script."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home, self.options, self.done = home, options, list[str]()

        @tool(approval="ask")
        def drop(table: str) -> str:
            """Drop a table."""
            self.done.append(f"dropped {table}")
            return f"{table} is gone"

        @tool
        def order(what: str) -> str:
            """Order something that comes later."""
            self.done.append(f"ordered {what}")
            raise ResultLater(f"the warehouse, {what}")

        @tool
        def rest(until: float) -> str:
            """Rest."""
            self.done.append(f"rests until {until:g}")
            raise WakeAt(until, "the morning has come")

        @tool(concurrency="parallel", effect="pure")
        def look(at: str) -> str:
            """Look."""
            self.done.append(f"looked at {at}")
            return "fine"

        self.tools = [drop, order, rest, look]

    def process(self, script: Iterable[Any] = (), **options: Any) -> Agent:
        given = {
            "tools": self.tools, "toolsets": ["clarify"], "session_id": "s", "clock": FakeClock(),
            "settings": SUSPEND, "store": Store(self.home), **self.options, **options,
        }  # fmt: skip
        return Agent(ScriptedModel(script), home=self.home, **given)

    def suspended(self, *calls: Any, **options: Any) -> Pending:
        """A turn that makes these calls, and what it waits for first."""
        [item] = suspends(lambda: self.process([tools(*calls)], **options).chat("please")).pending
        return item


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def told(result: Any) -> list[str]:
    return contents(row for row in result.messages if row["role"] == "tool")


def suspends(turn: Callable[[], object], **options: Any) -> TurnSuspended:
    """What is raised by a turn that waits."""
    with pytest.raises(TurnSuspended, **options) as caught:
        turn()
    return caught.value


@pytest.mark.behaviour("APPR-10")
def test_a_call_is_approved_from_another_process(world: World) -> None:
    """An answer that comes twice is refused, and hosts hear of the question."""
    heard: list[tuple[str, Any]] = []
    item = world.suspended(DROP, callbacks={"event": lambda name, data: heard.append((name, data))})
    name, data = heard[-1]
    assert (name, data["turn_id"]) == ("turn:suspended", item.turn)
    assert [one["id"] for one in data["pending"]] == [item.id]
    json.dumps(data)
    other = world.process([text("done")])
    assert [(one.kind, one.tool, one.session) for one in other.pending()] == [("approval", "drop", "s")]
    assert "drop wants to run" in item.asked
    assert "users" in item.asked
    assert item.choices == ("once", "session", "always", "deny", "never")
    assert other.answer(item.id[:5], "once", by="Ann").answered_by == "Ann"
    with pytest.raises(ConfigError, match=r"p-\w+ was answered already; given: yes \(once\), by Ann at \d"):
        world.process().answer(item.id, "deny", by="Bob")
    assert other.pending() == []
    result = other.resume(item.turn).run()
    assert (result.final_response, told(result), world.done) == ("done", ["users is gone"], ["dropped users"])


def test_stepping_shows_the_pending_question_and_continues_elsewhere(world: World) -> None:
    turn = world.process([tools(DROP)]).start("please")
    steps = list(asyncio.run(moves(turn)))
    assert (steps[-1].dest, turn.result) == ("ExecuteTools", None)
    assert turn.suspended is not None
    [item] = turn.suspended
    assert asyncio.run(moves(turn)) == []
    suspends(turn.run, match=rf"{turn.id} is suspended, it waits for {item.id} \(approval of drop\)")
    other = world.process([text("done")])  # the first process lives still
    other.answer(item.id, "once")
    assert other.resume(turn.id).run().completed


async def moves(turn: Any) -> list[Any]:
    return [step async for step in turn]


def test_a_question_is_answered_by_a_number_or_in_words(world: World) -> None:
    item = world.suspended(call("clarify", {"question": "Which?", "choices": ["red", "blue"]}))
    assert (item.kind, item.asked, item.choices) == ("question", "Which?", ("red", "blue"))
    other = world.process([text("done")])
    other.answer(item.id, "2")
    [said] = told(other.resume("s").run())
    assert json.loads(said) == {"question": "Which?", "choices": ["red", "blue"], "answer": "blue"}


def test_a_result_is_given_in_later_and_the_tool_is_called_once(world: World) -> None:
    item = world.suspended(CHAIRS)
    assert (item.kind, item.asked) == ("result", "the warehouse, chairs")
    suspends(world.process().resume("s").run, match=item.id)
    other = world.process([text("done")])
    other.answer(item.id, {"delivered": 4})
    result = other.resume("s").run()
    assert (told(result), world.done) == (['{"delivered": 4}'], ["ordered chairs"])


def test_a_turn_rests_until_its_time(world: World) -> None:
    clock = FakeClock()
    due = clock.now() + 3600
    item = world.suspended(call("rest", {"until": due}), clock=clock)
    assert (item.kind, item.due) == ("timer", due)
    suspends(world.process(clock=clock).resume("s").run)
    clock.advance(3601)
    result = world.process([text("done")], clock=clock).resume("s").run()
    assert told(result) == ["the morning has come"]
    assert len(world.done) == 1
    at_once = world.process([tools(call("rest", {"until": 1.0})), text("done")])
    assert len(told(at_once.run_conversation("please"))) == 2, "what has come is not waited for"


def test_calls_that_run_together_are_waited_for_together(world: World) -> None:
    @tool(concurrency="parallel", effect="unsafe")
    def parcel(number: int) -> str:
        """Send a parcel."""
        world.done.append(f"sent {number}")
        if number == 2:
            return "delivered at once"
        raise ResultLater(f"parcel {number}")

    world.tools.append(parcel)
    sends = tools(*(call("parcel", {"number": n}, f"c{n}") for n in (1, 2, 3)))
    waits = suspends(lambda: world.process([sends]).chat("please"))
    first, last = sorted(waits.pending, key=lambda one: one.asked)
    other = world.process([text("done")])
    other.answer(first.id, "one")
    suspends(other.resume("s").run, match=last.id)
    other.answer(last.id, "three")
    assert told(other.resume("s").run()) == ["one", "delivered at once", "three"]
    assert sorted(world.done) == ["sent 1", "sent 2", "sent 3"]


@pytest.mark.parametrize("scope", ["session", "always"])
def test_an_answer_may_be_remembered_for_calls_like_it(world: World, scope: str) -> None:
    item = world.suspended(DROP)
    other = world.process([tools(call("drop", {"table": "items"})), text("done")])
    other.answer(item.id, scope, pattern="drop")
    assert told(other.resume("s").run()) == ["users is gone", "items is gone"]


@pytest.mark.behaviour("APPR-10")
def test_an_answer_counts_only_for_what_was_asked(world: World, tmp_path: Path) -> None:
    item = world.suspended(DROP)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    world.process().answer(item.id, "once")
    waits = suspends(world.process(workdir=elsewhere).resume("s").run)
    assert item.id not in [one.id for one in waits.pending]
    assert world.done == []


@pytest.mark.parametrize(
    ("answer", "deny", "says"), [(False, [], "the user said no"), ("once", ["drop"], "it is forbidden")]
)
def test_the_model_learns_of_a_denial_and_new_denials_stay(
    world: World, answer: Any, deny: list[str], says: str
) -> None:
    item = world.suspended(DROP)
    other = world.process([text("well")], settings={"approval": {**SUSPEND["approval"], "deny": deny}})
    other.answer(item.id, answer)
    [said] = told(other.resume("s").run())
    assert said.startswith(f"denied: {says}")
    assert world.done == []


def test_a_present_person_is_asked_in_time_and_again(world: World) -> None:
    asked, late = list[str](), threading.Event()

    def person(request: Any) -> str:
        asked.append(request.call_id)
        if len(asked) == 1:
            late.wait(PATIENCE)
        return "once"

    item = world.suspended(DROP, callbacks={"approval": person}, clock=None)
    late.set()
    result = world.process([text("done")], callbacks={"approval": person}).resume("s").run()
    assert (told(result), len(asked)) == (["users is gone"], 2)
    with pytest.raises(ConfigError, match="was answered already; given: yes"):
        world.process().answer(item.id, "deny")


def test_of_a_person_here_and_one_elsewhere_the_first_decides(world: World) -> None:
    item = world.suspended(DROP, ASK)

    def slow(request: Any) -> str:
        world.process().answer(item.id, "deny", by="Ann")
        return "once"

    def slower(question: str) -> str:
        [other] = world.process().pending()
        world.process().answer(other.id, "red", by="Ann")
        return "blue"

    patient: dict[str, Any] = {"settings": {"approval": {"unanswered": "suspend"}}, "clock": None}
    suspends(world.process(callbacks={"approval": slow}, **patient).resume("s").run)
    result = world.process([text("done")], callbacks={"clarify": slower}, **patient).resume("s").run()
    assert told(result)[0].startswith("denied: the user said no")
    assert json.loads(told(result)[1])["answer"] == "red"


def test_of_many_answers_at_once_one_counts(world: World) -> None:
    item = world.suspended(ASK)
    agents, said = [world.process() for _ in range(4)], list[str]()
    begin = threading.Barrier(4)

    def answers(number: int) -> None:
        begin.wait()
        with contextlib.suppress(ConfigError):
            said.append(agents[number].answer(item.id, f"number {number}").answer)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(answers, range(4)))
    assert len(said) == 1
    assert json.loads(told(world.process([text("done")]).resume("s").run())[0])["answer"] == said[0]


def test_saying_something_else_gives_the_question_up(world: World) -> None:
    item = world.suspended(DROP)
    other = world.process([text("done")])
    assert other.chat("never mind") == "done"
    assert other.pending() == []
    with pytest.raises(ConfigError, match=r"p-.* is no longer awaited: its turn has moved on, or has"):
        other.answer(item.id, "once")
    assert world.done == []
    world.suspended(CHAIRS)
    result = world.process([text("done")]).run_conversation("never mind")
    assert told(result)[-1] == "no result: it was to come later, and the conversation went on without it"


def test_undo_takes_a_suspended_turn_back(world: World) -> None:
    world.suspended(CHAIRS)
    other = world.process()
    other.undo()
    assert other.pending() == []
    with pytest.raises(ConfigError, match="nothing to resume"):
        other.resume("s")


def test_a_fork_waits_for_nothing_of_the_other_turn(world: World) -> None:
    item = world.suspended(DROP)
    other = world.process()
    other.answer(item.id, "once")
    waits = suspends(other.fork(item.turn, item.seq).run)
    assert item.id not in [one.id for one in waits.pending]
    assert world.done == []


def test_what_an_imported_session_waits_for_is_asked_anew_by_this_home(world: World, tmp_path: Path) -> None:
    item = world.suspended(DROP, CHAIRS)
    world.process().answer(item.id, "once")
    there = World(tmp_path / "there")
    import_lines(Store(there.home), list(export_session(Store(world.home).database, "s", raw=True)))
    assert there.process().pending() == []
    with pytest.raises(ConfigError, match="nothing of this id waits"):
        there.process().answer(item.id, "once")
    assert [one.answered for one in suspends(there.process().resume("s").run).pending] == [None]
    assert (world.done, there.done) == ([], [])


def test_a_child_that_waits_lets_its_parent_wait(world: World) -> None:
    delegates = {"toolsets": ["delegate"], "settings": {**SUSPEND, "delegation": {"approvals": "ask"}}}
    asks = tools(call("delegate_task", {"tasks": [{"goal": "drop it"}, {"goal": "look"}]}))
    waits = suspends(lambda: world.process([asks, repeat(by_task)], **delegates).chat("please"))
    [item] = waits.pending
    assert item.turn != waits.turn_id
    assert "drop it" in item.asked
    other = world.process([repeat(by_task)], **delegates)
    other.answer(item.id, "once")
    result = other.resume(waits.turn_id).run()
    assert [one["summary"] for one in json.loads(told(result)[0])["results"]] == ["dropped", "looked"]
    assert (result.final_response, world.done) == ("all done", ["dropped users"])


def by_task(body: dict[str, Any]) -> Any:
    asked = next(row["content"] for row in body["messages"] if row["role"] == "user")
    ran = any(row["role"] == "tool" for row in body["messages"])
    if asked == "please":
        return text("all done")
    if asked == "look":
        return text("looked")
    return text("dropped") if ran else tools(DROP)


def test_what_is_no_answer_is_refused_in_a_line(world: World) -> None:
    allowed = "an approval cannot be answered so; given: maybe; allowed: once, "
    refused: list[tuple[Any, list[tuple[Any, str, str]]]] = [
        (
            DROP,
            [
                ("maybe", "", allowed),
                (["once"], "", "an approval cannot be answered so"),
                (1, "", "an approval cannot be answered so"),
                ("once", "drop", "a pattern is for an answer that is remembered"),
                ("always", "look", "the pattern is for another tool"),
                ("always", "(", "a pattern of calls cannot be read"),
            ],
        ),
        (
            ASK,
            [("  ", "", "the question is not answered"), ("red", "drop", "only an approval has a pattern")],
        ),
    ]
    for made, answers in refused:
        item = world.suspended(made)
        for value, pattern, why in answers:
            with pytest.raises(ConfigError) as caught:
                world.process().answer(item.id, value, pattern=pattern)
            assert str(caught.value).startswith(why)
        assert item.id in [one.id for one in world.process().pending()]


@pytest.mark.parametrize("at", [float("nan"), True, "soon", datetime(2030, 1, 1)])
def test_an_invalid_time_is_refused(at: Any) -> None:
    with pytest.raises(ConfigError, match="the turn cannot be woken then"):
        WakeAt(at)


def test_an_agent_as_a_tool_waits_like_any_child(world: World) -> None:
    settings = {**SUSPEND, "delegation": {"approvals": "ask"}}
    buyer = world.process([tools(CHAIRS), text("bought")], name="buyer", store=None, settings=settings)
    made: dict[str, Any] = {"tools": [buyer.as_tool()], "settings": settings}
    asks = tools(call("buyer", {"task": "buy chairs"}))
    waits = suspends(lambda: world.process([asks], **made).chat("please"))
    other = world.process([text("all done")], **made)
    other.answer(waits.pending[0].id, "four chairs")
    result = other.resume(waits.turn_id).run()
    assert (result.final_response, world.done) == ("all done", ["ordered chairs"])
    assert "bought" in told(result)[0]


def test_a_question_that_cannot_be_stored_is_denied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(c: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("fsm_agent.sessions.store.journal.note_waits", lambda *given: full)
    agent = world.process([tools(DROP, call("look", {"at": "it"})), text("well")])
    result = agent.run_conversation("please")
    words = "denied: no answer has come yet, and the question cannot be written down"
    assert told(result)[0].startswith(words)
    assert (result.stored, world.done) == (False, ["looked at it"])


def test_a_call_of_a_program_is_not_put_off(world: World, tmp_path: Path) -> None:
    code = """
from tools import drop, order, ToolError
for made in (lambda: drop(table="users"), lambda: order(what="chairs")):
    try:
        made()
    except ToolError as error:
        print(error)
"""
    agent = world.process(
        [tools(call("execute_code", {"code": code})), text("done")],
        toolsets=["code"], workdir=tmp_path, clock=None,
        settings={"approval": {**SUSPEND["approval"], "policy": {"execute_code": "allow"}}},
    )  # fmt: skip
    result = agent.run_conversation("please")
    agent.close()
    assert "no person is there to approve it" in told(result)[0]
    assert "a program cannot wait for that" in told(result)[0]
    assert world.done == ["ordered chairs"]


def test_a_debugger_is_a_person_who_is_present(world: World) -> None:
    script = [tools(DROP), text("done")]
    session = DebugSession(Store(world.home), lambda hint: world.process(script, store=session.store))
    debugger = session.start("please")
    debugger.order("continue")
    until(lambda: debugger.status.held, "the question")
    debugger.order("answer", {"id": debugger.status.held[0]["id"], "said": "once"})
    until(lambda: debugger.status.phase == "ended", "its end")
    assert world.done == ["dropped users"]
    session.close()
