"""What writes to a SQLite file: jobs that share a commit, what a failure takes with it, and who waits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import CommitWaiter
from fsm_agent.sessions.store.search import catch_up, keep_up, search
from fsm_agent.sessions.store.search.indexes import SqliteIndex
from fsm_agent.sessions.store.sqlite import CHECKPOINT, SqliteDatabase
from fsm_agent.testing import call, text, tools
from tests.helpers.store_homes import look, process, written
from tests.helpers.waiting import PATIENCE

Job = Callable[[sqlite3.Connection], Any]
NO_SEGMENTS, STRUCTURE = 10, bytes.fromhex("00000000 01 01 00 00 87ffffff7f")
"""The row of a full-text table that says how it is laid out: here one level with two thousand million
segments, for which SQLite asks for more memory than it ever takes at once."""


class Small(SqliteDatabase):
    """A disk that is full after ``pages`` pages, and that can break at a commit."""

    pages = 100
    broken = False

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection

    def committing(self) -> None:
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")


@pytest.fixture
def database(home: Path) -> Iterator[Small]:
    made = Small(home / "x.db")
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


def together(database: SqliteDatabase, *jobs: Job, first: Job = lambda c: None) -> list[Any]:
    """The outcome of each job, all submitted while the writer was busy. Checks that they were reported in
    order."""
    gate, order = threading.Event(), list[int]()
    before = database.submit(lambda c: gate.wait(PATIENCE) and first(c))
    futures = [database.submit(job) for job in jobs]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda done, number=number: order.append(number))
    gate.set()
    assert not before.exception(PATIENCE) or database.broken  # type: ignore[attr-defined]
    told = [future.exception(PATIENCE) or future.result() for future in futures]
    with contextlib.suppress(StoreError):
        database.write(lambda c: None)
    assert order == sorted(order)
    return [str(one) if isinstance(one, Exception) else one for one in told]


def said(database: SqliteDatabase) -> list[str]:
    """As another program reads it."""
    with contextlib.closing(sqlite3.connect(database.path)) as other:
        return [word for (word,) in other.execute("SELECT word FROM said ORDER BY id")]


def marking(name: str) -> Job:
    return lambda c: c.execute("INSERT INTO marks VALUES (?, 1)", (name,)) and None


# What is done is in the file, and nothing else


@pytest.mark.parametrize("seed", range(20))
def test_what_is_done_is_in_the_file_and_nothing_else(database: Small, seed: int) -> None:
    """Groups of one to eight jobs of all kinds in any order: a job whose transaction SQLite rolls back
    runs again, and the job that caused it gets the error."""
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
            words = {"two": [f"{word}+", word], "taken back": [word, "back", "rest"], "twice": [word, word]}
            jobs.append(
                fault(word + "x" * chosen.randint(0, 2)) if kind == "fault" else say(*words.get(kind, [word]))
            )
            wanted += words.get(kind, [word]) if good else []
            wrong.append("" if good else kind)
        told = together(database, *jobs)
        for one, kind in zip(told, wrong[-len(jobs) :], strict=True):
            says = {"": "-", "taken back": "all is taken back", "twice": "UNIQUE", "fault": ""}[kind]
            assert says in one
        assert said(database) == wanted


def test_jobs_that_wait_share_a_commit_also_with_one_that_is_refused(database: Small) -> None:
    before = database.commits
    *told, wrong = together(database, *(say(f"m{n}") for n in range(20)), say("half", "m1"))
    assert told == [f"m{n}" for n in range(20)]
    assert "UNIQUE" in wrong
    assert database.commits - before <= 3
    assert said(database) == told


def test_a_commit_that_fails_fails_everybody_in_it(database: Small) -> None:
    def breaks(c: sqlite3.Connection) -> None:
        database.broken = True

    assert all("disk I/O error" in one for one in together(database, say("a"), say("b"), first=breaks))
    database.broken = False
    assert database.write(say("again")) == "again"
    assert said(database) == ["again"]


def fills_the_disk(c: sqlite3.Connection) -> None:
    c.execute("INSERT INTO said (word) VALUES (zeroblob(9000000))")


def refers_to_nothing(c: sqlite3.Connection) -> None:
    """This is seen at the commit, as when sessions are imported."""
    c.execute("PRAGMA defer_foreign_keys = ON")
    c.execute("INSERT INTO transcripts VALUES ('missing', 1, '[]', NULL)")


@pytest.mark.parametrize(
    ("job", "why"),
    [(fills_the_disk, "the disk is full"), (refers_to_nothing, "FOREIGN KEY constraint failed")],
)
def test_a_job_that_fails_fails_alone(database: Small, job: Any, why: str) -> None:
    told = together(database, say("a"), job, say("b"))
    assert (told[0], told[2]) == ("a", "b")
    assert why in told[1]
    assert said(database) == ["a", "b"]


ENDS: dict[str, Job] = {
    "commit": lambda c: c.execute("COMMIT"), "rollback": lambda c: c.execute("ROLLBACK"),
    "begin": lambda c: c.execute("BEGIN"), "commit()": lambda c: c.commit(),
    "rollback()": lambda c: c.rollback(), "a script": lambda c: c.executescript("SELECT 1"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shared", [True, False])
def test_a_job_cannot_end_the_transaction_that_it_shares(database: Small, end: str, shared: bool) -> None:
    def job(c: sqlite3.Connection) -> None:
        say("half")(c)
        ENDS[end](c)

    for number in range(2):  # also when the statement is known already
        beside = (say(f"a{number}"), job, say(f"b{number}")) if shared else (job,)
        told = together(database, *beside)[int(shared)]
        assert "not authorized" in told or "within a transaction" in told
    assert said(database) == (["a0", "b0", "a1", "b1"] if shared else [])


@pytest.mark.parametrize("then", ["nothing", "another word", "a savepoint"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_job_that_passes_over_its_loss_is_not_done(database: Small, then: str, shared: bool) -> None:
    def job(c: sqlite3.Connection) -> str:
        with contextlib.suppress(sqlite3.IntegrityError):
            say("lost", "back")(c)
        if then == "another word":
            say("after")(c)
        elif then == "a savepoint" and shared:
            c.execute("SAVEPOINT mine")
        return "done"

    told = together(database, say("a"), job, say("b")) if shared else ["a", *together(database, job), "b"]
    assert "took back what was written" in told[1] or "no such savepoint" in told[1]
    assert (told[0], told[2]) == ("a", "b")
    assert [word for word in said(database) if word != "after"] == (["a", "b"] if shared else [])


def test_a_canceled_job_cancels_no_other(database: Small) -> None:
    gate = threading.Event()
    blocker = database.submit(lambda c: gate.wait(PATIENCE))
    dropped, kept = database.submit(say("dropped")), database.submit(say("kept"))
    assert dropped.cancel()
    gate.set()
    assert (blocker.result(PATIENCE), kept.result(PATIENCE)) == (True, "kept")
    assert said(database) == ["kept"]


def test_what_a_disk_refuses_is_tried_on_a_new_connection(database: Small) -> None:
    seen: list[sqlite3.Connection] = []

    def broken(connection: sqlite3.Connection) -> None:
        seen.append(connection)
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError, match="disk I/O error"):
        database.write(broken)
    database.write(seen.append)
    assert seen[0] is not seen[1]


# A full-text table that fails


def test_a_damaged_index_that_takes_all_memory_harms_no_other_job(store: Store) -> None:
    """SQLite rolls back the whole transaction when it runs out of memory; the other jobs failed because
    the savepoint does not exist."""
    written(store, ["an okapi"])
    assert search(store.database, "okapi").hits
    damage = "UPDATE message_index_data SET block = ? WHERE id = ?"
    store.database.write(lambda c: c.execute(damage, (STRUCTURE, NO_SEGMENTS)) and None)
    written(store, ["another okapi"])
    store.database.write(prepare)
    told = together(store.database, say("a"), lambda c: SqliteIndex().index_batch(c, 10, 1_000), say("b"))
    assert (told[0], told[2]) == ("a", "b")
    assert "the full-text index of the sessions is damaged" in told[1]
    assert said(store.database) == ["a", "b"]
    assert len(search(store.database, "okapi").hits) == 2


INDEX_MARKS = ("message_index", "message_index_format")


class Tight(SqliteDatabase):
    """Takes no text of more bytes, as one of gigabytes is refused."""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
        return connection


def test_an_index_that_is_refused_takes_nothing_of_its_neighbours_with_it(home: Path) -> None:
    """A full-text table that was made and filled behind a savepoint and rolled back to it still has its rows
    in memory, and no tables to write them to: whatever was committed in the same transaction failed with "SQL
    logic error"."""
    store = Store(home, opened=Tight)
    database, gate = store.database, threading.Event()
    written(store, ["first", "字" * 6000])  # the words of the second are longer than the text
    database.submit(SqliteIndex().make_anew).result(PATIENCE)
    blocker = database.submit(lambda c: gate.wait(PATIENCE) and None)
    neighbours = [database.submit(marking("before"))]
    keep_up(database)
    neighbours.append(database.submit(marking("after")))
    gate.set()
    assert [future.result(PATIENCE) for future in (blocker, *neighbours)] == [None] * 3
    with pytest.raises(StoreError, match="too big"):
        catch_up(database)
    marks = [name for (name,) in database.select("SELECT name FROM marks")]
    assert marks == ["after", "before", *INDEX_MARKS]
    database.close()
    whole = Store(home)
    assert [hit.text for hit in search(whole.database, "first").hits] == ["first"]
    whole.close()


# The log beside the file


@pytest.mark.behaviour("SESS-01")
def test_the_log_is_checkpointed_after_a_number_of_commits(home: Path, tmp_path: Path) -> None:
    """Who copies only the file has nearly all of it, and a crash leaves little to be read again (SESS-01)."""
    database = SqliteDatabase(home / "x.db")
    for number in range(CHECKPOINT + 1):  # one a commit
        database.write(marking(f"m{number}"))
    with contextlib.closing(sqlite3.connect(shutil.copy(home / "x.db", tmp_path / "alone.db"))) as alone:
        assert alone.execute("SELECT COUNT(*) FROM marks").fetchone() >= (CHECKPOINT - 1,)
    database.close()


@pytest.mark.behaviour("SESS-01")
def test_without_shared_memory_the_rollback_journal_is_used(home: Path) -> None:
    """As on some network file systems: slower, and all else as before (SESS-01)."""

    class Dotfile(SqliteDatabase):
        def _open(self, patience: float) -> sqlite3.Connection:
            uri = f"{self.path.as_uri()}?vfs=unix-dotfile"
            return sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=patience
            )

    store = Store(home, opened=Dotfile)
    one = process(home, tools(call("look", {})), text("one"), store=store, tools=[look])
    assert one.run_conversation("first").cleanup_errors == []
    assert store.database.select("PRAGMA journal_mode") == [("delete",)]
    store.close()
    assert len(Store(home, opened=Dotfile).session("s-1").rows) == 4


# An event loop that waits for the writer's thread is woken once for all that is done


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread woke it."""

    woken = 0

    def call_soon_threadsafe(self, callback, *arguments, context=None):
        self.woken += 1
        return super().call_soon_threadsafe(callback, *arguments, context=context)


def test_one_wake_up_for_all_that_is_done() -> None:
    commits, futures = CommitWaiter(), [Future[int]() for _ in range(50)]

    async def waiting() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        waiters = [asyncio.ensure_future(commits.wait(future)) for future in futures]
        await asyncio.sleep(0)
        finish = threading.Thread(target=lambda: [future.set_result(n) for n, future in enumerate(futures)])
        finish.start()
        finish.join(PATIENCE)  # the loop looks only when everything is done
        await asyncio.gather(*waiters)
        return loop.woken

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(waiting()) == 1


async def test_what_failed_or_is_done_already_has_landed_too() -> None:
    commits, failed, done = CommitWaiter(), Future[None](), Future[None]()
    failed.set_exception(ValueError("no"))
    done.set_result(None)
    for future in (failed, done):
        await asyncio.wait_for(commits.wait(future), PATIENCE)
    with pytest.raises(ValueError, match="no"):
        failed.result()


async def test_who_stops_waiting_does_not_stop_what_is_waited_for() -> None:
    commits, future = CommitWaiter(), Future[None]()
    waiter = asyncio.ensure_future(commits.wait(future))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait({waiter})
    assert not future.cancelled()
    future.set_result(None)  # its loop is closed: nothing is notified or raised


def test_each_loop_wakes_for_its_own_commits() -> None:
    commits, futures = CommitWaiter(), [Future[None]() for _ in range(3)]
    started, ended = threading.Barrier(4), list[int]()

    def serve(number: int) -> None:
        async def waiting() -> None:
            waiter = asyncio.ensure_future(commits.wait(futures[number]))
            await asyncio.sleep(0)
            await asyncio.to_thread(started.wait, 5)
            await asyncio.wait_for(waiter, PATIENCE)

        asyncio.run(waiting())
        ended.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE)
    for future in futures:
        future.set_result(None)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == [0, 1, 2]
