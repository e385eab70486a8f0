"""The table of what must be on disk when: in the docs as it is in the code, and followed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.conversation_journal import FLUSHES
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.helpers.store_homes import look, process

DOCS = Path(__file__).parents[2] / "docs" / "sessions.md"


def test_the_docs_have_the_table() -> None:
    said = DOCS.read_text(encoding="utf-8").split("## What is on disk when")[1].split("\n## ")[0]
    rows = [line for line in said.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {one.what} | {one.needs} | {one.promise} |" for one in FLUSHES]


class Patient(SqliteDatabase):
    """Writes nothing that no caller waits for."""

    late = 60.0


def on_disk(home: Path, sql: str) -> list[tuple[object, ...]]:
    """What another process would find after a crash now."""
    with closing(sqlite3.connect(home / "sessions.db")) as c:
        return c.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("effect", "found"),
    [("unsafe", [("RunTool", "in_flight")]), ("idempotent", [("RunTool", "in_flight")]), ("pure", [])],
)
def test_the_intent_of_a_tool_is_on_disk_where_it_must_be(effect: str, found: object, tmp_path: Path) -> None:
    seen: list[list[tuple[object, ...]]] = []

    def act() -> str:
        """Look what is on disk."""
        seen.append(on_disk(tmp_path, "SELECT kind, status FROM effects WHERE kind = 'RunTool'"))
        return "done"

    agent_of(tmp_path, [tools(call("act")), text("done")], tools=[tool(act, effect=effect)]).chat("go")
    assert seen == [found]


def test_the_row_that_paid_for_a_request_is_on_disk_before_it_leaves(tmp_path: Path) -> None:
    paid: list[int] = []

    def answer(body: dict[str, object]) -> object:
        rows = on_disk(tmp_path, "SELECT COUNT(*) FROM transitions WHERE changes LIKE '%\"attempts\"%'")
        paid.append(int(str(rows[0][0])))
        return tools(call("look")) if len(paid) < 4 else text("done")

    agent_of(tmp_path, repeat(answer), tools=[look]).chat("go")
    assert paid == [1, 2, 3, 4]


async def test_stepping_stores_each_move(tmp_path: Path) -> None:
    turn = agent_of(tmp_path, [text("done")]).start("go")
    while (step := await turn.step()) is not None:
        assert on_disk(tmp_path, "SELECT seq FROM turns") == [(step.seq,)]
    assert on_disk(tmp_path, "SELECT outcome FROM turns") == [("completed",)]


async def test_who_stops_a_turn_leaves_all_of_it_on_disk(tmp_path: Path) -> None:
    reached = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look forever."""
        reached.set()
        await asyncio.Event().wait()
        return "never"

    turn = agent_of(tmp_path, [tools(call("look"))], tools=[look]).start("go")
    running = asyncio.ensure_future(turn.arun())
    await reached.wait()
    assert on_disk(tmp_path, "SELECT state FROM turns") == [("CallLLM",)]
    running.cancel()
    await asyncio.wait({running})
    assert on_disk(tmp_path, "SELECT state FROM turns") == [("ExecuteTools",)]


def agent_of(home: Path, script: object, **options: Any) -> Agent:
    model, store = ScriptedModel(script), Store(home, opened=Patient)
    return process(home, model=model, store=store, **options)
