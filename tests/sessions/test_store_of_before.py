"""Files of other versions: those of before are upgraded and all of it goes on, newer ones are left alone."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import StoreError, TurnSuspended
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.sessions.store.reports.health import health
from fsm_agent.sessions.store.retention import old, remove
from fsm_agent.sessions.store.schema import VERSIONS
from fsm_agent.sessions.store.transfer.export import export_session
from fsm_agent.sessions.store.transfer.importing import import_lines
from fsm_agent.testing import call, text, tools
from tests.helpers.store_homes import agent, contents, process, written

KEPT = Path(__file__).parents[1] / "data"
"""Files that versions before wrote: each has a turn with a tool, a fork of it, and a turn that was left
unfinished with its tool's result (made with the scripted model)."""
PROMPT = "Be short."


@pytest.fixture
def version() -> int:
    return 0


@pytest.fixture
def home(tmp_path: Path, version: int) -> Path:
    path = tmp_path / "home" / "sessions.db"
    path.parent.mkdir()
    if version:
        path.write_bytes(gzip.decompress((KEPT / f"sessions-{version}.db.gz").read_bytes()))
    return path.parent


def speaker(home: Path, *script: Any, session: str = "s-old", **options: Any) -> Agent:
    return agent(script, home, session_id=session, system_prompt=PROMPT, **options)


def turn_of(home: Path, session: str) -> str:
    return agent([], home).journal.recent(session=session)[0].id


@pytest.mark.parametrize("version", [4, 5])
def test_all_of_it_is_read_and_goes_on(home: Path, tmp_path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as c:
        assert c.execute("PRAGMA user_version").fetchone() == (version,)
    journal, turn = agent([], home).journal, turn_of(home, "s-old")
    assert (home / f"sessions.db.before-{len(VERSIONS)}.backup").exists()
    assert [step.row for step in journal.steps(turn)][-1] == "CallLLM.text"
    assert journal.snapshot(turn, 1)["system_prompt"].startswith(PROMPT)
    assert journal.snapshot(turn)["final_response"] == "booked"
    kinds = [one.kind for seq in range(journal.info(turn).seq + 1) for one in journal.effects(turn, seq)]
    assert {"OpenTurn", "CallModel", "RunTool", "Persist", "CloseTurn"} <= set(kinds)
    assert (journal.result(turn) or {})["turn_exit_reason"] == "text_response"
    assert health(home) is not None

    there = Store(tmp_path / "there")
    import_lines(there, list(export_session(Store(home).database, "s-old", raw=True)))
    other = agent([], there.home).journal
    assert other.snapshot(turn) == journal.snapshot(turn)
    assert [other.effects(turn, seq) for seq in range(3)] == [journal.effects(turn, seq) for seq in range(3)]

    left = speaker(home, text("sunny"), session="s-open").resume("s-open").run()
    assert (left.final_response, left.stored) == ("sunny", True)
    assert [row["role"] for row in left.messages] == ["user", "assistant", "tool", "assistant"]

    one = speaker(home, text("not booked"), text("you are welcome"))
    assert one.fork(turn, 1).run().final_response == "not booked"
    assert one.chat("thank you") == "you are welcome"
    found = Store(home).database.select(
        "SELECT number, rank FROM turns WHERE session = 's-old' ORDER BY rowid"
    )
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers)), "in the order in which they began"
    assert {rank for _, rank in found} == {0}
    assert one.undo().asked == "thank you"


@pytest.mark.parametrize("version", [4, 5])
def test_old_sessions_of_it_are_removed(home: Path, version: int) -> None:
    store = Store(home)
    removed = remove(store, old(store, 0).sessions, 0)
    assert (len(removed.groups), removed.unfinished) == (1, 1)  # a fork goes with what it was forked from
    assert store.database.select("SELECT id FROM sessions") == [("s-open",)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_turn_of_it_is_suspended_and_answered(home: Path, version: int) -> None:
    rules = {"approval": {"unanswered": "suspend", "policy": {"book": "ask"}}}
    with pytest.raises(TurnSuspended) as caught:
        speaker(home, tools(call("book", {"city": "Rome"})), settings=rules).chat("again")
    other = speaker(home, text("booked again"), settings=rules)
    other.answer(caught.value.pending[0].id, "once")
    assert other.resume(caught.value.turn_id).run().final_response == "booked again"


# Upgrading


class Newer(SqliteDatabase):
    versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))


def test_an_older_file_is_upgraded_in_place_after_a_copy(home: Path) -> None:
    process(home, text("one")).chat("first")
    upgraded = Store(home, opened=Newer)
    result = process(home, text("two"), store=upgraded).run_conversation("second")
    assert result.messages[0]["content"] == "first"
    assert upgraded.database.select("SELECT mood FROM sessions") == [("good",)]
    [copy] = home.glob("*.backup")
    with contextlib.closing(sqlite3.connect(shutil.copy(copy, home / "old.db"))) as c:
        assert c.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        assert c.execute("PRAGMA user_version").fetchone() == (len(VERSIONS),)


def test_a_file_of_the_first_version_says_how_its_sessions_ended_and_began(home: Path) -> None:
    class First(SqliteDatabase):
        versions = VERSIONS[:1]

    before = Store(home, opened=First)
    written(before, ["one", "two"], "s-1", kind="fork")
    turn = (
        "INSERT INTO turns (id, session, asked, state, digest, settings, start, began, moved, ended, exit)"
        " VALUES (?, 's-1', 'go', 'Finalize', '', '{}', '{}', ?, 1, ?, ?)"
    )
    ends = ("t-1", 1.0, 1.0, "text_response"), ("t-2", 2.0, 2.0, "guardrail_halt"), ("t-3", 3.0, None, None)
    before.database.write(lambda c: c.executemany(turn, ends) and None)
    before.close()
    store = Store(home)
    assert store.database.select("SELECT exit, source FROM sessions") == [("guardrail_halt", "fork")]
    assert contents(store.session("s-1").rows) == ["one", "two"]


def test_a_file_of_a_newer_version_is_refused_and_left_alone(home: Path) -> None:
    Store(home, opened=Newer).session("s")
    newest = len(VERSIONS)
    words = rf"newer version of fsm-agent \(format {newest + 1}, this one reads up to {newest}\)"
    with pytest.raises(StoreError, match=words):
        Store(home).session("s")


def test_an_upgrade_that_fails_changes_nothing(home: Path) -> None:
    class Broken(SqliteDatabase):
        versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT", "THIS IS NO SQL"))

    process(home, text("one")).chat("first")
    with pytest.raises(StoreError):
        Store(home, opened=Broken).session("s")
    assert process(home, text("two")).run_conversation("second").messages[0]["content"] == "first"
