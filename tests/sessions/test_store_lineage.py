"""Whose child a turn is, what began a session, what a session that goes on leaves behind: written together or
not at all."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.cli.given import agent_of
from fsm_agent.cli.options import CliOptions
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.sessions.store.reports.insights import insights
from fsm_agent.sessions.store.reports.records import sessions
from fsm_agent.sessions.store.rewind.undo import undo
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.helpers.store_homes import agent

Cli = Callable[..., tuple[int, str, str]]


class Watched(SqliteDatabase):
    """Looks at the file after every commit; each job has one of its own."""

    group = 1
    query = ""
    seen: list[list[Any]] = []

    def committed(self) -> None:
        with self.reading() as c:
            self.seen.append(c.execute(self.query).fetchall())


def watched(home: Path, query: str) -> tuple[Store, list[list[Any]]]:
    seen: list[list[Any]] = []
    kind = type("Watching", (Watched,), {"query": query, "seen": seen})
    return Store(home, opened=kind), seen


def parents_answer(body: dict[str, Any]) -> Any:
    if body["messages"][-1]["content"] == "go":
        return tools(call("delegate_task", {"tasks": [{"goal": "one"}, {"goal": "two"}]}))
    return text("done")


def delegating(home: Path, **options: Any) -> Agent:
    return Agent(
        ScriptedModel(repeat(parents_answer)), home=home, toolsets=["delegate"], session_id="s-1", **options
    )


def test_a_childs_turn_names_its_parent_from_its_first_commit_on(tmp_path: Path) -> None:
    store, seen = watched(tmp_path, "SELECT parent FROM turns WHERE session LIKE 'c-%'")
    result = delegating(tmp_path, store=store).run_conversation("go")
    assert len(result.children) == 2
    assert {parent for rows in seen for (parent,) in rows} == {result.turn_id}


def left_in_a_tool(home: Path) -> str:
    """A turn of the session s-1 whose process is gone while its tool runs."""

    async def cut_off() -> str:
        reached = asyncio.Event()

        @tool(effect="unsafe")
        async def linger() -> str:
            """Stay."""
            reached.set()
            await asyncio.Event().wait()
            return "never"

        turn = agent(
            [tools(call("linger"))], home, store=Store(home), session_id="s-1", tools=[linger]
        ).start("go")
        running = asyncio.ensure_future(turn.arun())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
        return turn.id

    turn = asyncio.run(cut_off())
    gc.collect()
    return turn


def test_a_turn_is_given_up_together_with_what_closes_its_transcript(tmp_path: Path) -> None:
    """A process that ends in between would leave a call without a result, and no turn that anybody would
    clear up after."""
    turn = left_in_a_tool(tmp_path)
    unanswered = (
        "SELECT t.id FROM turns t WHERE t.exit = 'abandoned' AND NOT EXISTS"
        " (SELECT 1 FROM messages m WHERE m.session = t.session AND m.role = 'tool')"
    )
    store, seen = watched(tmp_path, unanswered)
    result = agent([text("fine")], tmp_path, store=store, session_id="s-1").run_conversation("and now?")
    assert [row["role"] for row in result.messages] == ["user", "assistant", "tool", "user", "assistant"]
    store.database.write(lambda c: None)  # what came before it has been looked at
    assert store.database.commits == len(seen)
    assert [rows for rows in seen if rows] == []
    journal = agent([], tmp_path, store=store).journal
    assert journal.info(turn).exit == "abandoned"


@pytest.fixture
def alive() -> Iterator[Callable[[], set[str]]]:
    """The sessions that were made in this test and are still there. What was there before is not looked at,
    which is a lot."""

    def sessions() -> set[str]:
        gc.collect()
        return {one.id for one in gc.get_objects() if isinstance(one, Session)}

    gc.collect()
    gc.freeze()
    yield sessions
    gc.unfreeze()


def test_a_session_lives_as_long_as_somebody_holds_it(tmp_path: Path, alive: Callable[[], set[str]]) -> None:
    """A host that runs for months must not keep every child and every visitor."""
    store = Store(tmp_path)
    one = delegating(tmp_path, store=store)
    one.run_conversation("go")
    assert alive() == {"s-1"}
    for number in range(3):
        agent([text("hi")], tmp_path, store=store, session_id=f"visitor-{number}").chat("hello")
    assert alive() == {"s-1"}
    assert store.session("s-1") is store.session("s-1")
    del one
    assert alive() == set()
    assert [row.content for row in store.session("visitor-1").rows] == ["hello", "hi"]


@pytest.mark.slow
def test_what_could_not_be_saved_is_kept_for_the_next_agent(tmp_path: Path) -> None:
    class Failing(SqliteDatabase):
        broken = False

        def committing(self) -> None:
            if self.broken:
                raise OSError("no room")

    store = Store(tmp_path, opened=Failing)
    agent([text("one")], tmp_path, store=store, session_id="s-1").chat("first")
    database: Any = store.database

    def answer(body: Any) -> Any:
        database.broken = True
        return text("two")

    result = agent(repeat(answer), tmp_path, store=store, session_id="s-1").run_conversation("second")
    assert result.final_response == "two"
    assert result.cleanup_errors
    del result
    gc.collect()
    database.broken = False
    third = agent([text("three")], tmp_path, store=store, session_id="s-1").run_conversation("third")
    assert [row["content"] for row in third.messages] == ["first", "one", "second", "two", "third", "three"]
    assert [row.content for row in Store(tmp_path).session("s-1").rows][2:4] == ["second", "two"]


# What began a session


def test_a_session_says_what_began_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = delegating(tmp_path, store=store)
    turn = one.run_conversation("go").turn_id
    one.fork(turn, 1).run()
    agent([text("hi")], tmp_path, store=store, source="my bot").chat("hello")
    begun = {info.id: info.source for info in sessions(store, 20, everything=True)}
    assert sorted(set(begun.values())) == ["child", "fork", "my bot", "python"]
    assert begun["s-1"] == "python"
    assert [info.id for info in sessions(store, source="python")] == ["s-1"]
    assert {info.kind for info in sessions(store, source="child")} == {"child"}
    with pytest.raises(
        ConfigError, match="no session was begun so; given: web; allowed: child, fork, my bot, python"
    ):
        sessions(store, source="web")


def test_the_command_line_says_so_too(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    assert cli("run", "hello there", "--model", "offline:demo")[0] == 0
    code, out, _ = cli("sessions", "list", "--json", "--source", "cli")
    [told] = json.loads(out)
    assert (code, told["source"]) == (0, "cli")
    assert " cli " in cli("sessions", "list")[1]
    assert re_begun(cli("sessions", "show", told["id"])[1])
    code, out, err = cli("sessions", "list", "--source", "web")
    assert (code, out) == (2, "")
    assert "no session was begun so; given: web; allowed: cli" in err
    chat, _ = agent_of(CliOptions(model="offline:demo", home=str(tmp_path), source="chat"), None)
    chat.chat("hello")
    told = json.loads(cli("insights", "--json")[1])["sources"]
    assert [(one["source"], one["sessions"], one["turns"]) for one in told] == [("chat", 1, 1), ("cli", 1, 1)]


def re_begun(shown: str) -> bool:
    return any(line.startswith("  begun ") and " by cli · used " in line for line in shown.splitlines())


def test_what_a_turn_delegated_is_no_fork(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = delegating(tmp_path, store=store)
    turn = one.run_conversation("go").turn_id
    found = insights(store, days=1).overview
    assert (found.turns, found.forks, found.children) == (3, 0, 2)
    one.fork(turn, 5).run()
    assert insights(store, days=1).overview.forks == 1


def test_a_childs_turn_is_taken_back_to_its_own_beginning(tmp_path: Path) -> None:
    """Not to that of the turn that delegated it, which is another transcript."""
    store = Store(tmp_path)
    one = delegating(tmp_path, store=store)
    one.chat("something else before")
    child = one.run_conversation("go").children[0]
    assert len(store.session(child.session_id).rows) == 2
    agent([text("more")], tmp_path, store=store, session_id=child.session_id).chat("go on")
    LOOP.run(undo(store, child.session_id))
    assert [row.content for row in store.session(child.session_id).rows] == ["one", "done"]
    LOOP.run(undo(store, child.session_id))
    assert store.session(child.session_id).rows == []


def test_show_tells_a_delegated_turn_from_a_forked_one(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    one = delegating(tmp_path, store=Store(tmp_path))
    result = one.run_conversation("go")
    shown = cli("sessions", "show", result.children[0].turn_id)[1]
    assert f"delegated by {result.turn_id}" in shown
    assert "forked" not in shown
