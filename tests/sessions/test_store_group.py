"""Jobs that share a transaction: what is told to be done is in the file, and what failed says why, whatever
SQLite does."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.sessions.store.search.fts5 import index_batch
from fsm_agent.sessions.store.search.messages import search
from tests.helpers.store_homes import written

Job = Callable[[sqlite3.Connection], Any]
NO_SEGMENTS, STRUCTURE = 10, bytes.fromhex("00000000 01 01 00 00 87ffffff7f")
"""The row of a full-text table that says how it is laid out: here one level with two thousand million
segments, for which SQLite asks for more memory than it ever takes at once."""


class Small(SqliteDatabase):
    """A disk with no more room after so many pages."""

    pages = 100

    def _connected(self) -> sqlite3.Connection:
        connection = super()._connected()
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    made = Small(tmp_path / "home" / "x.db")
    made.write(prepare)
    yield made
    made.close()


def prepare(c: sqlite3.Connection) -> None:
    """Words in the order in which they were written; "back" takes back everything."""
    c.execute("CREATE TABLE said (id INTEGER PRIMARY KEY, word TEXT UNIQUE)")
    c.execute(
        "CREATE TRIGGER taken_back BEFORE INSERT ON said WHEN NEW.word = 'back'"
        " BEGIN SELECT RAISE(ROLLBACK, 'all is taken back'); END"
    )


def say(*words: str) -> Job:
    def job(c: sqlite3.Connection) -> str:
        for word in words:
            c.execute("INSERT INTO said (word) VALUES (?)", (word,))
        return words[-1]

    return job


def together(database: SqliteDatabase, *jobs: Job) -> list[Any]:
    """What each was told, when all of them were waiting at the same time. Checks that they were told in
    order."""
    gate, order = threading.Event(), list[int]()
    first = database.submit(lambda c: gate.wait(20) and None)
    futures = [database.submit(job) for job in jobs]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda done, number=number: order.append(number))
    gate.set()
    first.result(20)
    told = [future.exception(20) or future.result() for future in futures]
    database.write(lambda c: None)
    assert order == sorted(order)
    return [str(one) if isinstance(one, Exception) else one for one in told]


def said(database: SqliteDatabase) -> list[str]:
    """As another program reads it."""
    with contextlib.closing(sqlite3.connect(database.path)) as other:
        return [word for (word,) in other.execute("SELECT word FROM said ORDER BY id")]


def test_who_shares_a_transaction_that_sqlite_takes_back_is_run_again(database: SqliteDatabase) -> None:
    told = together(
        database, say("a"), say("b", "c"), say("half", "back", "rest"), say("d"), say("d"), say("e")
    )
    assert told[:2] == ["a", "c"]
    assert "all is taken back" in told[2]
    assert told[3] == "d"
    assert "UNIQUE constraint failed" in told[4]
    assert told[5] == "e"
    assert said(database) == ["a", "b", "c", "d", "e"]


def test_a_job_that_is_taken_back_alone_says_why(database: SqliteDatabase) -> None:
    with pytest.raises(StoreError, match="all is taken back"):
        database.write(say("half", "back"))
    assert said(database) == []
    assert database.write(say("next")) == "next"


def test_a_job_that_fills_the_disk_leaves_room_for_the_others(database: SqliteDatabase) -> None:
    def big(c: sqlite3.Connection) -> None:
        c.execute("INSERT INTO said (word) VALUES (zeroblob(9000000))")

    told = together(database, say("a"), big, say("b"))
    assert (told[0], told[2]) == ("a", "b")
    assert "the disk is full" in told[1]
    assert said(database) == ["a", "b"]


def test_a_damaged_index_that_takes_all_memory_costs_nobody_else_anything(tmp_path: Path) -> None:
    """SQLite takes back the whole transaction when it gets no memory; the others were told that there is no
    such savepoint."""
    store = Store(tmp_path)
    written(store, ["an okapi"])
    assert search(store.database, "okapi").hits
    damage = "UPDATE message_index_data SET block = ? WHERE id = ?"
    store.database.write(lambda c: c.execute(damage, (STRUCTURE, NO_SEGMENTS)) and None)
    written(store, ["another okapi"])
    store.database.write(prepare)
    told = together(store.database, say("a"), lambda c: index_batch(c, 10, 1_000), say("b"))
    assert (told[0], told[2]) == ("a", "b")
    assert "the full-text index of the sessions is damaged" in told[1]
    assert said(store.database) == ["a", "b"]
    assert len(search(store.database, "okapi").hits) == 2
    store.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda c: c.execute("COMMIT"),
        lambda c: c.execute("ROLLBACK"),
        lambda c: c.execute("BEGIN"),
        lambda c: c.commit(),
        lambda c: c.rollback(),
        lambda c: c.executescript("SELECT 1"),
    ],
    ids=["commit", "rollback", "begin", "commit()", "rollback()", "a script"],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_job_cannot_end_the_transaction_that_it_shares(
    database: SqliteDatabase, end: Job, shared: bool
) -> None:
    def job(c: sqlite3.Connection) -> None:
        say("half")(c)
        end(c)

    for number in range(2):  # also when the statement is known already
        told = (
            together(database, say(f"a{number}"), job, say(f"b{number}"))
            if shared
            else together(database, job)
        )
        assert "not authorized" in told[int(shared)] or "within a transaction" in told[int(shared)]
    assert said(database) == (["a0", "b0", "a1", "b1"] if shared else [])


@pytest.mark.parametrize("then", ["nothing", "another word", "a savepoint"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_job_that_passes_over_its_loss_is_not_done(
    database: SqliteDatabase, then: str, shared: bool
) -> None:
    def job(c: sqlite3.Connection) -> str:
        with contextlib.suppress(sqlite3.IntegrityError):
            say("lost", "back")(c)
        if then == "another word":
            say("after")(c)
        elif then == "a savepoint" and shared:
            c.execute("SAVEPOINT mine")
        return "done"

    told = together(database, say("a"), job, say("b")) if shared else [None, *together(database, job), None]
    assert "took back what was written" in told[1] or "no such savepoint" in told[1]
    if shared:
        assert (told[0], told[2]) == ("a", "b")
        assert [word for word in said(database) if word != "after"] == ["a", "b"]
    assert "lost" not in said(database)


def test_what_fails_only_at_the_commit_fails_alone(database: SqliteDatabase) -> None:
    """A reference that is looked at last, as when sessions are imported."""

    def dangling(c: sqlite3.Connection) -> None:
        c.execute("PRAGMA defer_foreign_keys = ON")
        c.execute("INSERT INTO transcripts VALUES ('nobody', 1, '[]')")

    told = together(database, say("a"), dangling, say("b"))
    assert (told[0], told[2]) == ("a", "b")
    assert "FOREIGN KEY constraint failed" in told[1]
    assert said(database) == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_done_is_in_the_file_and_nothing_else(database: SqliteDatabase, seed: int) -> None:
    """Groups of jobs of all kinds in any order."""
    chosen, wanted, wrong = random.Random(seed), list[str](), list[str]()

    def fault(word: str) -> Job:
        def job(c: sqlite3.Connection) -> None:
            say(word)(c)
            raise [ValueError("mine"), MemoryError(), sqlite3.OperationalError("disk I/O error")][
                len(word) % 3
            ]

        return job

    for group in range(5):
        jobs: list[Job] = []
        for number in range(chosen.randint(1, 8)):
            word = f"{group}-{number}"
            kind = chosen.choice(["good", "good", "two", "taken back", "twice", "fault"])
            good = kind in ("good", "two")
            words = {"two": [f"{word}+", word], "taken back": [word, "back"], "twice": [word, word]}.get(
                kind, [word]
            )
            jobs.append(fault(word + "x" * chosen.randint(0, 2)) if kind == "fault" else say(*words))
            wanted += words if good else []
            wrong.append("" if good else kind)
        told = together(database, *jobs)
        for one, kind in zip(told, wrong[-len(jobs) :], strict=True):
            says = {"": "-", "taken back": "all is taken back", "twice": "UNIQUE", "fault": ""}[kind]
            assert says in one
        assert said(database) == wanted
