"""Claiming a turn: one statement before anything is read, in the order of the ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy
from fsm_agent.sessions.store import Store
from fsm_agent.testing import FakeClock, ScriptedModel, text


def agent(home: Path, *script: Any, store: Store | None = None) -> Agent:
    given = store or Store(home)
    return Agent(
        ScriptedModel(script), home=home, store=given, toolsets=[], clock=FakeClock(), session_id="s-1"
    )


async def moved(home: Path, store: Store, moves: int = 1) -> Any:
    turn = agent(home, text("the old one's"), store=store).start("go")
    for _ in range(moves):
        await turn.step()
    return turn


def digest_of(store: Store, turn: Any) -> str:
    return str(agent(store.home, store=store).journal.info(turn.id).digest)


def test_a_claim_of_a_higher_rank_takes_a_turn_from_a_living_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = Store(tmp_path), Store(tmp_path)
        turn = await moved(tmp_path, store)
        first = await other.claim(turn.id, 7, digest=digest_of(store, turn))
        assert first is not None
        assert (first.turn, first.session, first.epoch, first.rank) == (turn.id, "s-1", 2, 7)
        assert first.owner == other.owners.me
        with pytest.raises(OwnershipLost, match="was taken over by another process"):
            await turn.arun()
        resumed = agent(tmp_path, text("the new one's"), store=other).resume(turn.id, claim=first)
        assert (await resumed.arun()).final_response == "the new one's"
        assert await other.claim(turn.id, 8) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("rank", [1, 6, 7])
def test_an_attempt_that_comes_late_takes_nothing(tmp_path: Path, rank: int) -> None:
    async def scenario() -> None:
        store, other, late = Store(tmp_path), Store(tmp_path), Store(tmp_path)
        turn = await moved(tmp_path, store)
        claim = await other.claim(turn.id, 7)
        running = agent(tmp_path, text("done"), store=other).resume(turn.id, claim=claim)
        await running.step()
        with pytest.raises(OwnershipLost, match="was claimed by a later attempt"):
            await late.claim(turn.id, rank)
        assert (await running.arun()).stored

    asyncio.run(scenario())


def test_without_a_rank_a_living_owner_keeps_its_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = Store(tmp_path), Store(tmp_path)
        turn = await moved(tmp_path, store)
        with pytest.raises(SessionBusy, match="is running in process"):
            await other.claim(turn.id)
        before = agent(tmp_path, store=store).journal.info(turn.id)
        same = await store.claim(turn.id, as_read=before)
        assert same is not None
        assert (same.epoch, same.rank) == (2, 1)
        with pytest.raises(SessionBusy, match="was moved by another process since it was read"):
            await store.claim(turn.id, as_read=before)

    asyncio.run(scenario())


def test_a_turn_of_another_version_of_the_table_stays_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        turn = await moved(tmp_path, store)
        with pytest.raises(ConfigError, match="was begun with another version of its table"):
            await Store(tmp_path).claim(turn.id, 1, digest="another")
        with pytest.raises(ConfigError, match="no such turn"):
            await store.claim("t-none", 1)
        assert (await turn.arun()).stored

    asyncio.run(scenario())


# Turns follow each other by their number


def numbers(home: Path) -> list[tuple[str, int]]:
    return Store(home).database.select("SELECT asked, number FROM turns ORDER BY number")  # type: ignore[return-value]


def test_undo_takes_the_turn_with_the_highest_number_whatever_the_clocks_say(tmp_path: Path) -> None:
    """As on machines whose clocks differ, in a database that gives rows no numbers of its own."""
    store = Store(tmp_path)
    one = agent(tmp_path, text("one"), text("two"), store=store)
    one.chat("first")
    one.chat("second")
    other = "began = -began" if store.database.path is None else "began = -began, rowid = 10 - rowid"
    store.database.write(lambda c: c.execute(f"UPDATE turns SET {other}") and None)
    assert one.undo().asked == "second"
    assert one.undo().asked == "first"


def test_numbers_go_up_along_compactions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = Agent(
        ScriptedModel([text("one"), text("the summary"), text("two"), text("three")]), home=tmp_path,
        store=store, toolsets=[], clock=FakeClock(), session_id="s-1",
        settings={"compression": {"mode": "rotate"}},
    )  # fmt: skip
    history = [{"role": role, "content": "word " * 300} for _ in range(8) for role in ("user", "assistant")]
    one.run_conversation("first", conversation_history=history)
    one.compact()
    one.chat("second")
    one.chat("third")
    assert one.session_id != "s-1"
    assert numbers(tmp_path) == [("first", 1), ("second", 2), ("third", 3)]
    assert one.undo(3).turns[-1] == store.database.select("SELECT id FROM turns WHERE number = 1")[0][0]
