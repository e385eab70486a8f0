"""Custom tables when things go wrong: a step that is cancelled, a store that fails, a file written by
a stranger. The ledger of the example counts, not the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples import order
from fsm_agent import BaseTurn, Workflow
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.runner import Stepping
from fsm_agent.fsm.table import Counter, Table, end, lines_of, on
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_turn
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import text
from fsm_agent.workflow import OTHERS
from tests.helpers.store_homes import agent
from tests.sessions.test_store_broken import Breaking


def acts(home: Path) -> list[str]:
    """What was done in the world, in order."""
    ledger = home / "ledger.jsonl"
    return [json.loads(line)["act"] for line in ledger.read_text().splitlines()] if ledger.exists() else []


def shop(home: Path, after: Callable[[str], Any]) -> Workflow[order.Order]:
    """The example; ``after`` is called when an act was done, and awaited before it is answered."""

    async def perform(request: order.Do) -> Any:
        reply = await order.serve(home, request)
        await after(request.act)
        return reply

    return order.workflow(home, perform)


class Stuck:
    """The first answer to one act never comes."""

    def __init__(self, act: str) -> None:
        self.act, self.reached = act, asyncio.Event()

    async def __call__(self, act: str) -> None:
        if act == self.act and not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()


async def cancelled(running: Any, reached: asyncio.Event) -> None:
    task = asyncio.ensure_future(running)
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Cancelled, and continued in the same process


@pytest.mark.parametrize(
    ("act", "done", "said"),
    [
        ("charge", ["reserve", "charge", "ship"],
         ["reserve: done", "charge: failed", "charge: done", "ship: done"]),
        ("reserve", ["reserve", "reserve", "charge", "ship"],
         ["reserve: done", "charge: done", "ship: done"]),
    ],
)  # fmt: skip
async def test_after_it_was_cancelled_only_what_may_be_repeated_is(
    act: str, done: list[str], said: list[str], tmp_path: Path
) -> None:
    """A charge is not made a second time."""
    turn = shop(tmp_path, stuck := Stuck(act)).start(order.Order(["LAMP"]))
    await cancelled(turn.arun(), stuck.reached)
    result = await turn.arun()
    assert (result.exit, result.problem) == ("sent", "")
    assert (acts(tmp_path), result.turn.said) == (done, said)


@pytest.mark.parametrize("commit", range(1, 5))
async def test_a_task_cancelled_during_a_commit_misses_no_move(commit: int, tmp_path: Path) -> None:
    """Each commit of the turn is awaited by a task that is cancelled then."""
    flow = order.workflow(tmp_path)
    turn = flow.start(order.Order(["LAMP"]))
    wait, waits, reached = flow.store.database.wait_for, 0, asyncio.Event()

    async def slowly(future: Any) -> None:
        nonlocal waits
        waits += 1
        if waits == commit:
            reached.set()
            await asyncio.Event().wait()
        await wait(future)

    flow.store.database.wait_for = slowly
    await cancelled(turn.arun(), reached)
    result, stored = await turn.arun(), flow.journal.steps(turn.id)
    assert (result.exit, result.stored) == ("sent", True)
    assert [step.row for step in result.steps] == [step.row for step in stored]
    assert acts(tmp_path).count("charge") == 1


# A store that fails


@pytest.mark.parametrize("broken_after", ["", "reserve", "charge", "ship"])
def test_nothing_is_done_that_cannot_be_written_down(broken_after: str, tmp_path: Path) -> None:
    async def breaks(act: str) -> None:
        if act == broken_after:
            store.database.problem = "database or disk is full"  # type: ignore[attr-defined]

    flow = shop(tmp_path, breaks)
    flow.store = store = Store(tmp_path, opened=Breaking)
    turn = flow.start(order.Order(["LAMP"]))
    if not broken_after:
        store.database.problem = "database or disk is full"  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(StoreError, match="the disk is full"):
            turn.run()
    assert acts(tmp_path) == ["reserve", "charge", "ship"][: len(acts(tmp_path))]
    assert acts(tmp_path)[-1:] == ([broken_after] if broken_after else [])
    broken_after, store.database.problem = "nothing", ""  # type: ignore[attr-defined]
    result = turn.run()
    assert (result.exit, result.stored, result.problem) == ("sent", True, "")
    assert acts(tmp_path) == ["reserve", "charge", "ship"]
    stored = order.workflow(tmp_path).journal
    assert [step.row for step in stored.steps(turn.id)] == [step.row for step in result.steps]
    assert stored.info(turn.id).exit == "sent"


class Hiccup(SqliteDatabase):
    """One commit fails, the others do not."""

    fails_at = done = 0

    def committing(self) -> None:
        self.done += 1
        if self.done == self.fails_at:
            raise sqlite3.DatabaseError("database or disk is full")


@pytest.mark.parametrize("commit", range(2, 12))
def test_what_was_lost_once_is_written_in_its_order(commit: int, tmp_path: Path) -> None:
    """What came later waits for it: else an act that was done would be called under way, or done twice."""

    async def answered_later(act: str) -> None:
        await asyncio.sleep(0.02)  # intent and reply are two commits then

    flow = shop(tmp_path, answered_later)
    flow.store = store = Store(tmp_path, opened=Hiccup)
    turn = flow.start(order.Order(["LAMP"]))
    store.database.fails_at = commit  # type: ignore[attr-defined]
    with contextlib.suppress(StoreError):
        turn.run()
    result = turn.run()
    assert acts(tmp_path) == ["reserve", "charge", "ship"]
    effects = [one for seq in range(result.turn.seq) for one in flow.journal.effects(turn.id, seq)]
    assert [(one.name, one.status) for one in effects] == [(act, "done") for act in acts(tmp_path)]
    assert [step.seq for step in flow.journal.steps(turn.id)] == [1, 2, 3]


# A file that a stranger wrote


def imported(home: Path, change: Callable[[dict[str, Any]], None]) -> Workflow[order.Order]:
    """An order that was charged, and not yet answered, in another shop; as ``change`` made it."""
    there, here = home / "there", home / "here"
    for folder in (there, here):
        folder.mkdir()

    async def go() -> tuple[Workflow[order.Order], str]:
        flow = shop(there, stuck := Stuck("charge"))
        turn = flow.start(order.Order(["LAMP"], turn_id="o-1"))
        await cancelled(turn.arun(), stuck.reached)
        return flow, turn.id

    flow, turn_id = asyncio.run(go())
    lines = [json.loads(line) for line in export_turn(flow.store.database, turn_id, raw=True)]
    for line in lines:
        change(line)
    (here / "ledger.jsonl").touch()
    shop_here = order.workflow(here)
    import_lines(shop_here.store, map(json.dumps, lines))
    return shop_here


def charged(line: dict[str, Any]) -> None:
    """As if the bank had said yes."""
    if line["kind"] == "effect" and line["safety"] == "unsafe":
        line.update(status="done", reply={"is": "str", "value": "done"})


def test_the_replies_of_a_file_are_not_believed(tmp_path: Path) -> None:
    """The bank here is asked, and knows of nothing."""
    result = imported(tmp_path, charged).resume("o-1").run()
    assert result.turn.said == ["reserve: done", "charge: failed", "charge: refused", "release: done"]
    assert result.exit == "cancelled"
    assert "charge" not in acts(tmp_path / "here")


def test_the_limits_of_a_file_are_not_larger_than_those_of_a_new_turn(tmp_path: Path) -> None:
    def generous(line: dict[str, Any]) -> None:
        if line["kind"] == "turn":
            line["start"]["limits"] = {"tries": 1_000_000, "undos": 3, "invented": 7}

    turn = imported(tmp_path, generous).resume("o-1")
    limits = turn.snapshot()["limits"]
    assert (limits["tries"], limits["undos"], "invented" in limits) == (order.LIMITS["tries"], 3, False)


def test_a_counter_below_0_is_refused(tmp_path: Path) -> None:
    def below(line: dict[str, Any]) -> None:
        if line["kind"] == "turn":
            line["start"]["counts"]["tries"] = -50

    with pytest.raises(ConfigError, match=r"counter tries cannot be set so.*-50"):
        imported(tmp_path, below).resume("o-1")


# What is refused before anything is done

ANSWERED = lines_of({"Ask": [on("answered", end("over", "Over"), why="it was answered")]})
BUGS = (("crashed", {"Ask": "bug"}),)
TABLE = Table("short", ("Ask", "Over"), "Over", (Counter("asked"),), ANSWERED, BUGS)


def asking(request: Any) -> Stepping:
    """A turn whose only state makes one request."""

    def ask(turn: Any) -> Any:
        yield request
        return "answered"

    return Workflow(TABLE, {"Ask": ask}, BaseTurn, perform).start(BaseTurn())


done: list[Any] = []


async def perform(request: Any) -> str:
    done.append(request)
    return "yes"


@dataclass
class Mute:
    """Has no doubt at all."""

    effect: ClassVar[str] = "unsafe"
    reply: ClassVar[type] = str


class Vague(Mute):
    """Does not know its own doubt."""

    def in_doubt(self) -> int:
        return 7


class Sloppy(Mute):
    """Says something about itself that cannot be."""

    effect: ClassVar[str] = "unsfae"


@pytest.mark.parametrize("request_made", [Sloppy(), Vague(), Mute()], ids=lambda made: type(made).__name__)
def test_a_request_that_says_nonsense_of_itself_is_not_performed(
    request_made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    done.clear()
    with pytest.raises(ConfigError, match=type(request_made).__name__):
        asyncio.run(asking(request_made).step())
    assert done == []


@pytest.mark.parametrize("name", OTHERS)
def test_a_field_that_means_something_else_to_the_engine_is_refused(name: str) -> None:
    made = dataclass(type("Odd", (BaseTurn,), {"__annotations__": {name: "int"}, name: 0}))
    with pytest.raises(ConfigError, match=name):
        Workflow(TABLE, {"Ask": lambda turn: None}, made, perform)


def test_a_session_that_is_a_conversation_is_refused(tmp_path: Path) -> None:
    agent([text("hello")], tmp_path, session_id="s-1").chat("hello")
    with pytest.raises(ConfigError, match="the session is a conversation"):
        order.workflow(tmp_path).start(order.Order(["LAMP"]), session="s-1")


def test_a_fork_is_of_the_table_as_it_is_now(tmp_path: Path) -> None:
    """And not of the one that the forked turn was moved by."""
    flow = order.workflow(tmp_path)
    first = flow.start(order.Order(["LAMP"])).run()
    flow.store.database.write(lambda c: c.execute("UPDATE turns SET digest = 'of an older table'"))
    forked = flow.fork(first.turn_id, 1)
    forked.run()
    assert flow.journal.info(first.turn_id).digest == "of an older table"
    assert flow.journal.info(forked.id).digest == order.TABLE.digest
