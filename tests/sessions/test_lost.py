"""The owner of a turn: it is claimed in the order of the ranks, and the process that lost it stops at once,
at any point (``tests/crash/taking_over.py``)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import ScriptedModel, call, overflow, repeat, text, tools
from tests.crash.taking_over import MUTANTS, Engine, Found, Point, Takeover, faults
from tests.helpers.sample import at_least, sampled
from tests.helpers.store_homes import HISTORY, ROTATE, contents, look, moves, process


class Locked(SqliteDatabase):
    """No transaction comes through while it is ``locked``."""

    locked = False

    def committing(self) -> None:
        if self.locked:
            raise sqlite3.DatabaseError("database is locked")


def locks_removed(home: Path) -> None:
    """As where the locks of living processes are not seen."""
    for file in (home / "owners").glob("*.lock"):
        file.unlink()


def compacts(summarized: Callable[[], object] = lambda: None) -> Any:
    """A model that asks for a compaction, and answers behind it."""

    def answer(body: dict[str, Any]) -> Any:
        said = str(body["messages"])
        if "tools" not in body:
            summarized()
            return text("the summary")
        return text("on") if "after" in said or "the summary" in said else overflow()

    return repeat(answer)


def test_an_unstored_compaction_is_never_continued(home: Path) -> None:
    """The turn compacted the session into another one while the store failed, and another process gave the
    turn up before that could be written."""
    store = Store(home, opened=Locked)
    model = compacts(lambda: setattr(store.database, "locked", True))
    process(home, text("one"), store=store).run_conversation("first", conversation_history=HISTORY)
    one = process(home, model, store=store, settings=ROTATE, tools=[look])
    result = one.run_conversation("second")
    assert (result.final_response, result.stored) == ("on", False)
    store.database.locked = False  # type: ignore[attr-defined]
    locks_removed(home)
    process(home, text("between")).chat("meanwhile")
    again = one.run_conversation("after")
    assert (again.stored, again.session_id) == (True, "s-1")
    assert contents(again.messages)[-4:] == ["meanwhile", "between", "after", "on"]


@pytest.mark.parametrize("resumes", ["the same process", "another one"])
async def test_a_turn_that_was_stopped_behind_its_compaction_goes_on_in_one_line(
    home: Path, resumes: str
) -> None:
    """The session already continues as another one, and the move that records it is not made yet: the visit
    that compacted it is run again."""
    store, stops = Store(home), list[str]()
    rotating: dict[str, Any] = {"settings": ROTATE, "tools": [look]}

    def stopped(name: str, data: Any) -> None:
        if name == "session:compress" and not stops:
            stops.append(name)
            raise asyncio.CancelledError

    await process(home, text("one"), store=store).arun("first", conversation_history=HISTORY)
    one = process(home, compacts(), store=store, callbacks={"event": stopped}, **rotating)
    turn = one.start("second")
    with pytest.raises(asyncio.CancelledError):
        await turn.arun()
    assert stops
    if resumes == "another one":
        await store.write(lambda c: None)
        locks_removed(home)
        one = process(home, compacts(), **rotating)
    result = await one.resume(turn.id).arun()
    assert (result.final_response, result.stored) == ("on", True)
    last = Store(home).newest("s-1")
    assert last.id == result.session_id
    assert [row.to_dict() for row in last.rows] == result.messages
    assert len(result.compressions) == 1
    assert store.database.select("SELECT id FROM sessions WHERE successor IS NULL") == [(last.id,)]


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

    turn = process(home, model=Silent([]), store=store).start("go")
    running = asyncio.ensure_future(turn.arun())
    await asked.wait()
    return turn, running, ended


@pytest.mark.parametrize("how", ["another process has it", "it is notified"])
async def test_a_call_of_a_model_is_ended_when_the_turn_is_lost(home: Path, how: str) -> None:
    """Nothing is written meanwhile: the loss is found by polling a few times a second."""
    turn, running, ended = await waiting_for_its_model(home, Store(home))
    if how == "it is notified":
        turn.lose("the heartbeat was refused")
    else:
        assert await Store(home).claim(turn.id, 1) is not None
    with pytest.raises(OwnershipLost, match="heartbeat" if how == "it is notified" else "taken over"):
        await asyncio.wait_for(running, 30)
    assert ended == ["the call"]
    with pytest.raises(OwnershipLost):
        await turn.step()


async def test_of_two_attempts_in_one_process_the_later_one_continues(home: Path, store: Store) -> None:
    """The earlier one has its own copy of the session, and stops."""
    turn, running, ended = await waiting_for_its_model(home, store)
    claim = await store.claim(turn.id, 1)
    later = process(home, text("done"), store=store).resume(turn.id, claim=claim)
    assert (await later.arun()).stored
    with pytest.raises(OwnershipLost, match="was taken over"):
        await running
    assert ended == ["the call"]
    assert (await process(home, text("on"), store=store).arun("and now?")).final_response == "on"
    assert contents(Store(home).session("s-1").rows) == ["go", "done", "and now?", "on"]


async def test_who_is_cancelled_and_has_lost_the_turn_is_cancelled(home: Path) -> None:
    turn, running, _ = await waiting_for_its_model(home, Store(home))
    turn.lose("elsewhere")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# It never continues in memory where another process may have it


@pytest.mark.parametrize("why", ["handed out", "its lock is gone", "a shared database"])
async def test_a_turn_that_others_may_have_stops_when_its_store_fails(home: Path, why: str) -> None:
    class Shared(Locked):
        shared = why == "a shared database"

    store = Store(home, opened=Shared)

    def answer(body: dict[str, Any]) -> Any:
        if any(row["role"] == "tool" for row in body["messages"]):
            return text("the answer")
        store.database.locked = True  # type: ignore[attr-defined]
        if why == "its lock is gone":
            locks_removed(home)
        return tools(call("look"))

    one = process(home, repeat(answer), store=store, tools=[look])
    turn = one.start("go")
    if why == "handed out":
        await turn.step()
        claim = await store.claim(turn.id, 1)
        turn = one.resume(turn.id, claim=claim)
    with pytest.raises(StoreError, match="holds its lock"):
        await turn.arun()
    store.database.locked = False  # type: ignore[attr-defined]
    assert (await turn.arun()).stored


# What is written beside the journal


async def test_who_lost_a_turn_is_not_heard_and_suspends_nothing(home: Path) -> None:
    store, other = Store(home), Store(home)
    turn = process(home, text("one"), store=store).start("go")
    await turn.step()
    store.pause_points.opened(turn.gate)
    claim = await other.claim(turn.id, 1)
    assert claim is not None
    said = (turn.id, "pause", "{}", 0.0)
    insert = "INSERT INTO controls (turn, command, body, at) VALUES (?, ?, ?, ?)"
    await other.write(lambda c: c.execute(insert, said) and None)
    store.pause_points.look()
    assert other.database.select("SELECT taken FROM controls") == [(None,)]
    with pytest.raises(OwnershipLost):
        await store.suspend(store.fences.get(turn.id))
    assert other.database.select("SELECT owner FROM turns") == [(claim.owner,)]


# Claiming: one statement before anything is read


async def begun(home: Path, store: Store) -> Any:
    turn = process(home, text("the old one's"), store=store).start("go")
    await moves(turn, 1)
    return turn


async def test_a_claim_of_a_higher_rank_takes_a_turn_from_a_living_owner(home: Path) -> None:
    """And an attempt that comes late takes nothing."""
    store, other, late = Store(home), Store(home), Store(home)
    turn = await begun(home, store)
    digest = process(home, store=store).journal.info(turn.id).digest
    first = await other.claim(turn.id, 7, digest=digest)
    assert first is not None
    assert (first.turn, first.session, first.epoch, first.rank) == (turn.id, "s-1", 2, 7)
    assert first.owner == other.owners.me
    with pytest.raises(OwnershipLost, match="was taken over by another process"):
        await turn.arun()
    resumed = process(home, text("the new one's"), store=other).resume(turn.id, claim=first)
    await moves(resumed, 1)
    for rank in (1, 6, 7):
        with pytest.raises(OwnershipLost, match="was claimed by a later attempt"):
            await late.claim(turn.id, rank)
    result = await resumed.arun()
    assert (result.final_response, result.stored) == ("the new one's", True)
    assert await other.claim(turn.id, 8) is None


async def test_without_a_rank_a_living_owner_keeps_its_turn(home: Path) -> None:
    store, other = Store(home), Store(home)
    turn = await begun(home, store)
    with pytest.raises(SessionBusy, match="is running in process"):
        await other.claim(turn.id)
    before = process(home, store=store).journal.info(turn.id)
    same = await store.claim(turn.id, as_read=before)
    assert same is not None
    assert (same.epoch, same.rank) == (2, 1)
    with pytest.raises(SessionBusy, match="was moved by another process since it was read"):
        await store.claim(turn.id, as_read=before)


async def test_a_turn_of_another_version_of_the_table_stays_as_it_is(home: Path, store: Store) -> None:
    turn = await begun(home, store)
    with pytest.raises(ConfigError, match="was begun with another version of its table"):
        await Store(home).claim(turn.id, 1, digest="another")
    with pytest.raises(ConfigError, match="no such turn"):
        await store.claim("t-none", 1)
    assert (await turn.arun()).stored


# Taken over at any point while its old owner lives


def taken_over(home: Path, point: Point | None, how: str, engine: Engine) -> Found:
    return asyncio.run(Takeover(home, engine, point, how).run())


def points(home: Path) -> list[Point]:
    """Every point of a turn that keeps its owner."""
    found = taken_over(home, None, "end", Engine())
    assert (found.old, found.stored, found.ran) == ("done", True, ("a", "b"))
    assert set(found.counts) == {"request", "intent", "reply", "move", "commit", "end"}
    return [(what, number) for what, count in found.counts.items() for number in range(1, count + 1)]


@pytest.mark.parametrize("how", ["at once", "end", "looked", "late"])
@pytest.mark.parametrize(("every", "least"), [(30, 2), pytest.param(1, at_least(90), marks=pytest.mark.slow)])
def test_an_old_owner_does_nothing_more(home: Path, how: str, every: int, least: int) -> None:
    """No call that cannot be undone runs twice, and what the new owner wrote stays as it is, byte for byte:
    at one point in thirty, and where there is time at a sample of all."""
    taken, said = 0, list[str]()
    known = points(home / "base")
    chosen = sampled(known, f"taken over {how}") if every == 1 else known[::every]
    for number, point in enumerate(chosen):
        if how == "looked" and point[0] == "commit":
            continue
        found = taken_over(home / str(number), point, how, Engine())
        taken += found.taken or how == "late"
        said += faults(found, point, how)
    assert not said
    assert taken >= least


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_an_engine_with_a_fault_in_its_fence_is_caught(home: Path, name: str) -> None:
    """At one point at least. Which one depends on which of two calls side by side is asked for first."""
    engine, how, what, says = MUTANTS[name]
    for point in points(home / "base"):
        if point[0] == what:
            said = faults(taken_over(home / str(point), point, how, engine), point, how)
            if any(says in one for one in said):
                return
    pytest.fail(f"no point shows that {name}")
