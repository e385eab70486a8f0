"""Attempts at a turn: only one owns it, even while others still run it, and what it did is not repeated."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.dispatch.dispatcher import DIGEST, HandOver, InProcess, Order, TurnLink
from fsm_agent.dispatch.worker import LOST, OneAttempt, Worker
from fsm_agent.errors import OwnershipLost, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.dispatch.scene import Held, agent_with, app_of, asks, attempted, queued
from tests.helpers.waiting import until_so


@pytest.mark.behaviour("WORK-03")
async def test_a_leaving_worker_hands_its_turn_over_behind_a_move(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    order = await queued(store)
    link = TurnLink()
    running = asyncio.create_task(attempted(store, order, 1, agent_with(held), link))
    await until_so(lambda: bool(held.begun), "the tool")
    link.leaving.set()
    held.go.set()
    with pytest.raises(HandOver):
        await running
    info = Turns(store.database).info("t-1")
    assert (info.owner, info.state, info.ended) == (None, "BuildMessages", None)
    assert await attempted(Store(tmp_path), order, 2, agent_with(held)) == "text_response"
    assert len(held.begun) == 1, "what was done is not done again"


class Mutant(Store):
    """A store in which a late attempt has the right of a new one."""

    async def claim(self, turn_id: str, rank: int | None = None, *more: Any, **names: Any) -> Any:
        return await super().claim(turn_id, None if rank is None else rank + 100, *more, **names)


@pytest.mark.behaviour("WORK-04")
@pytest.mark.parametrize("kind", [Store, Mutant])
async def test_a_late_attempt_takes_nothing_from_the_one_that_runs(tmp_path: Path, kind: type[Store]) -> None:
    store, late = Store(tmp_path), kind(tmp_path)
    held, other = Held(), Held()
    other.go.set()
    order = await queued(store)
    running = asyncio.create_task(attempted(store, order, 5, agent_with(held)))
    await until_so(lambda: bool(held.begun), "the tool")
    said = await attempted(late, order, 4, agent_with(other))
    held.go.set()
    said, running = said, await running
    if kind is Store:
        assert (said, running) == (LOST, "text_response")
    else:  # without ranks the late one takes the turn from the one that runs
        assert (said, running) == ("text_response", LOST)


async def test_a_later_attempt_in_the_same_process_stops_the_one_before(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    order, attempts = await queued(store), OneAttempt()

    async def attempt(rank: int) -> str:
        link = TurnLink()
        async with attempts.alone(order.turn, rank, link):
            return await attempted(store, order, rank, agent_with(held), link)

    first = asyncio.create_task(attempt(1))
    await until_so(lambda: bool(held.begun), "the tool")
    second = asyncio.create_task(attempt(2))
    assert await first == LOST
    with pytest.raises(OwnershipLost, match="a later attempt"):
        await attempt(1)  # a frozen process was given it, and asks for its place late
    held.go.set()
    assert await second == "text_response"
    assert len(held.begun) == 1, "the outcome of the first call is unknown, so it is not repeated"
    rows = store.database.select("SELECT status FROM effects WHERE name = 'put'")
    assert rows == [("unknown",)]


@pytest.mark.slow
async def test_a_worker_that_cannot_write_stops_and_another_continues(tmp_path: Path) -> None:
    store, held = Store(tmp_path), Held()
    order = await queued(store)
    running = asyncio.create_task(attempted(store, order, 1, agent_with(held)))
    await until_so(lambda: bool(held.begun), "the tool")
    lock = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    held.go.set()
    with pytest.raises(StoreError, match="lock"):  # rather than continuing in memory
        await running
    lock.close()
    assert (await attempted(Store(tmp_path), order, 2, agent_with(held))) == "text_response"
    assert len(held.begun) == 1


@pytest.mark.behaviour("WORK-05")
async def test_children_are_taken_over_with_their_parent(tmp_path: Path) -> None:
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

    order = await queued(store)
    running = asyncio.create_task(attempted(store, order, 1, make))
    await until_so(lambda: bool(held.begun), "the tool of the child")
    second = await attempted(other, order, 2, make)
    held.go.set()  # the old owner wakes when all is done
    assert (await running, second) == (LOST, "text_response")
    assert len(held.begun) == 1
    turns = Turns(store.database)
    assert {one.exit for one in turns.recent()} == {"text_response"}
    assert store.database.select("SELECT status FROM effects WHERE name = 'put'") == [("unknown",)]


@pytest.mark.parametrize("ended", [LOST, "text_response"])
def test_a_turn_that_was_lost_is_never_reported_as_done(ended: str) -> None:
    """Otherwise its session would continue with the next one, which abandons it."""
    testing = pytest.importorskip("temporalio.testing")
    from temporalio.exceptions import ApplicationError

    from fsm_agent.dispatch.temporal import TurnActivity

    async def run(order: Order, rank: int | None, link: TurnLink) -> str:
        return ended

    async def main() -> str:
        done: str = await testing.ActivityEnvironment().run(TurnActivity(run, 10.0).attempt, "t-1", DIGEST)
        return done

    if ended == LOST:
        with pytest.raises(ApplicationError, match="another worker has the turn"):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) == ended


@pytest.mark.parametrize(
    ("raised", "benign"),
    [(HandOver("left"), True), (OwnershipLost("taken"), True), (ValueError("bug"), False)],
)
def test_the_sdk_logs_a_traceback_only_for_what_went_wrong(raised: Exception, benign: bool) -> None:
    testing = pytest.importorskip("temporalio.testing")
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

    from fsm_agent.dispatch.temporal import TurnActivity

    async def run(order: Order, rank: int | None, link: TurnLink) -> str:
        raise raised

    with pytest.raises(ApplicationError) as error:
        asyncio.run(testing.ActivityEnvironment().run(TurnActivity(run, 10.0).attempt, "t-1", DIGEST))
    assert (error.value.category is ApplicationErrorCategory.BENIGN) is benign


async def test_a_leaving_worker_says_in_a_line_what_it_hands_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, held, lines = Store(tmp_path), Held(), list[str]()
    dispatcher, stop = InProcess(), asyncio.Event()
    worker = Worker(store, app_of(store, agent_with(held)), dispatcher, sweep=0.02, tell=lines.append)
    order = await queued(store)
    serving = asyncio.create_task(worker.run(1, stop))
    await until_so(lambda: bool(held.begun), "the tool")
    stop.set()
    held.go.set()
    await serving
    assert lines == [f"turn {order.turn} is handed over after 4 moves"]
    assert caplog.text == ""


def test_a_worker_whose_process_has_ended_is_reported_as_ended() -> None:
    pytest.importorskip("temporalio")
    from fsm_agent.dispatch.temporal import describe_worker

    here = socket.gethostname()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert describe_worker(f"{ended.pid}@{here}", 43.2) == f"{ended.pid}@{here} (has ended)"
    assert describe_worker(f"{os.getpid()}@{here}", 43.2) == f"{os.getpid()}@{here} (asked 43 s ago)"
    assert describe_worker(f"{ended.pid}@elsewhere", 3) == f"{ended.pid}@elsewhere (asked 3 s ago)"
    assert describe_worker("a name of its own", 3) == "a name of its own (asked 3 s ago)"
