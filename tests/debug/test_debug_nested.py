"""A table that runs others under the debugger: over, into, and out of what its states run."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from examples import nested, order, parallel
from fsm_agent.debug import Debugger, DebugSession
from fsm_agent.debug.core.pending_request import manual_workflow
from fsm_agent.debug.dap import EventTranslator
from fsm_agent.debug.dap.context import EditorContext
from fsm_agent.debug.dap.protocol import Outbox
from fsm_agent.errors import ConfigError
from tests.helpers.dap_editor import editing, workshop_of
from tests.helpers.debugging import ended, give
from tests.helpers.processes import environment
from tests.helpers.waiting import until, until_so


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[DebugSession]:
    session = DebugSession.of_workflow(nested.workflow(tmp_path))
    yield session
    session.close()


@pytest.fixture
def lamp(shop: DebugSession) -> Debugger:
    """An order of a lamp, which has not moved."""
    return shop.start("LAMP")


def acts(home: Path) -> int:
    ledger = home / "ledger.jsonl"
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def test_over_an_inner_turn_is_one_move_of_the_outer(shop: DebugSession, lamp: Debugger) -> None:
    status = give(lamp, "over")
    assert (status.phase, status.seq, status.state, status.inner) == ("paused", 1, "Closed", ())
    (visit,) = lamp.visit(0)
    assert (visit["kind"], visit["name"]) == ("RunTurn", f"0.0@{lamp.id}")
    assert visit["reply"]["exit"] == "sent"
    inner = shop.open(f"0.0@{lamp.id}")
    assert [(one["id"], one["table_name"], one["depth"]) for one in shop.tree()] == [
        (lamp.id, "shop", 0),
        (inner.id, "order", 1),
    ]
    assert shop.newest() == lamp.id
    assert (inner.status.phase, inner.table, inner.record.count) == ("ended", order.TABLE, 3)


def test_into_an_inner_turn_its_moves_are_shown_and_out_again(
    shop: DebugSession, lamp: Debugger, tmp_path: Path
) -> None:
    status = give(lamp, "into")
    name = f"0.0@{lamp.id}"
    assert (status.phase, status.seq) == ("paused", 0)
    assert status.inner == (name,)
    assert status.text == f"inside {name}"
    assert acts(tmp_path) == 0
    inner = shop.open(name)
    assert (inner.status.phase, inner.status.state, inner.table) == ("paused", "Reserve", order.TABLE)
    assert give(inner, "step").state == "Charge"
    assert [step.row for step in inner.record.steps()] == ["Reserve.done"]
    inner.breakpoint("state", "Ship")
    met = give(inner, "continue")
    assert (met.reason, met.state, acts(tmp_path)) == ("breakpoint", "Ship", 2)
    assert give(inner, "continue").phase == "ended"
    until(lambda: lamp.status.text == "RunTurn done", "the outer turn")
    assert lamp.status.seq == 0
    assert give(lamp, "continue").phase == "ended"
    assert lamp.record.info.exit == "delivered"


@pytest.mark.parametrize(("command", "phase"), [("step", "paused"), ("continue", "ended")])
def test_the_outer_turn_continues_with_all_inner_turns(
    command: str, phase: str, lamp: Debugger, tmp_path: Path
) -> None:
    give(lamp, "into")
    until(lambda: give(lamp, "into").text.startswith("inside"), "the same inside")
    status = give(lamp, command)
    assert (status.phase, status.seq, acts(tmp_path)) == (phase, 1, 3)


def test_each_branch_is_looked_into_alone(tmp_path: Path) -> None:
    session = DebugSession.of_workflow(parallel.workflow(tmp_path))
    debugger = session.start("a, b")
    give(debugger, "into")
    names = (f"0.0@{debugger.id}", f"0.1@{debugger.id}")
    until(lambda: debugger.status.inner == names, "both inside")
    first, second = map(session.open, names)
    until(lambda: second.status.phase == "paused", "both at their gates")
    assert give(second, "step").state == "Criticise"
    assert (first.status.seq, first.status.state) == (0, "Draft")
    debugger.order("continue")
    ended(debugger)
    assert (first.record.info.exit, second.record.info.exit) == ("accepted", "accepted")
    session.close()


def test_pausing_a_turn_pauses_what_its_state_runs(tmp_path: Path) -> None:
    begun, asked = threading.Event(), threading.Event()

    async def slow(seconds: float) -> None:
        begun.set()
        await until_so(asked.is_set, "the order")

    session = DebugSession.of_workflow(parallel.workflow(tmp_path, sleep=slow))
    debugger = session.start("a")
    debugger.order("continue")
    until(begun.is_set, "a request")
    debugger.order("pause")
    asked.set()
    until(lambda: debugger.status.phase == "paused", "its stop")
    assert debugger.status.text.startswith("inside") or debugger.status.seq or debugger.visit(0)
    debugger.order("continue")
    ended(debugger)
    session.close()


def test_a_turn_that_was_left_inside_is_resumed_inside(
    shop: DebugSession, lamp: Debugger, tmp_path: Path
) -> None:
    give(lamp, "into")
    name = lamp.status.inner[0]
    give(shop.open(name), "step")
    lamp.close()
    until(lambda: shop.open(lamp.id).status.phase == "idle", "its rest")
    with pytest.raises(ConfigError, match=f"the turn is of another table; given: {name} of order"):
        shop.resume(name)
    again = shop.resume(lamp.id)
    assert give(again, "into").inner == (name,)
    until(lambda: shop.open(name).status.phase == "paused", "the inner turn")
    assert (shop.open(name).status.seq, acts(tmp_path)) == (1, 1)
    assert give(again, "continue").phase == "ended"
    assert acts(tmp_path) == 3


def test_an_inner_turn_is_answered_by_hand(lamp: Debugger, tmp_path: Path) -> None:
    lamp.order("hold", {"kinds": ["request"]})
    (held,) = give(lamp, "continue").held
    lamp.order("answer", {"id": held["id"], "said": {"exit": "sent"}})
    ended(lamp)
    assert (lamp.record.info.exit, acts(tmp_path)) == ("delivered", 0)


def test_a_table_without_states_is_played_by_hand_with_all_inside(tmp_path: Path) -> None:
    session = DebugSession.of_workflow(
        manual_workflow(parallel.TABLE, {"chapters": 1, "review.rounds": 0}, tmp_path)
    )
    debugger = session.start("")
    inner = session.open(give(debugger, "into").inner[0])
    assert inner.record.snapshot(0)["limits"] == {"rounds": 0, "retries": 2, "unclears": 2}
    inner.order("hold", {"kinds": ["request"]})
    held = 0
    for said in ("written", "objections"):
        inner.order("continue")
        until(lambda: bool([one for one in inner.status.held if one["id"] != held]), "a question")  # noqa: B023
        held = inner.status.held[0]["id"]
        inner.order("answer", {"id": held, "said": said})
    until(lambda: inner.status.phase == "ended", "its end")
    assert inner.record.info.exit == "rounds_spent", "its limit was 0"
    session.close()


# Another process, an editor, the page

RUNS = """
import sys, asyncio
from pathlib import Path
from examples import parallel
async def slow(seconds):
    await asyncio.sleep(3)
print("here", flush=True)
result = parallel.workflow(Path(sys.argv[1]), sleep=slow).start(parallel.Book(["a", "b"], turn_id="book")).run()
print(result.exit, flush=True)
"""


def obeys(debugger: Debugger) -> bool:
    """A process may not answer for a while when the machine is busy."""
    with contextlib.suppress(ConfigError):
        debugger.order("pause")
        return True
    return False


@pytest.mark.slow
def test_an_inner_turn_of_another_process_is_stepped(tmp_path: Path) -> None:
    session = DebugSession.of_workflow(parallel.workflow(tmp_path))
    run = [sys.executable, "-c", RUNS, str(tmp_path)]
    with subprocess.Popen(run, env=environment(), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "here"
        try:
            until(lambda: bool(session.store.unfinished("0.0@book")), "the inner turn")
            debugger = session.open("book")
            until(lambda: obeys(debugger), "a process that obeys")
            until(
                lambda: debugger.status.phase == "paused" and bool(debugger.status.inner), "its stop inside"
            )
            inner = session.open(debugger.status.inner[0])
            until(lambda: obeys(inner), "it to obey inside")
            until(lambda: inner.status.phase == "paused", "the inner one's stop")
            here = inner.record.count
            inner.order("step")
            until(lambda: inner.status.phase == "paused" and inner.status.seq == here + 1, "a step inside")
            debugger.order("continue")
            assert other.stdout.readline().strip() == "printed"
        finally:
            other.kill()
    session.close()


def test_an_editor_steps_into_an_inner_turn_as_a_thread(shop: DebugSession, tmp_path: Path) -> None:
    with editing(workshop_of(tmp_path / "ours", []), opener=lambda _: shop) as editor:
        editor.initialize()
        editor.event("initialized")
        options = {"table": "examples.nested:workflow", "task": "LAMP", "stopOnEntry": True}
        started = editor.send("launch", options)
        editor.ask("configurationDone")
        editor.answer(started)
        editor.stopped(threadId=1)
        editor.ask("stepIn", threadId=1)
        both = {body["threadId"]: body for body in (editor.stopped(), editor.stopped())}  # in either order
        assert {thread: body["preserveFocusHint"] for thread, body in both.items()} == {1: True, 2: False}
        top, *_ = editor.stack(2)
        assert (top["name"], top["source"]["path"]) == ("Reserve", order.__file__)
        editor.moved("stepOut", 2, threadId=2)
        assert editor.stack(2)[0]["name"] == "1: Reserve –done→ Charge"
        assert editor.moved("next", threadId=1)["description"] == "Order –sent→ Closed"
        assert editor.stack(1)[0]["source"]["path"] == nested.__file__
        editor.ask("disconnect")


def test_an_editor_learns_of_an_inner_turn_that_paused_before_it_listened(shop: DebugSession) -> None:
    """It is found although its outer turn seems to be running: its events had no listener."""
    sent: list[Any] = []
    context = EditorContext(shop, Outbox(sent.append), hear=lambda thread, event: None)
    outer = context.open(shop.start("LAMP"))
    give(outer.debugger, "into")
    inner = shop.open(outer.debugger.status.inner[0])
    until(lambda: inner.status.phase == "paused", "the inner turn")
    EventTranslator(context).look_round()
    [stopped] = [one["body"] for one in sent if one.get("event") == "stopped"]
    assert stopped["threadId"] != outer.id
    assert context.threads.get(stopped["threadId"]).debugger.id == inner.id


def test_an_inner_turn_that_is_only_just_beginning_is_found_at_the_next_look(
    shop: DebugSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is in the store a moment before it can be debugged."""
    sent: list[Any] = []
    context = EditorContext(shop, Outbox(sent.append), hear=lambda thread, event: None)
    outer = context.open(shop.start("LAMP"))
    give(outer.debugger, "into")
    monkeypatch.setattr("fsm_agent.debug.dap.LOOK_ROUND", 0)
    translator = EventTranslator(context)
    with monkeypatch.context() as before:
        before.setattr(shop.store.pause_points, "running", lambda turn: None)
        translator.look_round()
    assert [one for one in sent if one.get("event") == "stopped"] == []
    translator.look_round()
    [stopped] = [one["body"] for one in sent if one.get("event") == "stopped"]
    assert context.threads.get(stopped["threadId"]).debugger.id == outer.debugger.status.inner[0]


def test_the_page_shows_the_table_of_the_turn_that_is_looked_into(shop: DebugSession, lamp: Debugger) -> None:
    from fsm_agent.debug.web.app import app_of

    name = give(lamp, "into").inner[0]
    app = app_of(shop, 8123, "token")
    transport = httpx.ASGITransport(app=app)
    headers = {"x-fsm-agent-token": "token"}

    async def look() -> tuple[dict[str, object], dict[str, object]]:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8123", headers=headers
        ) as page:
            hello = (await page.get("/api/hello", params={"turn": name})).json()
            return hello, (await page.get("/api/hello")).json()

    inside, outside = asyncio.run(look())
    assert (inside["name"], inside["states"]) == ("order", list(order.TABLE.states))
    assert outside["name"] == "shop"
    assert "state-Reserve" not in str(outside["table"])
    give(lamp, "continue")
