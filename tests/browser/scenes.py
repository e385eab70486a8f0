"""Homes with turns in them, for the browser tests and the pictures of the documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.debug import DebugSession
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, overflow, repeat, status, text, tools

ROOM = 12_000
"""Characters that the scripted provider takes in one request."""
QUESTION = "Why did last night's import fail?"
LOG = "\n".join(
    f"02:{n // 60:02d}:{n % 60:02d} worker-{n % 7} imported batch {n} of 4000, 250 rows" for n in range(600)
)
TAIL = "02:09:58 worker-3 batch 599: duplicate key 'invoice 20481'\n02:09:59 import stopped"
ANSWER = (
    "The import stopped at batch 599: invoice 20481 was there already. Remove the duplicate, then run it"
    " again."
)


@tool(effect="pure")
def read_log(name: str) -> str:
    """Read a log file."""
    return LOG + "\n" + TAIL


@tool(approval="ask")
def delete_row(key: str) -> str:
    """Delete a row of the database."""
    return f"deleted {key}"


@tool(effect="pure")
async def wait_a_little(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@tool(effect="pure")
def note(number: int) -> str:
    """Note a number."""
    return f"noted {number}"


def provider(body: dict[str, Any]) -> Any:
    """Too long for a window in which not even the question has room, so that no compaction helps; otherwise:
    read the log, then answer."""
    rows = body["messages"]
    if len(str(rows)) > ROOM:
        return overflow(100, len(str(rows)) // 4)
    if rows[-1]["role"] == "tool":
        return text(ANSWER)
    return tools(call("read_log", {"name": "import.log"}))


def cleaner(body: dict[str, Any]) -> Any:
    """Delete a row, which a person must approve, then say so."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(f"Done: {last['content']}")
    return tools(call("delete_row", {"key": "invoice 20481"}))


def paced(rounds: int, seconds: float) -> list[Any]:
    """A turn that keeps making three moves in about ``seconds`` seconds."""
    return [
        *[tools(call("wait_a_little", {"seconds": seconds + number / 1e6})) for number in range(rounds)],
        text("done"),
    ]


def agent_of(home: Path, script: Any, **options: Any) -> Agent:
    offered = [read_log, delete_row, wait_a_little, note]
    options = {"tools": offered, "toolsets": [], "clock": FakeClock(), **options}
    return Agent(ScriptedModel(script), home=home, store=store_for(home, "normal"), **options)


def workshop_of(home: Path, script: Any, **options: Any) -> DebugSession:
    """``script`` starts from the beginning for each agent."""
    return DebugSession(store_for(home, "normal"), lambda hint: agent_of(home, script, **options))


def apart(work: Callable[[], Any]) -> Any:
    """Do this in a thread of its own: in that of a test runs the loop of the browser's driver."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def failed_turn(home: Path) -> str:
    """A turn that hit an overflow which no compaction could cure; its id."""
    agent = agent_of(home, repeat(provider))
    return str(apart(lambda: agent.run_conversation(QUESTION).turn_id))


def long_turn(home: Path, rounds: int) -> str:
    """A turn of about three moves a round, with an error now and then; its id."""
    replies: list[Any] = []
    for number in range(rounds):
        if number % 40 == 17:
            replies.append(status(503))
        replies.append(tools(call("note", {"number": number})))
    settings = {"max_iterations": rounds + 1, "guardrail": {"hard_stop": False}}
    agent = agent_of(home, [*replies, text("all noted")], settings=settings)
    return str(apart(lambda: agent.run_conversation(f"Note {rounds} numbers").turn_id))


def lengthened(store: Store, turn_id: str, moves: int) -> int:
    """Repeat the rounds of a finished turn in the journal until it has ``moves`` moves, because running
    as many would take minutes. Return how many it has then."""

    def write(c: Any) -> int:
        columns = "source, event, dest, row, exit, guards, changes, seconds, at, delta"
        rows = c.execute(
            f"SELECT {columns} FROM transitions WHERE turn = ? ORDER BY seq", (turn_id,)
        ).fetchall()
        first, body, last = rows[:1], rows[1:-2], rows[-2:]
        while len(body) + 3 < moves:
            body += body[: moves - len(body) - 3]
        whole = [*first, *body, *last]
        c.execute("DELETE FROM transitions WHERE turn = ?", (turn_id,))
        c.executemany(
            f"INSERT INTO transitions (turn, seq, {columns}) VALUES (?, ?{', ?' * 10})",
            [(turn_id, seq, *row[:-1], "{}") for seq, row in enumerate(whole, 1)],
        )
        c.execute("UPDATE turns SET seq = ? WHERE id = ?", (len(whole), turn_id))
        return len(whole)

    made: int = store.database.write(write)
    return made
