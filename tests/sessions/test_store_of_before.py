"""Files that versions before wrote: read, gone on with, forked, carried elsewhere. Each has a turn with a
tool, a fork of it, and a turn that was left unfinished with its tool's result (made with the scripted model).
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from fsm_agent.errors import TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.reports.health import health
from fsm_agent.sessions.store.retention import old, remove
from fsm_agent.sessions.store.schema import VERSIONS
from fsm_agent.sessions.store.transfer.export import export_session
from fsm_agent.sessions.store.transfer.importing import import_lines
from fsm_agent.testing import call, text, tools
from tests.helpers.store_homes import agent

KEPT = Path(__file__).parents[1] / "data"
PROMPT = "Be short."


@pytest.fixture(params=[4, 5])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def home(tmp_path: Path, version: int) -> Path:
    path = tmp_path / "home" / "sessions.db"
    path.parent.mkdir()
    path.write_bytes(gzip.decompress((KEPT / f"sessions-{version}.db.gz").read_bytes()))
    return path.parent


def turn_of(home: Path, session: str) -> str:
    return agent([], home).journal.recent(session=session)[0].id


def test_it_is_upgraded_and_all_of_it_is_read(home: Path) -> None:
    journal, turn = agent([], home).journal, turn_of(home, "s-old")
    assert (home / f"sessions.db.before-{len(VERSIONS)}.backup").exists()
    assert [step.row for step in journal.steps(turn)][-1] == "CallLLM.text"
    assert journal.snapshot(turn, 1)["system_prompt"].startswith(PROMPT)
    assert journal.snapshot(turn)["final_response"] == "booked"
    kinds = [one.kind for seq in range(journal.info(turn).seq + 1) for one in journal.effects(turn, seq)]
    assert {"OpenTurn", "CallModel", "RunTool", "Persist", "CloseTurn"} <= set(kinds)
    assert (journal.result(turn) or {})["turn_exit_reason"] == "text_response"
    assert health(home) is not None


def test_what_was_left_unfinished_goes_on(home: Path) -> None:
    result = agent([text("sunny")], home, session_id="s-open", system_prompt=PROMPT).resume("s-open").run()
    assert (result.final_response, result.stored) == ("sunny", True)
    assert [row["role"] for row in result.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_turn_is_forked_and_a_session_goes_on(home: Path) -> None:
    one = agent([text("not booked"), text("you are welcome")], home, session_id="s-old", system_prompt=PROMPT)
    assert one.fork(turn_of(home, "s-old"), 1).run().final_response == "not booked"
    assert one.chat("thank you") == "you are welcome"


def test_its_turns_are_in_the_order_in_which_they_began(home: Path) -> None:
    one = agent([text("you are welcome")], home, session_id="s-old", system_prompt=PROMPT)
    one.chat("thank you")
    found = Store(home).database.select(
        "SELECT number, rank FROM turns WHERE session = 's-old' ORDER BY rowid"
    )
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
    assert {rank for _, rank in found} == {0}
    assert one.undo().asked == "thank you"


def test_it_is_exported_as_ever_and_imported(home: Path, tmp_path: Path) -> None:
    lines = list(export_session(Store(home).database, "s-old", raw=True))
    there = Store(tmp_path / "there")
    import_lines(there, lines)
    ours, journal = agent([], home).journal, agent([], tmp_path / "there").journal
    turn = turn_of(home, "s-old")
    assert journal.snapshot(turn) == ours.snapshot(turn)
    assert [journal.effects(turn, seq) for seq in range(3)] == [ours.effects(turn, seq) for seq in range(3)]


def test_old_sessions_of_it_are_removed(home: Path) -> None:
    store = Store(home)
    removed = remove(store, old(store, 0).sessions, 0)
    assert (len(removed.groups), removed.unfinished) == (1, 1)  # a fork goes with what it was forked from
    assert [one for (one,) in store.database.select("SELECT id FROM sessions")] == ["s-open"]


def test_the_file_is_of_its_version(home: Path, version: int) -> None:
    with sqlite3.connect(home / "sessions.db") as c:
        assert c.execute("PRAGMA user_version").fetchone() == (version,)


def test_a_turn_of_it_is_suspended_and_answered(home: Path) -> None:
    rules = {"approval": {"unanswered": "suspend", "policy": {"book": "ask"}}}
    asks = [tools(call("book", {"city": "Rome"}))]
    with pytest.raises(TurnSuspended) as caught:
        agent(asks, home, session_id="s-old", system_prompt=PROMPT, settings=rules).chat("again")
    other = agent([text("booked again")], home, session_id="s-old", system_prompt=PROMPT, settings=rules)
    other.answer(caught.value.pending[0].id, "once")
    assert other.resume(caught.value.turn_id).run().final_response == "booked again"
