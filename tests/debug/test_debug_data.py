"""Conditions about what was said and taken, what could have been decided otherwise, time, search, crashes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from fsm_agent import Agent, tool
from fsm_agent.debug import DebugSession
from fsm_agent.debug.core.analysis import Budgets, choices, columns, waits_of
from fsm_agent.debug.core.breakpoints import Breakpoint
from fsm_agent.debug.core.debug_session import crash_of
from fsm_agent.debug.core.record import search
from fsm_agent.debug.web.page import tree
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.condition_parser import condition, names_in
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import call, repeat, text, tools
from fsm_agent_states.table import TURN
from tests.debug.conftest import Desk, looks_once
from tests.helpers.debugging import ended, give
from tests.helpers.harness import MakeAgent

NUMBERS, TEXTS = ("retries", "cost"), ("tool", "result")
VALUES = {"retries": 2, "cost": 0.5, "tool": "terminal", "result": 'said "no" @ noon'}
HOLD = """
tool == "terminal"
tool != 'terminal' or cost >= 0.5
result contains "@ noon" and retries >= 2
not result contains "yes"
'no' in result
"x" not in result
result contains '"no"'
"""


@pytest.mark.parametrize("said", HOLD.strip().splitlines())
def test_a_condition_on_texts(said: str) -> None:
    assert condition(said, NUMBERS, TEXTS)(VALUES) is True
    for wrong in ('result contains "contains"', "tool contains 'TERM'", "0 < cost < 0.5"):
        assert condition(wrong, NUMBERS, TEXTS)(VALUES) is False, wrong


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("tool == 2", "compares a text with a number"),
        ("retries contains 'x'", "compares a text with a number"), ("tool", "compare it"),
        ("'text' and retries", "compare it"), ("tool < 'z'", "cannot be compared so"),
        ("retries in 3", "cannot be compared so"), ("tools == 'x'", "unknown name 'tools'"),
        ("retries @ 2", "cannot be read"), ("result contains", "cannot be read"),
        ("__import__('os')", "cannot be read"), ("tool.upper() == 'X'", "cannot be read"),
        ("tool == 'x' * 10**9", "cannot be read"), ("result contains 'a\\0' or (", "cannot be read"),
    ],
)  # fmt: skip
def test_a_condition_that_is_none_is_refused(said: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        condition(said, NUMBERS, TEXTS)


def test_texts_and_parts_are_of_those_who_know_them() -> None:
    assert names_in("tool == 'cost' and retries > 1") == {"tool", "and", "retries"}
    for said, why in (("tool == 'x'", "unknown counter 'tool'"), ("retries >= 0.5", "cannot be read")):
        with pytest.raises(ConfigError, match=why):
            condition(said, NUMBERS)
    assert condition("cost >= 0.5", NUMBERS, TEXTS)(VALUES)


ASKED = [
    ('tool == "look" and arguments contains "sky"', 3), ('result contains "is blue"', 4),
    ('text == "blue"', 6), ("tokens > 15", 6), ("tokens > 0 and cost == 0", 3),
    ('tool == "look" and result == "" and seq > 1', 3),
]  # fmt: skip


@pytest.mark.parametrize(("said", "at"), ASKED)
def test_a_turn_stops_where_a_condition_holds(desk: Desk, said: str, at: int) -> None:
    """While it runs, and in its record."""
    debugger = desk.start()
    debugger.breakpoint("move", "any", condition=said)
    status = give(debugger, "continue")
    assert (status.phase, status.seq) == ("paused", at)
    give(debugger, "interrupt")
    debugger.cursor.to(0)
    found = debugger.cursor.forward_to(debugger.breakpoints)
    assert found is not None
    assert found[0] == at


def test_a_condition_is_about_one_call_at_a_time(desk: Desk) -> None:
    desk.script = [tools(call("look", {"at": "sky"}), call("paint", {"thing": "wall"})), text("done")]
    debugger = desk.start()
    with pytest.raises(ConfigError, match="unknown name 'request'"):
        debugger.breakpoint("move", "any", condition='request contains "x"')
    debugger.breakpoint("move", "any", condition='tool == "paint" and arguments contains "sky"')
    assert give(debugger, "continue").phase in ("waiting", "ended")


def test_a_request_to_the_model_is_changed_before_it_is_sent(desk: Desk) -> None:
    heard: list[Any] = []

    def model(body: dict[str, Any]) -> Any:
        heard.append(body)
        return looks_once(body)

    desk.script = repeat(model)
    debugger, held = desk.held("model")
    for wrong in (None, [], {}, "text"):
        with pytest.raises(ConfigError, match="is not an object"):
            debugger.order("edit", {"id": held["id"], "said": wrong})
    debugger.order("hold", {"kinds": []})
    body = {"model": "scripted", "messages": [{"role": "user", "content": "what color is the sea?"}]}
    debugger.order("edit", {"id": held["id"], "said": body})
    ended(debugger)
    assert heard[0] == body
    assert [data["text"] for data in desk.told("log")] == [
        f"request {held['id']} was changed by hand before it was sent"
    ]


def test_a_call_is_not_changed_after_the_rules_let_it_pass(desk: Desk) -> None:
    debugger, held = desk.held("tool")
    with pytest.raises(ConfigError, match="cannot be changed"):
        debugger.order("edit", {"id": held["id"], "said": {"at": "sea"}})
    debugger.order("let", {"id": held["id"]})
    ended(debugger)
    assert desk.ran == ["look sky"]


# What could have been decided otherwise

FULL = {"attempts": 360, "sends": 12, "iterations": 90, "summary_calls": 2, "opened": 1, "free_rounds": 90}


def test_every_row_of_the_table_is_taken_with_the_budgets_that_are_said() -> None:
    """Of each line, from budgets that are full and from budgets that are spent: what ``opens`` says is asked
    of the guards."""
    limits = dict.fromkeys((atom.limit for row in TURN.rows for atom in row.guard.atoms()), 3)
    for spent in (0, 3):
        budgets = Budgets(dict.fromkeys((one.name for one in TURN.counters), spent), limits)
        for state, event in TURN.by_event:
            found = choices(TURN, state, event, budgets)
            assert sum(one.taken for one in found) == 1, (state, event)
            for one in found:
                assert one.taken or one.opens is not None, one.row
                if one.opens is not None:
                    other = budgets.with_values(one.opens.counters, one.opens.limits)
                    then = [it.row for it in choices(TURN, state, event, other) if it.taken]
                    assert then == [one.row]


def test_what_is_left_of_a_ladder() -> None:
    budgets = Budgets({"iterations": 90, "attempts": 5}, FULL)
    found = {one.rung: one for one in choices(TURN, "BuildMessages", "built", budgets)}
    assert [name for name, one in found.items() if one.taken] == ["summarize"]
    send = found["send"]
    assert send.opens is not None
    assert send.opens.limits == {"iterations": 91}
    assert [(one.counter, one.count, one.most) for one in send.left if one.counter == "iterations"] == [
        ("iterations", 90, 90)
    ]
    with pytest.raises(ConfigError, match="no line for such an event"):
        choices(TURN, "BuildMessages", "nonsense", budgets)


# Time, money, search


def test_time_is_shared_out_among_those_who_were_waited_for(agent: MakeAgent, store: Store) -> None:
    @tool(effect="pure")
    async def rest() -> str:
        """Take its time, by the machine's clock, in which moves are measured."""
        time.sleep(0.05)
        return "rested"

    def asks(request: Any) -> str:
        time.sleep(0.1)
        return "once"

    paint = tool(approval="ask", name="paint")(lambda: "painted")
    script = [tools(call("rest")), tools(call("paint")), text("done")]
    one = agent(*script, tools=[rest, paint], store=store, callbacks={"approval": asks})
    result = one.run_conversation("go")
    debugger = DebugSession(store).open(result.turn_id)
    found = columns(debugger.record, 50, TURN.states)
    assert found["sums"]["people"] >= 0.09
    assert found["sums"]["tools"] >= 0.04
    assert sum(found["sums"].values()) == pytest.approx(found["seconds"])
    for number, kind in enumerate(("people", "model", "tools", "pauses")):
        assert sum(one[number] for one in found["waits"]) == pytest.approx(found["sums"][kind], abs=1e-6)
    assert (found["positions"], len(found["masks"])) == (sorted(found["positions"]), 50)
    assert waits_of(debugger.record, 6)["people"] >= 0.09
    spent = debugger.record.cost_at(debugger.record.count)
    assert (spent.requests, spent.tokens) == (result.attempts, result.total_tokens)
    assert debugger.record.cost_at(0).tokens == 0


def test_what_the_last_state_asked_for_is_found_at_the_last_move(desk: Desk) -> None:
    debugger = desk.finished()
    hits = search(debugger.record, "CloseTurn")
    assert {hit.at for hit in hits} == {6}
    first = search(debugger.record, "the sky is blue")[0]
    assert (first.at, first.where, first.kind) == (4, "reply", "RunTool look")
    assert [hit.at for hit in search(debugger.record, "CallLLM.text")] == [6]
    assert search(debugger.record, "nowhere at all") == []


def test_forks_stand_below_their_turn_with_what_they_took(desk: Desk) -> None:
    first = desk.finished()
    fork = desk.workshop.fork(first.id, 2)
    give(fork, "continue")
    rows = [(one["id"], one["depth"], one["model"], one["tokens"]) for one in desk.workshop.tree()]
    took = first.record.cost_at(first.record.count).tokens
    assert rows[0] == (first.id, 0, "scripted:scripted", took)
    assert rows[1][:2] == (fork.id, 1)


# Crashes

DIES = """
import os, signal, sys
from fsm_agent import Agent, tool
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import ScriptedModel, call, tools

@tool(effect=sys.argv[2])
def shoot(at: str) -> str:
    "Shoot."
    os.kill(os.getpid(), signal.SIGKILL)

home = sys.argv[1]
script = [tools(call("shoot", {"at": "the moon"}))]
Agent(ScriptedModel(script), tools=[shoot], toolsets=[], home=home, store=store_for(home, "normal")).chat("go")
"""


def dead(home: Path, effect: str) -> tuple[Store, str]:
    """The store and the turn of a process that died in a tool of this effect class."""
    died = subprocess.run([sys.executable, "-c", DIES, str(home), effect], capture_output=True)
    assert died.returncode == -9, died.stderr.decode()
    store = store_for(home, "normal")
    return store, Turns(store.database).recent(1)[0].id


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "resumed"), [("unsafe", "in doubt"), ("idempotent", "again")])
def test_a_turn_whose_process_died_says_what_is_in_doubt(
    agent: MakeAgent, tmp_path: Path, effect: Literal["unsafe", "idempotent"], resumed: str
) -> None:
    """And resuming does what was said: an unsafe call is not run again."""
    store, turn = dead(tmp_path, effect)
    ran: list[str] = []

    @tool(effect=effect)
    def shoot(at: str) -> str:
        """Shoot."""
        ran.append(at)
        return "shot"

    session = DebugSession(store, lambda hint: agent(text("well"), tools=[shoot], home=tmp_path, store=store))
    crash = session.crash(turn)
    assert crash is not None
    assert crash.state == "ExecuteTools"
    assert [(one.kind, one.name, one.resumed) for one in crash.under_way] == [("RunTool", "shoot", resumed)]
    debugger = session.resume(turn)
    assert crash_of(debugger.record, store.owners) is None
    assert give(debugger, "continue").phase == "ended"
    assert ran == ([] if resumed == "in doubt" else ["the moon"])
    assert session.crash(turn) is None
    session.close()


# Markdown


def test_markdown_is_a_tree_of_elements_that_are_known() -> None:
    evil = "<img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](https://x.y) ![c](https://x.y/p.png)"
    [block] = tree(evil) or []
    assert block["tag"] == "p"
    tags = {part["tag"]: part.get("href") for part in block["parts"] if "tag" in part}
    assert tags == {"a": "https://x.y"}
    assert any("<img src=x" in part.get("text", "") for part in block["parts"])
    rest = tree("# Head\n\n- a\n  - b\n\n```py\nx = 1\n```\n\n| a |\n|---|\n| 1 |\n\n<script>x</script>\n")
    assert [one.get("tag") for one in rest or []] == ["h1", "ul", "pre", "table", None]
    assert tree("x" * 200_000) is None
    assert len(tree("> " * 500 + "deep") or []) == 1


# What stays when a debugger ends


def test_breakpoints_are_there_for_the_next_debugger(agent: MakeAgent, store: Store) -> None:
    def make(hint: str | None) -> Agent:
        return agent(text("well"), store=store)

    turn = make(None).run_conversation("hi").turn_id
    session = DebugSession(store, make)
    wanted = [Breakpoint("state", "CallLLM"), Breakpoint("move", "any", condition="seq > 1", hits="2")]
    session.set_breakpoints(session.open(turn), wanted)
    session.close()
    session = DebugSession(store, make)
    kept = list(session.open(turn).breakpoints)
    assert [(one.kind, one.target, one.condition) for one in kept] == [
        ("state", "CallLLM", ""), ("move", "any", "seq > 1"),
    ]  # fmt: skip
    session.set_breakpoints(session.open(turn), [])
    session.close()
    session = DebugSession(store, make)
    assert list(session.open(turn).breakpoints) == []
    session.close()


@pytest.mark.slow
def test_a_debugger_that_was_ended_leaves_no_crash(tmp_path: Path) -> None:
    """The process of the turn has ended, too."""
    program = (
        "import sys; from fsm_agent import Agent; from fsm_agent.debug import DebugSession\n"
        "from fsm_agent.sessions.store import store_for; from fsm_agent.testing import ScriptedModel, text\n"
        "store = store_for(sys.argv[1], 'normal')\n"
        "made = lambda hint: Agent(ScriptedModel([text('well')]), home=sys.argv[1], store=store)\n"
        "session = DebugSession(store, made)\none = session.start('hi')\none.settled(30)\nprint(one.id)\n"
        "session.close()\n"  # and not the store
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    session = DebugSession(store_for(tmp_path, "normal"))
    debugger = session.open(ended.stdout.strip())
    assert (debugger.status.phase, session.crash(debugger.id)) == ("idle", None)
    session.close()


def test_the_condition_that_stopped_is_named() -> None:
    named = Breakpoint("move", "any", condition='tool == "note"', hits=">= 2")
    assert str(named) == 'tool == "note" at move any, at hit >= 2'
    assert str(Breakpoint("state", "CallLLM")) == "state CallLLM"
