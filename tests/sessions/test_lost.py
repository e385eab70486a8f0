"""A turn that is somebody else's: the process that lost it stops at once, and nothing is lost with it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.sessions.store import Database, Store
from fsm_agent.testing import FakeClock, ScriptedModel, overflow, repeat, text

HISTORY = [
    {"role": role, "content": f"{role} {n} " + "word " * 300}
    for n in range(8)
    for role in ("user", "assistant")
]


class Locked(Database):
    """No transaction comes through while it is ``locked``."""

    locked = False

    def committing(self) -> None:
        if self.locked:
            raise sqlite3.DatabaseError("database is locked")


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def agent(home: Path, *script: Any, store: Store | None = None, **options: Any) -> Agent:
    given = {"toolsets": [], "tools": [look], "clock": FakeClock(), "session_id": "s-1", **options}
    return Agent(ScriptedModel(script), home=home, store=store or Store(home), **given)


def declared_dead(home: Path) -> None:
    """As where the locks of living processes are not seen."""
    for file in (home / "owners").glob("*.lock"):
        file.unlink()


def test_nobody_goes_on_in_a_compaction_that_could_not_be_stored_and_is_not_wanted_any_more(
    tmp_path: Path,
) -> None:
    """The turn compacted the session into another one while the store failed, and another process gave the
    turn up before that could be written."""
    store = Store(tmp_path, opened=Locked)
    rotating = {"compression": {"mode": "rotate"}}

    def answer(body: dict[str, Any]) -> Any:
        said = str(body["messages"])
        if "tools" not in body:
            store.database.locked = True  # type: ignore[attr-defined]
            return text("the summary")
        return text("on") if "after" in said or "the summary" in said else overflow()

    agent(tmp_path, text("one"), store=store).run_conversation("first", conversation_history=HISTORY)
    one = agent(tmp_path, repeat(answer), store=store, settings=rotating)
    result = one.run_conversation("second")
    assert (result.final_response, result.stored) == ("on", False)
    store.database.locked = False  # type: ignore[attr-defined]
    declared_dead(tmp_path)
    agent(tmp_path, text("between")).chat("meanwhile")
    again = one.run_conversation("after")
    assert (again.stored, again.session_id) == (True, "s-1")
    assert [row["content"] for row in again.messages][-4:] == ["meanwhile", "between", "after", "on"]
