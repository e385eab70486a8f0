"""Files of other formats: those of before the first release and newer ones are refused, others upgraded."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.schema import FIRST, VERSIONS, application_id, health, newest
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import text
from tests.helpers.store_homes import process


class Newer(SqliteDatabase):
    versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))


def test_an_older_file_is_upgraded_in_place_after_a_copy(home: Path) -> None:
    process(home, text("one")).chat("first")
    upgraded = Store(home, opened=Newer)
    result = process(home, text("two"), store=upgraded).run_conversation("second")
    assert result.messages[0]["content"] == "first"
    assert upgraded.database.select("SELECT mood FROM sessions") == [("good",)]
    [copy] = home.glob("*.backup")
    assert copy.name == f"sessions.db.before-{newest(Newer.versions)}.backup"
    with contextlib.closing(sqlite3.connect(shutil.copy(copy, home / "old.db"))) as c:
        assert c.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        assert c.execute("PRAGMA user_version").fetchone() == (newest(VERSIONS),)


@pytest.mark.parametrize(("found", "mark"), [(1, 0), (FIRST - 1, application_id(FIRST - 1))])
def test_a_file_of_before_the_first_release_is_refused_in_a_line(
    home: Path, cli: Callable[..., tuple[int, str, str]], found: int, mark: int
) -> None:
    home.mkdir()
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as c:
        c.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY)")
        c.execute(f"PRAGMA user_version = {found}")
        c.execute(f"PRAGMA application_id = {mark}")
    before = (home / "sessions.db").read_bytes()
    code, _, err = cli("run", "-q", "hello", "--model", "offline:demo", "--home", str(home))
    said = f"was written by fsm-agent before 0.1.0 (format {found}, this one reads from {FIRST} on)"
    assert code == 2
    assert len(err.splitlines()) == 1
    assert said in err
    assert "fsm-agent sessions export --raw" in err
    assert said in cli("doctor", "--home", str(home))[1]
    with pytest.raises(StoreError, match=r"before 0\.1\.0"):
        health(home)
    assert (home / "sessions.db").read_bytes() == before


def test_a_file_of_a_newer_version_is_refused_and_left_alone(home: Path) -> None:
    Store(home, opened=Newer).session("s")
    current = newest(VERSIONS)
    words = rf"newer version of fsm-agent \(format {current + 1}, this one reads up to {current}\)"
    with pytest.raises(StoreError, match=words):
        Store(home).session("s")


def test_an_upgrade_that_fails_changes_nothing(home: Path) -> None:
    class Broken(SqliteDatabase):
        versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT", "THIS IS NO SQL"))

    process(home, text("one")).chat("first")
    with pytest.raises(StoreError):
        Store(home, opened=Broken).session("s")
    assert process(home, text("two")).run_conversation("second").messages[0]["content"] == "first"
