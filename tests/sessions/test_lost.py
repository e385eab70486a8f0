"""A turn that is somebody else's: the process that lost it stops at once, and nothing is lost with it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.errors import OwnershipLost, StoreError
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.testing import FakeClock, ScriptedModel, call, overflow, repeat, text, tools

HISTORY = [
    {"role": role, "content": f"{role} {n} " + "word " * 300}
    for n in range(8)
    for role in ("user", "assistant")
]


class Locked(SqliteDatabase):
    """No transaction comes through while it is ``locked``."""

    locked = False

    def committing(self) -> None:
        if self.locked:
            raise sqlite3.DatabaseError("database is locked")


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def agent(home: Path, *script: Any, store: Store | None = None, **options: Any) -> Agent:
    given = {"toolsets": [], "tools": [look], "clock": FakeClock(), "session_id": "s-1", **options}
    return Agent(ScriptedModel(script), home=home, store=store or Store(home), **given)


def declared_dead(home: Path) -> None:
    """As where the locks of living processes are not seen."""
    for file in (home / "owners").glob("*.lock"):
        file.unlink()


def test_nobody_goes_on_in_a_compaction_that_could_not_be_stored_and_is_not_wanted_any_more(
    tmp_path: Path,
) -> None:
    """The turn compacted the session into another one while the store failed, and another process gave the
    turn up before that could be written."""
    store = Store(tmp_path, opened=Locked)
    rotating = {"compression": {"mode": "rotate"}}

    def answer(body: dict[str, Any]) -> Any:
        said = str(body["messages"])
        if "tools" not in body:
            store.database.locked = True  # type: ignore[attr-defined]
            return text("the summary")
        return text("on") if "after" in said or "the summary" in said else overflow()

    agent(tmp_path, text("one"), store=store).run_conversation("first", conversation_history=HISTORY)
    one = agent(tmp_path, repeat(answer), store=store, settings=rotating)
    result = one.run_conversation("second")
    assert (result.final_response, result.stored) == ("on", False)
    store.database.locked = False  # type: ignore[attr-defined]
    declared_dead(tmp_path)
    agent(tmp_path, text("between")).chat("meanwhile")
    again = one.run_conversation("after")
    assert (again.stored, again.session_id) == (True, "s-1")
    assert [row["content"] for row in again.messages][-4:] == ["meanwhile", "between", "after", "on"]


@pytest.mark.parametrize("resumes", ["the same process", "another one"])
def test_a_turn_that_was_stopped_behind_its_compaction_goes_on_in_one_line(
    tmp_path: Path, resumes: str
) -> None:
    """The session has gone on as another one already, and the move that says so is not made yet: the visit
    that compacted it is run again."""
    store = Store(tmp_path)
    rotating = {"compression": {"mode": "rotate"}}

    def answer(body: dict[str, Any]) -> Any:
        said = str(body["messages"])
        if "tools" not in body:
            return text("the summary")
        return text("on") if "after" in said or "the summary" in said else overflow()

    async def scenario() -> Any:
        def stopped(name: str, data: Any) -> None:
            if name == "session:compress" and not stops:
                stops.append(name)
                raise asyncio.CancelledError

        stops: list[str] = []
        await agent(tmp_path, text("one"), store=store).arun("first", conversation_history=HISTORY)
        one = agent(tmp_path, repeat(answer), store=store, settings=rotating, callbacks={"event": stopped})
        turn = one.start("second")
        with pytest.raises(asyncio.CancelledError):
            await turn.arun()
        assert stops
        if resumes == "another one":
            await store.written(lambda c: None)
            declared_dead(tmp_path)
            one = agent(tmp_path, repeat(answer), settings=rotating)
        return await one.resume(turn.id).arun()

    result = asyncio.run(scenario())
    assert (result.final_response, result.stored) == ("on", True)
    last = Store(tmp_path).newest("s-1")
    assert last.id == result.session_id
    assert [row.to_dict() for row in last.rows] == result.messages
    assert len(result.compressions) == 1
    with sqlite3.connect(tmp_path / "sessions.db") as c:
        ends = c.execute("SELECT id FROM sessions WHERE successor IS NULL").fetchall()
    c.close()
    assert ends == [(last.id,)]


# It stops at once


async def waiting_for_its_model(home: Path, store: Store) -> tuple[Any, asyncio.Future[Any], list[str]]:
    """A turn whose model never answers, what runs it, and what became of the call."""
    asked, ended = asyncio.Event(), list[str]()

    class Silent(ScriptedModel):
        async def call(self, request: Any, sink: Any) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the call")

    one = Agent(Silent([]), home=home, store=store, toolsets=[], session_id="s-1")
    turn = one.start("go")
    running = asyncio.ensure_future(turn.arun())
    await asked.wait()
    return turn, running, ended


@pytest.mark.parametrize("how", ["another process has it", "somebody says so"])
def test_a_call_of_a_model_is_ended_when_the_turn_is_lost(tmp_path: Path, how: str) -> None:
    """Nobody writes anything meanwhile: the loss is found out by looking, a few times a second."""

    async def scenario() -> None:
        turn, running, ended = await waiting_for_its_model(tmp_path, Store(tmp_path))
        if how == "somebody says so":
            turn.lose("the heartbeat was refused")
        else:
            assert await Store(tmp_path).claim(turn.id, 1) is not None
        with pytest.raises(OwnershipLost, match="heartbeat" if how == "somebody says so" else "taken over"):
            await asyncio.wait_for(running, 30)
        assert ended == ["the call"]
        with pytest.raises(OwnershipLost):
            await turn.step()

    asyncio.run(scenario())


def test_of_two_attempts_in_one_process_the_later_one_goes_on(tmp_path: Path) -> None:
    """The earlier one has its own copy of the session, and stops."""

    async def scenario() -> None:
        store = Store(tmp_path)
        turn, running, ended = await waiting_for_its_model(tmp_path, store)
        claim = await store.claim(turn.id, 1)
        later = agent(tmp_path, text("done"), store=store).resume(turn.id, claim=claim)
        assert (await later.arun()).stored
        with pytest.raises(OwnershipLost, match="was taken over"):
            await running
        assert ended == ["the call"]
        assert (await agent(tmp_path, text("on"), store=store).arun("and now?")).final_response == "on"

    asyncio.run(scenario())
    assert [row.content for row in Store(tmp_path).session("s-1").rows] == ["go", "done", "and now?", "on"]


def test_who_is_cancelled_and_has_lost_the_turn_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        turn, running, _ = await waiting_for_its_model(tmp_path, Store(tmp_path))
        turn.lose("elsewhere")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


# It never goes on in memory where somebody else may have it


@pytest.mark.parametrize("why", ["handed out", "its lock is gone", "a shared database"])
def test_a_turn_that_others_may_have_stops_when_its_store_fails(tmp_path: Path, why: str) -> None:
    class Shared(Locked):
        shared = why == "a shared database"

    store = Store(tmp_path, opened=Shared)

    def answer(body: dict[str, Any]) -> Any:
        if any(row["role"] == "tool" for row in body["messages"]):
            return text("the answer")
        store.database.locked = True  # type: ignore[attr-defined]
        if why == "its lock is gone":
            declared_dead(tmp_path)
        return tools(call("look"))

    async def scenario() -> None:
        one = agent(tmp_path, repeat(answer), store=store)
        turn = one.start("go")
        if why == "handed out":
            await turn.step()
            claim = await store.claim(turn.id, 1)
            turn = one.resume(turn.id, claim=claim)
        with pytest.raises(StoreError, match="holds its lock"):
            await turn.arun()
        store.database.locked = False  # type: ignore[attr-defined]
        assert (await turn.arun()).stored

    asyncio.run(scenario())


# What is written beside the journal


def test_what_is_said_to_a_turn_is_heard_by_its_owner_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = Store(tmp_path), Store(tmp_path)
        turn = agent(tmp_path, text("one"), store=store).start("go")
        await turn.step()
        store.pause_points.opened(turn.gate)
        await other.claim(turn.id, 1)
        said = (turn.id, "pause", "{}", 0.0)
        insert = "INSERT INTO controls (turn, command, body, at) VALUES (?, ?, ?, ?)"
        await other.written(lambda c: c.execute(insert, said) and None)
        store.pause_points._look()
        [(taken,)] = other.database.select("SELECT taken FROM controls")
        assert taken is None

    asyncio.run(scenario())


def test_who_lost_a_turn_suspends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = Store(tmp_path), Store(tmp_path)
        turn = agent(tmp_path, text("one"), store=store).start("go")
        await turn.step()
        claim = await other.claim(turn.id, 1)
        assert claim is not None
        with pytest.raises(OwnershipLost):
            await store.suspend(turn._lease.fence)
        [(owner,)] = other.database.select("SELECT owner FROM turns")
        assert owner == claim.owner

    asyncio.run(scenario())
