"""A store that breaks: in the middle of a turn it costs no answer, and who looks hears what is wrong."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.options import DEFAULT_TOOLSETS
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.schema import VERSIONS, application_id, health, newest
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import call, repeat, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.processes import printed
from tests.helpers.store_homes import agent, left_unfinished, process, unsafe_tool


class Breaking(SqliteDatabase):
    """Neither read nor written from some moment on, as on a disk that dies."""

    problem = ""

    def committing(self) -> None:
        if self.problem:
            raise sqlite3.DatabaseError(self.problem)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with super().reading() as c:
            if self.problem:
                raise sqlite3.DatabaseError(self.problem)
            yield c


@pytest.mark.parametrize("who", ["the same agent", "another agent"])
@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("database disk image is malformed", "it is damaged"),
        ("database or disk is full", "the disk is full"),
        ("database is locked", "another program holds its lock"),
        ("disk I/O error", "disk I/O error"),
    ],
)
def test_a_store_that_breaks_in_mid_turn_costs_no_answer(
    home: Path, problem: str, says: str, who: str
) -> None:
    """With every toolset that reads the store, sub-agents included; what could not be saved is saved with the
    next turn, also when the agent is gone meanwhile."""
    store, told = Store(home, opened=Breaking), list[str]()
    database: Any = store.database

    def answer(body: dict[str, Any]) -> Any:
        if any(row["role"] == "tool" for row in body["messages"]):
            return text("the answer")
        database.problem = problem
        return tools(call("todo"), call("session_search"))

    def made() -> Agent:
        toolsets, callbacks = (*DEFAULT_TOOLSETS, "delegate"), {"status": told.append}
        return process(home, repeat(answer), store=store, toolsets=toolsets, callbacks=callbacks)

    one = made()
    result = one.run_conversation("go")
    assert result.final_response == "the answer"
    assert all("sessions.db cannot be used: " in line for line in result.cleanup_errors)
    assert says in result.cleanup_errors[-1]
    assert len([line for line in told if line.endswith("the turn continues, but is not stored")]) == 1
    if who == "another agent":
        del one, result
        gc.collect()
        one = made()
    database.problem = ""
    assert one.run_conversation("and now?").cleanup_errors == []
    roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert [row.role for row in Store(home).session("s-1").rows] == roles
    assert [info.exit for info in one.journal.recent()] == ["text_response"] * 2


def test_a_disk_that_fills_up_does_not_cost_the_answer(home: Path) -> None:
    class Filling(SqliteDatabase):
        def _connect(self) -> sqlite3.Connection:
            connection = super()._connect()
            connection.execute("PRAGMA max_page_count = 90")
            return connection

    (put, ran), heard = unsafe_tool(), list[str]()
    script = tools(call("put", {"key": "b"}, "c2"), text="x" * 900_000), text("the answer")
    store, callbacks = Store(home, opened=Filling), {"status": heard.append}
    result = process(home, *script, store=store, tools=[put], callbacks=callbacks).run_conversation("go")
    assert result.final_response == "the answer"
    assert ran == [], "nothing that cannot be undone is done while it cannot be written down"
    assert "not run: what is done cannot be written down" in result.messages[2]["content"]
    [problem] = result.cleanup_errors
    assert "the disk is full" in problem
    assert str(home) in problem
    assert [line for line in heard if "is not stored" in line]


@pytest.mark.slow
def test_a_file_that_another_program_locks_is_one_line(home: Path) -> None:
    process(home, text("one")).chat("first")
    with contextlib.closing(sqlite3.connect(home / "sessions.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"sessions\.db cannot be used: another program holds its lock"):
            process(home, text("two")).chat("second")
        other.execute("ROLLBACK")
    assert process(home, text("two")).chat("second") == "two"


def test_a_reader_waits_while_another_process_turns_the_log_of_a_new_file_on(
    home: Path, store: Store
) -> None:
    assert store.unfinished("s-1") == []
    new = sqlite3.connect(home / "sessions.db", isolation_level=None, check_same_thread=False)
    with contextlib.closing(new) as other:
        other.execute("BEGIN EXCLUSIVE")
        later = threading.Timer(0.3, other.execute, ["ROLLBACK"])
        later.start()
        assert store.unfinished("s-1") == []
        later.join()


def test_a_file_that_cannot_be_used_leaves_no_connection_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unlucky(SqliteDatabase):
        """Its tables cannot be brought to its version."""

        versions = (*VERSIONS, ("nonsense",))

    process(home, text("one")).chat("first")
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1])
    with pytest.raises(StoreError, match="cannot be used"):
        Store(home, opened=Unlucky).session("s-1")
    assert len(opened) > 1
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_home_that_is_no_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path / "file").session("s")


@pytest.mark.parametrize("mode", ["in_place", "rotate"])
@pytest.mark.parametrize("who", ["the same agent", "another agent"])
def test_a_compaction_that_could_not_be_stored_loses_no_conversation(
    tmp_path: Path, mode: str, who: str
) -> None:
    """It is written, with the child session that it may have made, before the session's next turn."""
    store, shown = Store(tmp_path, opened=Breaking), list[str]()

    def answer(body: dict[str, Any]) -> Any:
        shown[:] = [str(row.get("content")) for row in body["messages"]]
        if "tools" not in body:
            store.database.problem = "database is locked"  # type: ignore[attr-defined]
            return text("in short")
        return text(f"answer to {shown[-1].split()[1]} " + "and so on " * 200)

    def speaker() -> Agent:
        settings = {"compression": {"mode": mode}}
        return agent(
            repeat(answer), tmp_path, store=store, session_id="s", settings=settings, context_window=9_000
        )

    first = speaker()
    asked = itertools.count()
    while not store.database.problem:  # type: ignore[attr-defined]
        result = first.run_conversation(f"question {next(asked)} " + "more and more " * 100)
    assert not result.stored
    assert len(result.compressions) == 1
    newest = next(asked) - 1
    second = first if who == "the same agent" else speaker()
    with pytest.raises(StoreError):
        second.chat("question lost")
    store.database.problem = ""  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="nothing to resume"):
        second.resume(result.turn_id).run()
    assert second.run_conversation("question last").stored
    for said in ("in short", f"question {newest}", f"answer to {newest}"):
        assert any(said in one for one in shown)
    stored = [str(row.content) for row in Store(tmp_path).newest("s").rows]
    assert [" ".join(one.split()[:3]) for one in stored[-4:]] == [
        f"question {newest} more", f"answer to {newest}", "question last", "answer to last",
    ]  # fmt: skip
    assert not any("question lost" in one for one in stored)


@pytest.mark.behaviour("FIN-09")
def test_how_a_turn_ended_is_in_the_log_and_with_its_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FIN-09, for every kind of end."""
    store = Store(tmp_path)
    with caplog.at_level(logging.INFO, "fsm_agent"):
        done = agent([text("one")], tmp_path, store=store, session_id="s-1").run_conversation("go")
    assert f"turn {done.turn_id} of session s-1 ended: text_response (completed), requests: 1" in caplog.text
    assert exits(store) == {"s-1": "text_response"}
    cut = agent([text("never")], tmp_path, store=store, session_id="s-1")
    cut.interrupt("stop")
    cut.run_conversation("more")
    assert exits(store) == {"s-1": "interrupted_before_call"}
    session, _ = left_unfinished(tmp_path / "given up", [text("never")], 1)
    store, seen = Store(tmp_path / "given up"), list[dict[str, str]]()

    def answer(body: Any) -> Any:
        seen.append(exits(store))
        return text("on")

    agent(repeat(answer), store.home, store=store, session_id=session).chat("and now?")
    assert (seen, exits(store)) == ([{session: "abandoned"}], {session: "text_response"})


def exits(store: Store) -> dict[str, str]:
    return dict(store.database.select("SELECT id, exit FROM sessions"))


# Looking


def test_a_whole_file_is_looked_at_without_being_changed(tmp_path: Path, cli: Cli) -> None:
    assert health(tmp_path) is None
    assert not list(tmp_path.iterdir())
    left_unfinished(tmp_path, [text("never")], 1)
    agent([text("one")], tmp_path, session_id="s-2").chat("go")
    found = health(tmp_path)
    assert found is not None
    assert (found.sessions, found.unfinished, found.version) == (2, 1, newest(VERSIONS))
    assert found.size > 50_000
    out = cli("doctor", "--home", str(tmp_path))[1]
    assert "ok       sessions       2 sessions, 1 turn unfinished, 0." in out


def test_a_newer_file_is_a_problem_for_the_doctor(tmp_path: Path, cli: Cli) -> None:
    agent([text("one")], tmp_path, store=(store := Store(tmp_path))).chat("go")
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as c:
        c.execute("PRAGMA user_version = 99")
        c.execute(f"PRAGMA application_id = {application_id(99)}")
    with pytest.raises(StoreError, match="newer version"):
        health(tmp_path)
    code, out, _ = cli("doctor", "--home", str(tmp_path))
    assert code == 1
    assert "problem  sessions " in out
    assert "until then no turn can be run in this home" in out


@pytest.mark.slow
def test_a_program_that_ends_without_closing_its_store_loses_nothing(home: Path) -> None:
    """What was handed to the writer is written, although it takes a while."""
    program = (
        "import sys, time; from fsm_agent.sessions.store import store_for\n"
        "store = store_for(sys.argv[1], 'normal')\n"
        "late = 'INSERT INTO unreported (turn, at, tokens, cost) VALUES (?, ?, ?, ?)'\n"
        "store.database.submit(lambda c: time.sleep(0.3) or c.execute(late, ('t', 1.0, 7, 0.0)) and None)\n"
    )
    printed("-c", program, home)
    assert store_for(home).database.select("SELECT tokens FROM unreported") == [(7,)]
