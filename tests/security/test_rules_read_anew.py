"""A turn that continues in another process, or as a fork, has the current rules and tools of its agent."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.conversation.effects import Approval, AskApproval, CheckSignals, OpenTurn, RunTool
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Exchange
from fsm_agent.sessions.store import Store
from fsm_agent.testing import call, text, tools
from tests.crash.waiting import SESSION, agent_of
from tests.helpers.families import told
from tests.helpers.sample import sampled
from tests.security.test_authority import Desk
from tests.sessions.test_kill_matrix import SIGKILL, all_points, killed, run


def left_at(
    home: Path,
    until: Callable[[Exchange], bool],
    *calls: Any,
    resume: str = "",
    steer: str = "",
    **options: Any,
) -> tuple[str, Desk]:
    """(turn, desk) of a turn of these calls whose process is gone after the exchange; or of one taken up."""
    store = Store(home)
    desk = Desk(home, tools(*calls), store=store, **options)

    async def go() -> str:
        turn = desk.agent.resume(resume) if resume else desk.agent.start("go")
        if steer:
            desk.agent.steer(steer)
        while not (isinstance(happened := await turn.step_into(), Exchange) and until(happened)):
            assert happened is not None, "the turn ended"
        await asyncio.sleep(0)  # what was replied is handed over
        await desk.agent.aclose()
        return turn.id

    turn = asyncio.run(go())
    store.close()
    del store, desk.agent
    gc.collect()  # the lock of its owner goes with it
    return turn, desk


def is_of(kind: type[Any], call_id: str) -> Callable[[Exchange], bool]:
    return lambda exchange: any(isinstance(one, kind) and one.call_id == call_id for one in exchange.requests)


def gone_on(home: Path, turn: str, **options: Any) -> Desk:
    desk = Desk(home, **options)
    desk.agent.resume(turn).run()
    return desk


DANGER, NOTE = call("danger", {}, "c1"), call("note", {}, "c1")
DENIED = {"approval": {"policy": {"danger": "deny", "note": "deny"}}}
ASKED = {"approval": {"policy": {"note": "ask"}}}
FORBIDDEN = {"approval": {"deny": ["danger"]}}


@pytest.mark.parametrize(
    ("said", "options", "ran", "told"),
    [
        ("once", {"answer": "once", "settings": DENIED}, [], "it is forbidden"),
        ("once", {"answer": "once", "settings": FORBIDDEN}, [], "it is forbidden"),
        ("once", {}, [], "no person is there"),
        ("session", {}, ["danger"], "done: danger"),
        ("deny", {"answer": "once"}, [], "the user said no"),
    ],
    ids=["forbidden by name", "forbidden by a pattern", "no person is there", "yes for the session", "no"],
)
def test_what_was_forbidden_since_the_yes_does_not_run(
    tmp_path: Path, said: str, options: Any, ran: list[str], told: str
) -> None:
    """Nor what only a person who was there had allowed; a no stays a no."""
    turn, first = left_at(tmp_path, is_of(AskApproval, "c1"), DANGER, answer=said)
    assert (first.asked, first.ran) == (["danger"], [])
    desk = gone_on(tmp_path, turn, **options)
    assert (desk.asked, desk.ran) == ([], ran)
    assert told in desk.results(turn)[0]


def test_what_needed_no_yes_then_and_is_forbidden_now_does_not_run(tmp_path: Path) -> None:
    turn, _ = left_at(tmp_path, lambda happened: happened.state == "ExecuteTools", NOTE)
    desk = gone_on(tmp_path, turn, settings=DENIED)
    assert desk.ran == []
    assert "it is forbidden" in desk.results(turn)[0]


def test_a_continued_turn_keeps_its_limits_and_has_no_rules_of_its_own(tmp_path: Path) -> None:
    before = {"approval": {"bypass": True}, "max_iterations": 7}
    turn, _ = left_at(tmp_path, lambda happened: happened.state == "ExecuteTools", NOTE, settings=before)
    found = Desk(tmp_path, settings=DENIED).agent.resume(turn).gate.turn.settings
    assert (found.max_iterations, found.approval.bypass) == (7, False)
    assert found.approval.policy["note"] == "deny"


def test_a_yes_is_for_the_process_in_which_it_was_given(tmp_path: Path) -> None:
    turn, _ = left_at(tmp_path, is_of(AskApproval, "c1"), DANGER, answer="once")
    turn, again = left_at(tmp_path, is_of(AskApproval, "c1"), resume=turn, answer="once")
    assert (again.asked, again.ran) == (["danger"], [])
    desk = gone_on(tmp_path, turn, answer="once")
    assert (desk.asked, desk.ran) == (["danger"], ["danger"])


@pytest.mark.parametrize("rules", [None, DENIED], ids=["same rules", "forbidden since"])
@pytest.mark.parametrize("one", [DANGER, NOTE], ids=["asks", "does not ask"])
def test_what_has_run_is_not_asked_about(tmp_path: Path, one: Any, rules: Any) -> None:
    turn, first = left_at(tmp_path, is_of(RunTool, "c1"), one, answer="once")
    assert first.ran == [one.name]
    desk = gone_on(tmp_path, turn, answer="once", settings=rules)
    assert (desk.asked, desk.ran) == ([], [])
    assert desk.results(turn) == [f"done: {one.name}"]


def test_other_rules_move_the_visit_and_no_call_runs_twice(tmp_path: Path) -> None:
    """The first call is asked about now, so every later request has another number. The process ends once
    more during that, and the turn continues under the first rules."""
    notes = [call("note", {"name": name}, f"c{number}") for number, name in ((1, "one"), (2, "two"))]
    calls = [*notes, call("danger", {}, "c3")]
    turn, first = left_at(tmp_path, is_of(RunTool, "c2"), *calls)
    assert first.ran == ["note one", "note two"]
    turn, second = left_at(tmp_path, is_of(AskApproval, "c3"), resume=turn, settings=ASKED, answer="once")
    assert (second.asked, second.ran) == (["danger"], [])
    third = gone_on(tmp_path, turn, answer="once")
    assert (third.asked, third.ran) == (["danger"], ["danger"])
    assert third.results(turn) == ["done: note one", "done: note two", "done: danger"]


def test_what_a_person_said_meanwhile_is_not_lost_when_the_visit_moves(tmp_path: Path) -> None:
    def steered(happened: Exchange) -> bool:
        return happened.state == "ExecuteTools" and CheckSignals(take_steer=True) in happened.requests

    calls = [call("note", {"name": "one"}, "c1"), call("note", {"name": "two"}, "c2")]
    turn, _ = left_at(tmp_path, steered, *calls, steer="also the third")
    later = gone_on(tmp_path, turn, answer="once", settings=ASKED)
    assert later.ran == []
    assert "also the third" in later.results(turn)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "since",
    [
        {}, {"effect": "pure"}, {"effect": "idempotent", "approval": "never"},
        {"settings": {"approval": {"policy": {"danger": "deny"}}}}, {"gone": True},
    ],
    ids=["the same", "said to read", "said to be repeatable", "forbidden", "gone"],
)  # fmt: skip
def test_an_unsafe_call_that_was_running_is_in_doubt_whatever_its_tool_says_now(
    tmp_path: Path, since: Any
) -> None:
    mark = killed(tmp_path, "begun")
    assert mark.read_text() == "asked\nran users\n"
    result = agent_of(tmp_path, mark, dies=False, **since).resume(SESSION).run()
    assert result.completed
    assert mark.read_text() == "asked\nran users\n"
    assert told(result)[1].startswith("Unknown outcome")


@pytest.mark.parametrize(
    ("name", "arguments", "repeated"),
    [
        ("danger", '{"name":"here"}', False),
        ("look", '{"name":"elsewhere"}', False),
        ("look", '{"name":"here"}', True),
    ],
    ids=["it is unsafe now", "it would be made with other arguments now", "the same"],
)
def test_a_call_that_was_harmless_is_repeated_only_as_it_was(
    tmp_path: Path, name: str, arguments: str, repeated: bool
) -> None:
    turn, _ = left_at(
        tmp_path, lambda happened: happened.state == "ExecuteTools", call(name, {"name": "here"}, "c1")
    )
    store = Store(tmp_path)
    said = f'"name":"{name}","arguments":{arguments},"timeout":5.0,"effect":"pure","key":"k"'
    running = f'{{"is":"RunTool","call_id":"c1",{said}}}'
    running_then = (
        "ExecuteTools", "RunTool", name, "pure", "k", "in_flight", running, None, None, None, 1.0, None, "",
    )  # fmt: skip
    row = f"INSERT OR REPLACE INTO effects VALUES ({','.join('?' * 17)})"
    store.database.write(lambda c: c.execute(row, (turn, 3, 7, 0, *running_then)) and None)
    store.close()
    desk = gone_on(tmp_path, turn, answer="once")
    assert bool(desk.ran) is repeated
    assert desk.results(turn)[0].startswith("Unknown outcome") is not repeated


@pytest.mark.slow
def test_a_call_that_a_person_approved_survives_being_killed_anywhere() -> None:
    """It runs once at most, and who had it begun is not asked about it again."""
    base, *cases = run("once", "asking")
    assert [case["point"] for case in cases] == sampled(all_points(base["base"]["counts"]), "killed")
    for case in cases:
        where = f"killed at {case['point']}"
        assert "error" not in case, f"{where}: {case.get('error')}"
        assert case["signals"] == [SIGKILL, 0], where
        assert case["final"] == "all done", where
        steps = [line[0] for line in case["world"] if line[0] == "asked" or line[1] == "put"]
        assert steps.count("begin") <= 1, f"{where}: {steps}"
        begun = steps.index("begin") if "begin" in steps else len(steps)
        assert "asked" not in steps[begun:], f"{where}: asked about what had begun"


def test_a_fork_has_the_tools_and_rules_of_its_agent(tmp_path: Path) -> None:
    turn = Desk(tmp_path, tools(NOTE)).agent.run_conversation("go").turn_id
    desk = Desk(tmp_path, answer="once", settings=ASKED)
    desk.agent.fork(turn, 3, {"rerun_tools": True}).run()
    assert (desk.asked, desk.ran) == (["note"], ["note"])
    desk = Desk(tmp_path, answer="once", settings=DENIED)
    fork = desk.agent.fork(turn, 3)
    fork.run()
    assert (desk.asked, desk.ran, desk.results(fork.id)) == ([], [], ["done: note"])


def test_an_edit_cannot_give_what_is_the_agents(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tools(NOTE))
    turn = desk.agent.run_conversation("go").turn_id
    for name, value in (("approval", {"bypass": True}), ("web", {"only_hosts": []})):
        words = rf"these settings are the agent's, not the turn's; given: {name}"
        with pytest.raises(ConfigError, match=words):
            desk.agent.fork(turn, 3, {"settings": {name: value}})
    for name, value in (("tools", []), ("runtime", {"provider": "x", "model": "y"}), ("attended", True)):
        with pytest.raises(ConfigError, match=f"no such field to edit; given: {name}"):
            desk.agent.fork(turn, 3, {"fields": {name: value}})


def test_what_the_agent_put_in_is_in_the_journal_with_the_next_move(tmp_path: Path) -> None:
    turn, _ = left_at(tmp_path, lambda happened: happened.state == "BuildMessages", NOTE)
    desk = gone_on(tmp_path, turn, settings=ASKED)

    def approval_of(at: int) -> str:
        stored = {one["name"]: one for one in desk.agent.journal.snapshot(turn, at)["tools"]}
        return str(stored["note"].get("approval", "never"))

    assert [approval_of(1), approval_of(2)] == ["never", "ask"]


def test_the_model_is_offered_the_tools_that_there_are_now(tmp_path: Path) -> None:
    turn, _ = left_at(tmp_path, lambda happened: happened.state == "BuildMessages", NOTE)

    desk = Desk(tmp_path, text("end"), tools=[tool(name="brand_new")(lambda: "new")])
    desk.agent.resume(turn).run()
    [body] = desk.model.requests
    assert [one["function"]["name"] for one in body["tools"]] == ["brand_new"]


async def test_no_call_runs_without_the_approval_it_needs(tmp_path: Path) -> None:
    """The last door: a call that needs approval never runs without an approval given in this process."""
    desk = Desk(tmp_path, answer="once")
    turn = desk.agent.start("go")
    perform = turn.pipeline
    await perform(OpenTurn())
    named = (("c1", "danger"), ("c2", "note"), ("c3", "unheard_of"))
    asked = [RunTool(call_id, name, {}, 5.0) for call_id, name in named]
    said = [(await perform(one)).status for one in asked]
    assert await perform(AskApproval("c1", "danger", {})) == Approval(True)
    others = [RunTool("c1", "danger", {"name": "other"}, 5.0), RunTool("c9", "danger", {}, 5.0)]
    more = [*others, asked[0], asked[0]]  # one yes is for one call
    assert [*said, *[(await perform(one)).status for one in more]] == [
        "denied", "ok", "denied", "denied", "denied", "ok", "denied",
    ]  # fmt: skip
