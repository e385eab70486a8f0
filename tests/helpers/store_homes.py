"""Sessions in a database, for tests that read them: made by real turns, or written directly where only words
matter."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.fence import Owners
from fsm_agent.sessions.store.rows import insert_session
from fsm_agent.testing import FakeClock, ScriptedModel
from tests.helpers.waiting import until

HISTORY = [
    {"role": role, "content": f"{role} {n} " + "word " * 300}
    for n in range(8)
    for role in ("user", "assistant")
]
"""A conversation that is worth a compaction."""
ROTATE = {"compression": {"mode": "rotate"}}


@tool(concurrency="parallel", effect="pure")
def lookup(city: str) -> str:
    """Weather for a city."""
    return f"{city}: sunny"


look = tool(effect="pure", name="look")(lambda: "seen")


@tool(effect="unsafe")
def book(city: str) -> str:
    """Book a room."""
    if city == "Oslo":
        raise RuntimeError("no rooms left")
    return "booked"


def agent(script: Iterable[Any], home: Path | str, **options: Any) -> Agent:
    """An agent in front of a scripted model."""
    given = {"tools": [lookup, book], "toolsets": [], "clock": FakeClock(), **options}
    return Agent(ScriptedModel(script), home=home, **given)


def process(home: Path, *script: Any, store: Store | None = None, **options: Any) -> Agent:
    """What another process is to a session: an agent whose store is its own, with live copies, a lock that
    shows that it lives, and an owner's name. ``store`` makes it the same process as another agent; ``model``
    replaces the script."""
    given = {"tools": [], "toolsets": [], "clock": FakeClock(), "session_id": "s-1", **options}
    model = given.pop("model", None) or ScriptedModel(script)
    return Agent(model, home=home, store=store or Store(home), **given)


def contents(rows: Iterable[Any]) -> list[Any]:
    """What the rows of a result or of a session say."""
    return [row["content"] if isinstance(row, dict) else row.content for row in rows]


async def moves(turn: Any, count: int) -> None:
    """Let a turn make ``count`` moves."""
    for _ in range(count):
        await turn.step()


def declared_dead(store: Store) -> None:
    """Act as if the lock of a living process could not be seen: its turns may be taken over while it runs."""
    for sql in (
        "turns SET owner = 'gone' WHERE ended IS NULL",
        "sessions SET owner = 'gone' WHERE owner IS NOT NULL",
    ):
        store.database.write(lambda c, sql=sql: c.execute(f"UPDATE {sql}") and None)


def unsafe_tool() -> tuple[Any, list[str]]:
    """A tool that does what cannot be undone, and the keys that it was called with."""
    ran: list[str] = []

    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Store."""
        ran.append(key)
        return f"put {key}"

    return put, ran


def left_unfinished(
    home: Path, script: Iterable[Any], moves: int, asked: str = "go", **options: Any
) -> tuple[str, str]:
    """(session, turn) of a turn whose owner is gone after ``moves`` moves. ``options`` may name another
    ``model``."""
    store = Store(home)
    found = asyncio.run(_some_moves(store, home, script, moves, asked, options))
    owner = store.owners.me
    store.close()
    del store
    until(lambda: _let_go(home, owner), "the lock of the owner to go with the store")
    return found


def _let_go(home: Path, owner: str) -> bool:
    """A thread that looks for orders four times a second may hold the store for a moment longer than we."""
    gc.collect()
    return Owners(home).alive(owner) is None


async def _some_moves(
    store: Store, home: Path, script: Iterable[Any], moves: int, asked: str, options: Any
) -> tuple[str, str]:
    one = (
        Agent(home=home, store=store, **options)
        if "model" in options
        else agent(script, home, store=store, **options)
    )
    turn = one.start(asked)
    for _ in range(moves):
        await turn.step()
    await one.aclose()
    return one.session_id, turn.id


def written(
    store: Store, texts: Sequence[Any], session: str = "s-1", at: float | None = None, **columns: Any
) -> None:
    """Messages without a turn: user and assistant in turns, or rows as they are given."""
    rows = [
        row if isinstance(row, dict) else {"role": ("user", "assistant")[n % 2], "content": row}
        for n, row in enumerate(texts)
    ]
    when = store.now() if at is None else at

    def write(c: Any) -> None:
        if not c.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone():
            insert_session(c, Session(session), when)
        for name, value in columns.items():
            c.execute(f"UPDATE sessions SET {name} = ? WHERE id = ?", (value, session))
        first = c.execute(
            "SELECT COALESCE(MAX(number), 0) FROM messages WHERE session = ?", (session,)
        ).fetchone()[0]
        c.executemany(
            "INSERT INTO messages (session, number, version, at, role, body) VALUES (?, ?, 0, ?, ?, ?)",
            [(session, first + n, when, row["role"], dumps(row)) for n, row in enumerate(rows, 1)],
        )

    store.database.write(write)
