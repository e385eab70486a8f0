"""Sessions and turns on disk, as those who use them see it: another process, a fork, a broken file."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.errors import ConfigError, JournalError, SessionBusy, StoreError
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.sessions.store.reports.insights import insights
from fsm_agent.sessions.store.schema import VERSIONS
from fsm_agent.sessions.store.search.indexing import catch_up, keep_up
from fsm_agent.sessions.store.search.messages import search
from fsm_agent.sessions.store.sqlite_writer import CHECKPOINT
from fsm_agent.testing import FakeClock, ScriptedModel, call, overflow, repeat, text, tools
from tests.helpers.store_homes import written
from tests.helpers.waiting import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def agent(home: Path, *script: Any, store: Store | None = None, **options: Any) -> Agent:
    options = {"toolsets": [], "clock": FakeClock(), "session_id": "s-one", **options}
    return Agent(ScriptedModel(script), home=home, store=store or Store(home), **options)


@tool(effect="pure", name="look")
def looking() -> str:
    """Look."""
    return "seen"


async def moves(turn: Any, count: int) -> None:
    for _ in range(count):
        await turn.step()


# Another process


@pytest.mark.behaviour("SESS-01")
def test_a_conversation_goes_on_in_another_process(home: Path) -> None:
    first = agent(home, text("one")).run_conversation("first")
    model = ScriptedModel([text("two")])
    second = Agent(model, toolsets=[], home=home, store=Store(home), session_id="s-one").run_conversation(
        "second"
    )
    assert [row["content"] for row in second.messages] == ["first", "one", "second", "two"]
    assert second.usage_session.total == first.usage_turn.total + second.usage_turn.total


def test_102_the_next_request_begins_with_the_bytes_of_the_last(home: Path) -> None:
    one, two = ScriptedModel([tools(call("look", {})), text("an answer")]), ScriptedModel([text("more")])

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen " * 50

    Agent(one, tools=[look], toolsets=[], home=home, store=Store(home), session_id="s").chat("first")
    Agent(two, tools=[look], toolsets=[], home=home, store=Store(home), session_id="s").chat("second")
    before, after = one.requests[-1]["messages"], two.requests[0]["messages"]
    assert json.dumps(after[: len(before)]) == json.dumps(before)
    assert [row["role"] for row in after[len(before) :]] == ["assistant", "user"]


def test_109_a_second_process_is_refused_and_told_who_holds_the_session(home: Path) -> None:
    async def scenario() -> None:
        running = agent(home, text("one")).start("first")
        await moves(running, 1)
        with pytest.raises(SessionBusy, match=rf"{running.id} is running in process \d+ on .+ \(up since"):
            await agent(home, text("x")).arun("second")
        await running.arun()
        await agent(home, text("two")).arun("second")

    asyncio.run(scenario())


def test_what_another_process_said_meanwhile_is_read_again(home: Path) -> None:
    mine = agent(home, text("one"), text("three"))
    mine.chat("first")
    agent(home, text("two")).chat("second")
    assert [row["content"] for row in mine.run_conversation("third").messages] == [
        "first", "one", "second", "two", "third", "three",
    ]  # fmt: skip


# Unfinished turns


@pytest.mark.behaviour("SESS-08")
def test_a_turn_is_resumed_by_turn_session_prefix_or_title(home: Path) -> None:
    for name in ("turn", "session", "prefix", "title"):
        store = Store(home)
        one = agent(home, text("unused"), store=store, session_id=f"s-{name}-0001")
        turn = one.start("please")
        asyncio.run(moves(turn, 2))
        store.session(one.session_id).title = f"about {name}"
        asyncio.run(store.save(store.session(one.session_id)))
        store.let_go(turn.id)
        asyncio.run(let_go_of(store, turn))
        by = {"turn": turn.id, "session": one.session_id, "prefix": f"s-{name}", "title": f"about {name}"}[
            name
        ]
        resumed = agent(home, text("done")).resume(by)
        assert (resumed.id, resumed.state, len(resumed.steps)) == (turn.id, "CallLLM", 2)
        assert resumed.run().final_response == "done"


async def let_go_of(store: Store, turn: Any) -> None:
    """As if the process had died: its lock is let go, the database says nothing of it."""
    await store.written(
        lambda c: c.execute("UPDATE turns SET owner = 'gone' WHERE id = ?", (turn.id,)) and None
    )


def test_a_turn_that_another_process_runs_is_not_resumed(home: Path) -> None:
    turn = agent(home, text("one")).start("first")
    asyncio.run(moves(turn, 1))
    with pytest.raises(SessionBusy, match=r"is running in process"):
        agent(home, text("x")).resume(turn.id)


def test_nothing_to_resume_is_one_line(home: Path) -> None:
    one = agent(home, text("one"))
    one.chat("first")
    with pytest.raises(ConfigError, match=r"nothing to resume: the turn ended with text_response"):
        one.resume("s-one")
    with pytest.raises(ConfigError, match=r"no such session; given: s-two"):
        one.resume("s-two")


def test_who_was_taken_over_stops(home: Path) -> None:
    async def scenario() -> None:
        store = Store(home)
        slow = agent(home, text("one"), store=store)
        turn = slow.start("first")
        await moves(turn, 2)
        await let_go_of(store, turn)
        await store.written(lambda c: c.execute("UPDATE sessions SET owner = 'gone'") and None)
        assert (await agent(home, text("two")).resume(turn.id).arun()).final_response == "two"
        with pytest.raises(JournalError, match="taken over by another process"):
            await turn.arun()

    asyncio.run(scenario())


def test_a_new_message_gives_up_what_a_dead_process_left_and_keeps_the_transcript_valid(home: Path) -> None:
    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        raise AssertionError("not reached")

    async def scenario() -> list[Any]:
        heard: list[str] = []
        store = Store(home)
        first = agent(home, tools(call("put", {"key": "a"}, "c1")), store=store, tools=[put])
        turn = first.start("first")
        await moves(turn, 3)  # up to ExecuteTools
        await turn.step_into()  # the row with the call is written …
        await store.written(lambda c: None)
        turn._runner.journal._hand_over()  # … and handed over, as it is before a tool starts
        await store.written(lambda c: c.execute("UPDATE turns SET owner = 'gone'") and None)
        await store.written(lambda c: c.execute("UPDATE sessions SET owner = 'gone'") and None)
        model = ScriptedModel([text("done")])
        second = Agent(
            model,
            tools=[put],
            toolsets=[],
            home=home,
            store=Store(home),
            session_id="s-one",
            callbacks={"status": heard.append},
        )
        await second.arun("second")
        assert any("left unfinished" in line for line in heard)
        return model.requests[0]["messages"]

    rows = asyncio.run(scenario())
    assert [row["role"] for row in rows][-4:] == ["user", "assistant", "tool", "user"]
    assert rows[-2]["content"] == "not run: the process ended before it started"


def test_a_tool_whose_turn_was_cancelled_is_not_run_twice(home: Path) -> None:
    begun: list[str] = []
    hold = asyncio.Event()

    @tool(effect="unsafe")
    async def put(key: str) -> str:
        """Store."""
        begun.append(key)
        await hold.wait()
        return "done"

    async def scenario() -> Any:
        turn = agent(home, tools(call("put", {"key": "a"})), text("I see"), tools=[put]).start("go")
        running = asyncio.create_task(turn.arun())
        while not begun:
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await turn.arun()

    result = asyncio.run(scenario())
    assert begun == ["a"]
    assert result.messages[-2]["content"].startswith("Unknown outcome")
    assert result.final_response == "I see"


# Forks


def finished(home: Path) -> tuple[Agent, str]:
    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        return f"put {key}"

    one = agent(
        home,
        tools(call("put", {"key": "a"}, "c1")),
        text("first end"),
        repeat(text("other end")),
        tools=[put],
    )
    turn = one.start("go")
    turn.run()
    return one, turn.id


@pytest.mark.parametrize(
    ("at", "edit", "shown"),
    [
        (0, {"user_message": "go elsewhere"}, ["go elsewhere", "other end"]),
        (2, {"reply": "by hand"}, ["go", "by hand"]),
        (
            2,
            {"reply": {"tool_calls": [{"name": "put", "arguments": {"key": "b"}}]}},
            ["go", None, "put b", "other end"],
        ),
        (3, {"results": {"c1": "by hand"}}, ["go", None, "by hand", "other end"]),
        (3, {}, ["go", None, "put a", "other end"]),
        (4, {"results": {"c1": "by hand"}}, ["go", None, "by hand", "other end"]),
        (
            4,
            {"messages": {0: {"role": "user", "content": "said otherwise"}}},
            ["said otherwise", None, "put a", "other end"],
        ),
        (4, {"messages": [{"role": "user", "content": "anew"}]}, ["anew", "other end"]),
        (4, {"user_message": "other words"}, ["other words", None, "put a", "other end"]),
        (4, {"counters": {"iterations": 5, "retries": 1}}, ["go", None, "put a", "other end"]),
        (4, {"settings": {"max_iterations": 7}}, ["go", None, "put a", "other end"]),
        (4, {"fields": {"system_prompt": "Be short."}}, ["go", None, "put a", "other end"]),
    ],
)
def test_a_fork_goes_on_from_any_move_with_changes(
    home: Path, at: int, edit: dict[str, Any], shown: list[Any]
) -> None:
    one, turn_id = finished(home)
    before = one.journal.messages(turn_id)
    forked = one.fork(turn_id, at, edit)
    assert [step.seq for step in forked.steps] == list(range(1, at + 1))
    result = forked.run()
    assert [row["content"] for row in result.messages] == shown
    assert one.journal.messages(turn_id) == before, "the old turn stays as it is"
    assert one.journal.messages(forked.id) == result.messages
    assert result.parent_session_id == "s-one"
    assert one.journal.info(forked.id).parent == turn_id
    if "counters" in edit:
        assert one.journal.snapshot(forked.id, at)["iterations"] == 5
        assert one.journal.snapshot(forked.id, at)["block"]["retries"] == 1
    if "settings" in edit:
        assert forked._state.settings.max_iterations == 7  # type: ignore[attr-defined]


GIVEN = [
    (2, {"reply": {"tool_calls": [{"name": "put", "arguments": {"key": "b"}}]}}, "CallModel", "by hand"),
    (3, {"results": {"c1": "by hand"}}, "RunTool", "by hand"),
    (3, {}, "RunTool", "taken over"),
]


@pytest.mark.parametrize(("at", "edit", "kind", "origin"), GIVEN)
def test_what_a_fork_need_not_ask_for_is_in_its_journal(
    home: Path, at: int, edit: Any, kind: str, origin: str
) -> None:
    one, turn_id = finished(home)
    forked = one.fork(turn_id, at, edit)
    forked.run()
    [effect] = [effect for effect in one.journal.effects(forked.id, at) if effect.kind == kind]
    assert (effect.origin, effect.status, effect.seconds) == (origin, "done", None)
    assert effect.reply is not None
    assert [one.origin for one in one.journal.effects(turn_id, at)] == [""] * len(
        one.journal.effects(turn_id, at)
    )
    ran = sum(tool.calls for tool in insights(one._store, days=1).tools)
    assert ran == 1 + ("reply" in edit), "what was not carried out is no call"


@pytest.mark.parametrize(("at", "edit", "kind", "origin"), GIVEN)
def test_a_fork_keeps_its_answers_when_its_process_ends_before_they_are_used(
    home: Path, at: int, edit: Any, kind: str, origin: str
) -> None:
    """Else what a person answered, or what ran before, would be asked of the world after all."""
    one, turn_id = finished(home)
    ran: list[str] = []

    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        ran.append(key)
        return "again"

    forked = one.fork(turn_id, at, edit)
    asyncio.run(forked._lease.enter())  # type: ignore[attr-defined] - it is in the store, and no further
    model = ScriptedModel([text("end")])
    resumed = Agent(
        model, tools=[put], toolsets=[], home=home, store=one._store, session_id="s-other"
    ).resume(forked.id)
    resumed.run()
    assert ran == (["b"] if "reply" in edit else [])
    [effect] = [effect for effect in one.journal.effects(forked.id, at) if effect.kind == kind]
    assert effect.origin == origin


def test_a_fork_does_not_run_a_tool_again_unless_told(home: Path) -> None:
    ran: list[str] = []

    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        ran.append(key)
        return "stored"

    one = agent(home, tools(call("put", {"key": "a"})), repeat(text("end")), tools=[put])
    turn = one.start("go")
    turn.run()
    one.fork(turn.id, 3).run()
    assert ran == ["a"]
    one.fork(turn.id, 3, {"rerun_tools": True}).run()
    assert ran == ["a", "a"]


@pytest.mark.parametrize(
    ("at", "edit", "words"),
    [
        (4, {"nonsense": 1}, "a turn cannot be edited so; given: nonsense; allowed: counters, fields"),
        (4, {"counters": {"nonsense": 1}}, "no such counter; given: nonsense; allowed: attempts"),
        (4, {"counters": {"retries": -1}}, "counter retries cannot be set so; given: -1"),
        (4, {"fields": {"state": "Finalize"}}, "no such field to edit; given: state"),
        (4, {"reply": "x"}, "a reply can be given only before the model is asked; given: BuildMessages"),
        (4, {"results": {"c9": "x"}}, "no such tool call here; given: c9; allowed: c1"),
        (4, {"messages": {"9": None}}, "no message of that index; given: 9; allowed: 0 to 2"),
        (99, {}, "has no move of that number; given: 99; allowed: 0 to 6"),
    ],
)
def test_an_edit_that_cannot_be_made_is_one_line(
    home: Path, at: int, edit: dict[str, Any], words: str
) -> None:
    one, turn_id = finished(home)
    with pytest.raises(ConfigError, match=words):
        one.fork(turn_id, at, edit)


# Snapshots


def test_every_snapshot_is_what_the_turn_was(home: Path) -> None:
    script = [tools(call("look", {})), overflow(), text("a summary"), text("the end")]

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "x" * 4_000

    rows = [{"role": role, "content": role * 80} for _ in range(12) for role in ("user", "assistant")]
    one = agent(home, *script, tools=[look], context_window=60_000)
    turn = one.start("go", conversation_history=rows)

    async def scenario() -> None:
        while (step := await turn.step()) is not None:
            state: Any = turn._state
            snapshot = one.journal.snapshot(turn.id, step.seq)
            assert (snapshot["state"], snapshot["seq"]) == (state.state, step.seq)
            assert {name: snapshot[name] for name in ("iterations", "sent", "visible")} == {
                "iterations": state.iterations, "sent": state.accounting.request_count, "visible": state.call.visible,
            }  # fmt: skip
            assert one.journal.messages(turn.id, step.seq) == [row.to_dict() for row in state.history]

    asyncio.run(scenario())
    assert turn.result is not None
    assert any(step.source == "Compress" for step in turn.steps)
    for seq in range(len(turn.steps)):
        assert one.journal.messages(turn.id, seq) == one.journal.messages(turn.id, seq)
    assert one.journal.messages(turn.id) == turn.result.messages


@pytest.mark.parametrize("rows", [10, 2_000])
def test_a_move_writes_what_changed_however_long_the_history(home: Path, rows: int) -> None:
    one = agent(home, text("hi"))
    history = [{"role": ("user", "assistant")[number % 2], "content": "word " * 20} for number in range(rows)]
    turn = one.start("go", conversation_history=history)
    turn.run()
    with one._store.database.reading() as c:
        sizes = c.execute(
            "SELECT length(delta) FROM transitions WHERE turn = ? AND seq > 1", (turn.id,)
        ).fetchall()
    assert max(size for (size,) in sizes) < 1_500


# A file that cannot be used


class Full(SqliteDatabase):
    """A disk with no more room after so many pages."""

    pages = 10_000

    def _connected(self) -> sqlite3.Connection:
        connection = super()._connected()
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection


def test_a_disk_that_fills_up_does_not_cost_the_answer(home: Path) -> None:
    ran: list[str] = []

    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        ran.append(key)
        return "stored"

    class Filling(Full):
        pages = 90

    heard: list[str] = []
    store = Store(home, opened=Filling)
    model = ScriptedModel([tools(call("put", {"key": "b"}, "c2"), text="x" * 900_000), text("the answer")])
    one = Agent(
        model,
        tools=[put],
        toolsets=[],
        home=home,
        store=store,
        session_id="s-one",
        callbacks={"status": heard.append},
    )
    result = one.run_conversation("go")
    assert result.final_response == "the answer"
    assert ran == [], "nothing that cannot be undone is done while it cannot be written down"
    assert "not run: what is done cannot be written down" in result.messages[2]["content"]
    [problem] = result.cleanup_errors
    assert "the disk is full" in problem
    assert str(home) in problem
    assert [line for line in heard if "is not stored" in line]


def test_what_could_not_be_saved_is_saved_with_the_next_turn(home: Path) -> None:
    class Locked(SqliteDatabase):
        locked = threading.Event()

        def committing(self) -> None:
            if self.locked.is_set():
                raise sqlite3.OperationalError("database is locked")

    store = Store(home, opened=Locked)
    one = agent(home, text("lost for now"), text("two"), store=store)

    async def scenario() -> Any:
        turn = one.start("first")
        await moves(turn, 2)
        Locked.locked.set()
        return await turn.arun()

    result = asyncio.run(scenario())
    assert result.final_response == "lost for now"
    assert "another program holds its lock" in result.cleanup_errors[0]
    Locked.locked.clear()
    one.chat("second")
    again = agent(home, text("three")).run_conversation("third")
    assert [row["content"] for row in again.messages] == [
        "first",
        "lost for now",
        "second",
        "two",
        "third",
        "three",
    ]
    assert [info.exit for info in one.journal.recent()] == ["text_response"] * 3


@pytest.mark.slow
def test_a_file_that_another_program_locks_is_one_line(home: Path) -> None:
    agent(home, text("one")).chat("first")
    with sqlite3.connect(home / "sessions.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"sessions\.db cannot be used: another program holds its lock"):
            agent(home, text("two")).chat("second")
        other.execute("ROLLBACK")
    assert agent(home, text("two")).chat("second") == "two"


@pytest.mark.parametrize("damage", ["not a database at all" * 100, None])
def test_a_damaged_file_is_one_line_and_is_left_alone(home: Path, damage: str | None) -> None:
    agent(home, text("one")).chat("first")
    path = home / "sessions.db"
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    content = damage.encode() if damage else path.read_bytes()[:4096] + b"\xff" * 60_000
    for file in home.glob("sessions.db*"):
        file.unlink()
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"sessions\.db cannot be used: it is damaged"):
        agent(home, text("two")).chat("second")
    assert path.read_bytes()[:50] == content[:50]


def test_a_home_that_is_no_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be used"):
        store.session("s")


# Versions


class Older(SqliteDatabase):
    versions = VERSIONS


class Newer(SqliteDatabase):
    versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))


def test_an_older_file_is_upgraded_in_place_after_a_copy(home: Path) -> None:
    agent(home, text("one")).chat("first")
    upgraded = Store(home, opened=Newer)
    assert (
        agent(home, text("two"), store=upgraded).run_conversation("second").messages[0]["content"] == "first"
    )
    with upgraded.database.reading() as c:
        assert c.execute("SELECT mood FROM sessions").fetchone() == ("good",)
    [copy] = home.glob("*.backup")
    shutil.copy(copy, home / "old.db")
    old = sqlite3.connect(home / "old.db")
    assert old.execute("SELECT count(*) FROM messages").fetchone() == (2,)
    assert old.execute("PRAGMA user_version").fetchone() == (len(VERSIONS),)
    old.close()


def test_a_file_of_the_first_version_says_how_its_sessions_ended_and_began(home: Path) -> None:
    class First(SqliteDatabase):
        versions = VERSIONS[:1]

    old = Store(home, opened=First)
    written(old, ["one", "two"], "s-1", kind="fork")
    turn = (
        "INSERT INTO turns (id, session, asked, state, digest, settings, start, began, moved, ended, exit)"
        " VALUES (?, 's-1', 'go', 'Finalize', '', '{}', '{}', ?, 1, ?, ?)"
    )
    for values in (
        ("t-1", 1.0, 1.0, "text_response"),
        ("t-2", 2.0, 2.0, "guardrail_halt"),
        ("t-3", 3.0, None, None),
    ):
        old.database.write(lambda c, values=values: c.execute(turn, values) and None)
    old.close()
    store = Store(home)
    with store.database.reading() as c:
        assert c.execute("SELECT exit, source FROM sessions").fetchall() == [("guardrail_halt", "fork")]
    assert [row.content for row in store.session("s-1").rows] == ["one", "two"]


def test_a_file_of_a_newer_version_is_refused_and_left_alone(home: Path) -> None:
    Store(home, opened=Newer).session("s")
    newest = len(VERSIONS)
    with pytest.raises(
        StoreError,
        match=rf"newer version of fsm-agent \(format {newest + 1}, this one reads up to {newest}\)",
    ):
        Store(home, opened=Older).session("s")


def test_an_upgrade_that_fails_changes_nothing(home: Path) -> None:
    class Broken(SqliteDatabase):
        versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT", "THIS IS NO SQL"))

    agent(home, text("one")).chat("first")
    with pytest.raises(StoreError):
        Store(home, opened=Broken).session("s")
    assert agent(home, text("two")).run_conversation("second").messages[0]["content"] == "first"


# The writer


def test_jobs_that_wait_share_a_commit_and_one_that_fails_takes_nothing_with_it(home: Path) -> None:
    database = SqliteDatabase(home / "x.db")
    gate = threading.Event()
    futures = [database.submit(lambda c: gate.wait(PATIENCE))]
    insert = "INSERT INTO marks VALUES (?, ?)"
    futures += [database.submit(lambda c, n=n: c.execute(insert, (f"m{n}", n)).rowcount) for n in range(20)]
    wrong = database.submit(lambda c: [c.execute(insert, ("half", 1)), c.execute(insert, ("m1", 1))])
    futures.append(database.submit(lambda c: c.execute(insert, ("last", 1)).rowcount))
    before = database.commits
    gate.set()
    assert [future.result(PATIENCE) for future in futures[1:]] == [1] * 21
    with pytest.raises(StoreError, match="UNIQUE"):
        wrong.result(PATIENCE)
    assert database.commits - before <= 2
    with database.reading() as c:
        assert c.execute("SELECT count(*) FROM marks").fetchone() == (21,)
        assert c.execute("SELECT count(*) FROM marks WHERE name = 'half'").fetchone() == (0,)
    database.close()


@pytest.mark.behaviour("SESS-01")
def test_the_log_is_moved_into_the_file_every_so_many_commits(home: Path, tmp_path: Path) -> None:
    """Who copies only the file has nearly all of it, and a crash leaves little to be read again (SESS-01)."""
    database = SqliteDatabase(home / "x.db")
    for number in range(CHECKPOINT + 1):  # one a commit
        database.write(lambda c, n=number: c.execute("INSERT INTO marks VALUES (?, 1)", (f"m{n}",)) and None)
    alone = sqlite3.connect(shutil.copy(home / "x.db", tmp_path / "alone.db"))
    assert alone.execute("SELECT COUNT(*) FROM marks").fetchone() >= (CHECKPOINT - 1,)
    alone.close()
    database.close()


@pytest.mark.behaviour("SESS-01")
def test_where_there_is_no_shared_memory_the_rollback_journal_does(home: Path) -> None:
    """As on some network file systems: slower, and all else as before (SESS-01)."""

    class Dotfile(SqliteDatabase):
        def _opened(self) -> sqlite3.Connection:
            uri = f"{self.path.as_uri()}?vfs=unix-dotfile"
            return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=0.1)

    store = Store(home, opened=Dotfile)
    one = agent(home, tools(call("look", {})), text("one"), store=store, tools=[looking])
    assert one.run_conversation("first").cleanup_errors == []
    with store.database.reading() as c:
        assert c.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    store.close()
    assert len(Store(home, opened=Dotfile).session("s-one").rows) == 4


def test_a_commit_that_fails_fails_everybody_in_it(home: Path) -> None:
    class Failing(SqliteDatabase):
        broken = False

        def committing(self) -> None:
            if self.broken:
                raise sqlite3.OperationalError("disk I/O error")

    database = Failing(home / "x.db")
    gate = threading.Event()
    first = database.submit(lambda c: gate.wait(PATIENCE))
    insert = "INSERT INTO marks VALUES (?, ?)"
    futures = [database.submit(lambda c, n=n: c.execute(insert, (f"m{n}", n)) and None) for n in range(5)]
    database.broken = True
    gate.set()
    for future in (first, *futures):
        with pytest.raises(StoreError, match="disk I/O error"):
            future.result(PATIENCE)
    database.broken = False
    database.write(lambda c: c.execute(insert, ("again", 1)) and None)
    with database.reading() as c:
        assert c.execute("SELECT name FROM marks").fetchall() == [("again",)]
    database.close()


class Tight(SqliteDatabase):
    """Takes no text of more bytes, as one of gigabytes is refused."""

    most = 50_000

    def _connected(self) -> sqlite3.Connection:
        connection = super()._connected()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.most)
        return connection


def test_an_index_that_is_refused_takes_nothing_of_its_neighbours_with_it(home: Path) -> None:
    """A full-text table that was made and filled behind a savepoint and rolled back to it still has its rows
    in memory, and no tables to write them to: whatever was committed in the same transaction failed with "SQL
    logic error"."""
    store = Store(home, opened=Tight)
    database = store.database
    written(store, ["first", "字" * 6000])  # the words of the second are longer than the text
    gate, insert = threading.Event(), "INSERT INTO marks VALUES (?, 1)"
    blocker = database.submit(lambda c: gate.wait(PATIENCE) and None)
    neighbours = [database.submit(lambda c: c.execute(insert, ("before",)) and None)]
    keep_up(database)
    neighbours.append(database.submit(lambda c: c.execute(insert, ("after",)) and None))
    gate.set()
    assert [future.result(PATIENCE) for future in (blocker, *neighbours)] == [None] * 3
    with pytest.raises(StoreError, match="too big"):
        catch_up(database)
    with database.reading() as c:
        assert c.execute("SELECT name FROM marks").fetchall() == [("after",), ("before",)]
    database.close()
    whole = Store(home)
    assert [hit.text for hit in search(whole.database, "first").hits] == ["first"]
    whole.close()


def test_who_stops_waiting_takes_nobody_with_them(home: Path) -> None:
    database = SqliteDatabase(home / "x.db")
    gate = threading.Event()
    blocker = database.submit(lambda c: gate.wait(PATIENCE))
    dropped = database.submit(lambda c: c.execute("INSERT INTO marks VALUES ('dropped', 1)") and None)
    kept = database.submit(lambda c: c.execute("INSERT INTO marks VALUES ('kept', 1)") and None)
    assert dropped.cancel()
    gate.set()
    assert (blocker.result(PATIENCE), kept.result(PATIENCE)) == (True, None)
    with database.reading() as c:
        assert c.execute("SELECT name FROM marks").fetchall() == [("kept",)]
    database.close()


def test_the_file_is_the_owners_alone(home: Path) -> None:
    agent(home, text("one")).chat("first")
    assert (home / "sessions.db").stat().st_mode & 0o077 == 0
