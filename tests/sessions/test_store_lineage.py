"""Whose child a turn is, what began a session, and what a turn that is given up leaves behind."""

from __future__ import annotations

import asyncio
import gc
import json
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.cli.agent_options import agent_of
from fsm_agent.cli.options import CliOptions
from fsm_agent.errors import ConfigError
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store, stored_sessions
from fsm_agent.sessions.store.edits import undo
from fsm_agent.sessions.store.insights import insights
from fsm_agent.sessions.store.reports import sessions
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import call, repeat, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent, contents, process


def watched(home: Path, query: str) -> tuple[Store, list[list[Any]]]:
    """A store that looks at the file after every commit, one for each job, and what it saw."""
    seen: list[list[Any]] = []

    class Watched(SqliteDatabase):
        group = 1

        def committed(self) -> None:
            seen.append(self.select(query))

    return Store(home, opened=Watched), seen


def parents_answer(body: dict[str, Any]) -> Any:
    if body["messages"][-1]["content"] == "go":
        return tools(call("delegate_task", {"tasks": [{"goal": "one"}, {"goal": "two"}]}))
    return text("done")


def delegating(home: Path, **options: Any) -> Agent:
    return process(home, repeat(parents_answer), toolsets=["delegate"], **options)


def test_a_childs_turn_names_its_parent_from_its_first_commit_on(tmp_path: Path) -> None:
    store, seen = watched(tmp_path, "SELECT parent FROM turns WHERE session LIKE 'c-%'")
    result = delegating(tmp_path, store=store).run_conversation("go")
    assert len(result.children) == 2
    assert {parent for rows in seen for (parent,) in rows} == {result.turn_id}


def test_a_turn_is_given_up_together_with_what_closes_its_transcript(home: Path) -> None:
    """A process that ends in between would leave a call without a result, and no turn that anybody would
    clear up after."""

    async def left_in_a_tool() -> str:
        reached = asyncio.Event()

        @tool(effect="unsafe")
        async def linger() -> str:
            """Stay."""
            reached.set()
            await asyncio.Event().wait()
            return "never"

        turn = process(home, tools(call("linger")), tools=[linger]).start("go")
        running = asyncio.ensure_future(turn.arun())
        await reached.wait()
        running.cancel()
        await asyncio.wait({running})
        return turn.id

    left = asyncio.run(left_in_a_tool())
    gc.collect()
    unanswered = (
        "SELECT t.id FROM turns t WHERE t.exit = 'abandoned' AND NOT EXISTS"
        " (SELECT 1 FROM messages m WHERE m.session = t.session AND m.role = 'tool')"
    )
    store, seen = watched(home, unanswered)
    one = process(home, text("fine"), store=store)
    roles = [row["role"] for row in one.run_conversation("and now?").messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    store.database.write(lambda c: None)  # what came before it has been looked at
    assert store.database.commits == len(seen)
    assert [rows for rows in seen if rows] == []
    assert one.journal.info(left).exit == "abandoned"


@pytest.fixture
def alive() -> Iterator[Callable[[], set[str]]]:
    """The sessions that were made in this test and are still there. What was there before is not looked at,
    which is a lot."""

    def found() -> set[str]:
        gc.collect()
        return {one.id for one in gc.get_objects() if isinstance(one, Session)}

    gc.collect()
    gc.freeze()
    yield found
    gc.unfreeze()


def test_no_session_outlives_its_turn(tmp_path: Path, alive: Callable[[], set[str]]) -> None:
    """A host that runs for months must not keep every child and every visitor."""
    store = Store(tmp_path)
    one = delegating(tmp_path, store=store)
    one.run_conversation("go")
    assert alive() == set()
    for number in range(3):
        agent([text("hi")], tmp_path, store=store, session_id=f"visitor-{number}").chat("hello")
    assert alive() == set()
    assert [row.content for row in store.session("visitor-1").rows] == ["hello", "hi"]


def test_decoded_rows_are_kept_of_the_sessions_that_were_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_sessions, "CACHED_ROWS", 7)  # two sessions of two rows
    store = Store(tmp_path)
    for name in "abc":
        agent([text("hi")], tmp_path, store=store, session_id=name).chat("hello")
    known = store.session("c").rows
    store.session("a")
    assert all(map(operator.is_, store.session("c").rows, known))
    store.session("a"), store.session("b")
    assert not any(map(operator.is_, store.session("c").rows, known))
    assert contents(store.session("c").rows) == ["hello", "hi"]


# What began a session


def test_the_origin_of_a_session_and_a_turn_is_reported(home: Path, store: Store, cli: Cli) -> None:
    """A child is no fork."""
    one = delegating(home, store=store)
    result = one.run_conversation("go")
    found = insights(store, days=1).overview
    assert (found.turns, found.forks, found.children) == (3, 0, 2)
    shown = cli("sessions", "show", result.children[0].turn_id)[1]
    assert f"delegated by {result.turn_id}" in shown
    assert "forked" not in shown
    one.fork(result.turn_id, 5).run()
    assert insights(store, days=1).overview.forks == 1
    agent([text("hi")], home, store=store, source="my bot").chat("hello")
    begun = {info.id: info.source for info in sessions(store, 20, everything=True)}
    assert sorted(set(begun.values())) == ["child", "fork", "my bot", "python"]
    assert begun["s-1"] == "python"
    assert [info.id for info in sessions(store, source="python")] == ["s-1"]
    assert {info.kind for info in sessions(store, source="child")} == {"child"}
    words = "no session was begun so; given: web; allowed: child, fork, my bot, python"
    with pytest.raises(ConfigError, match=words):
        sessions(store, source="web")


def test_the_command_line_says_so_too(home: Path, cli: Cli) -> None:
    assert cli("run", "hello there", "--model", "offline:demo")[0] == 0
    code, out, _ = cli("sessions", "list", "--json", "--source", "cli")
    [told] = json.loads(out)
    assert (code, told["source"]) == (0, "cli")
    assert " cli " in cli("sessions", "list")[1]
    shown = cli("sessions", "show", told["id"])[1].splitlines()
    assert any(line.startswith("  begun ") and " by cli · used " in line for line in shown)
    err = cli.refused("sessions", "list", "--source", "web")
    assert "no session was begun so; given: web; allowed: cli" in err
    chat, _ = agent_of(CliOptions(model="offline:demo", home=str(home), source="chat"), None)
    chat.chat("hello")
    told = cli.json("insights")["sources"]
    assert [(one["source"], one["sessions"], one["turns"]) for one in told] == [("chat", 1, 1), ("cli", 1, 1)]


def test_a_childs_turn_is_taken_back_to_its_own_beginning(store: Store) -> None:
    """Not to that of the turn that delegated it, which is another transcript."""
    one = delegating(store.home, store=store)
    one.chat("something else before")
    child = one.run_conversation("go").children[0]
    session = store.session(child.session_id)
    assert len(session.rows) == 2
    agent([text("more")], store.home, store=store, session_id=session.id).chat("continue")
    LOOP.run(undo(store, session.id))
    assert contents(store.session(session.id).rows) == ["one", "done"]
    LOOP.run(undo(store, session.id))
    assert store.session(session.id).rows == []
