"""What is old goes, and nothing else: pruned, archived, and the file made smaller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.retention import old, remove
from fsm_agent.sessions.store.schema import health
from fsm_agent.sessions.store.search import search
from fsm_agent.testing import call, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent, left_unfinished


def talked(home: Path, session: str, days_ago: float, words: str = "hello") -> str:
    """A turn that ended so long ago; its id."""
    one = agent([text(f"answer to {words}")], home, session_id=session)
    turn = one.start(words)
    turn.run()
    one.close()
    aged(home, session, days_ago)
    return turn.id


def aged(home: Path, session: str, days_ago: float) -> None:
    store = store_for(home)
    at = store.now() - days_ago * 86_400
    touched = "UPDATE sessions SET touched = ? WHERE id = ?"
    store.database.write(lambda c: c.execute(touched, (at, session)) and None)


def ids(home: Path) -> list[str]:
    return [one for (one,) in store_for(home).database.select("SELECT id FROM sessions ORDER BY id")]


def rows(home: Path) -> dict[str, int]:
    """How many rows each table has."""
    database = store_for(home).database
    names = [name for (name,) in database.select("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {}
    for name in names:
        if not name.startswith(("message_index", "sqlite_", "marks")):
            ((found[name],),) = database.select(f"SELECT COUNT(*) FROM {name}")
    return found


def test_what_is_old_goes_and_leaves_nothing_behind(home: Path, cli: Cli) -> None:
    talked(home, "s-new", 1)
    before = rows(home)
    talked(home, "s-old", 40, "about ravens")
    prune = ("sessions", "prune", "--older-than", "30")
    would = cli(*prune, "--dry-run")[1]
    assert would.startswith("1 conversation with 1 turn and 2 messages would be removed\n")
    code, out, err = cli(*prune)
    assert (code, out, err.count("\n")) == (2, "", 1), "who cannot be asked removes nothing"
    assert "--yes, or --dry-run" in err
    assert ids(home) == ["s-new", "s-old"]
    code, out, err = cli(*prune, "--yes")
    assert (code, err) == (0, "")
    assert out.startswith("1 conversation with 1 turn and 2 messages removed\n")
    assert ids(home) == ["s-new"]
    assert rows(home) == before
    assert not search(store_for(home).database, "ravens").hits
    assert health(home) is not None


def test_what_others_still_use_of_it_stays(home: Path) -> None:
    """Settings and prompts that a removed turn had, too."""
    talked(home, "s-old", 40)
    kept = talked(home, "s-new", 1)
    store = store_for(home)
    before = store.database.select("SELECT digest FROM contents")
    assert remove(store, old(store, 30).sessions, 30).sessions == ("s-old",)
    one = agent([text("more")], home, session_id="s-new")
    assert one.journal.snapshot(kept, 1)["system_prompt"]
    assert one.journal.result(kept)
    assert set(store.database.select("SELECT digest FROM contents")) <= set(before)
    assert one.chat("continue") == "more"


def test_a_fork_keeps_what_it_was_forked_from(home: Path) -> None:
    turn = talked(home, "s-old", 40)
    one = agent([text("another answer")], home, session_id="s-x")
    fork = one.fork(turn, 1)
    fork.run()
    assert old(store_for(home), 30).groups == ()
    aged(home, one.journal.info(fork.id).session, 35)
    assert {*old(store_for(home), 30).sessions} == {"s-old", one.journal.info(fork.id).session}


def test_what_is_running_or_can_be_resumed_stays(home: Path, cli: Cli) -> None:
    session, _ = left_unfinished(home, [tools(call("book", {"city": "Rome"}))], 3)
    aged(home, session, 400)
    code, out, _ = cli("sessions", "prune", "--older-than", "30", "--yes")
    assert (code, ids(home)) == (0, [session])
    assert "1 conversation with an unfinished turn" in out
    store = store_for(home)
    talked(home, "s-held", 40)
    holds = "UPDATE sessions SET holder = 'undo' WHERE id = 's-held'"
    store.database.write(lambda c: c.execute(holds) and None)
    assert remove(store, ["s-held"], 30).groups == ()


def test_what_was_taken_up_after_it_was_chosen_stays(home: Path) -> None:
    talked(home, "s-old", 40)
    store = store_for(home)
    chosen = old(store, 30).sessions
    agent([text("again")], home, session_id="s-old").chat("and now?")
    assert remove(store, chosen, 30).groups == ()
    assert ids(home) == ["s-old"]


def test_the_newest_are_kept_if_so_wanted(home: Path, cli: Cli) -> None:
    for number in range(4):
        talked(home, f"s-{number}", 40 + number)
    code, out, _ = cli("sessions", "prune", "--older-than", "30", "--keep", "3", "--yes", "--json")
    assert (code, json.loads(out)["sessions"]) == (0, ["s-3"])
    assert cli("sessions", "prune", "--older-than", "-1")[0] == 2
    with pytest.raises(ConfigError, match="--keep is out of range"):
        old(store_for(home), 1, -1)


def test_a_removed_session_can_start_again(home: Path) -> None:
    one = agent([text("first"), text("second")], home, session_id="s-one")
    one.chat("hello")
    aged(home, "s-one", 40)
    store = one.store
    assert remove(store, old(store, 30).sessions, 30).sessions == ("s-one",)
    assert one.chat("hello again") == "second"
    assert [row.content for row in Store(home).session("s-one").rows] == ["hello again", "second"]


def test_an_archive_can_be_imported_again(home: Path, tmp_path: Path, cli: Cli) -> None:
    first, second = talked(home, "s-a", 50, "about ravens"), talked(home, "s-b", 40)
    talked(home, "s-c", 1)
    store = store_for(home)
    said = agent([], home, session_id="s-c").journal
    was = [(said.snapshot(one), said.effects(one, 0), said.result(one)) for one in (first, second)]
    file = tmp_path / "old.jsonl"
    code, _, err = cli("sessions", "archive", str(file), "--older-than", "30", "--yes")
    assert (code, err, ids(home)) == (0, "", ["s-c"])
    assert file.stat().st_mode & 0o77 == 0
    assert cli("sessions", "import", str(file))[0] == 0
    assert ids(home) == ["s-a", "s-b", "s-c"]
    assert [(said.snapshot(one), said.effects(one, 0), said.result(one)) for one in (first, second)] == was
    assert search(store.database, "ravens").hits
    aged(home, "s-a", 50)
    err = cli.refused("sessions", "archive", str(file), "--older-than", "30", "--yes")
    assert "the file is there already" in err
    assert ids(home) == ["s-a", "s-b", "s-c"]


def test_room_that_is_free_is_given_back(home: Path, cli: Cli) -> None:
    order = [talked(home, f"s-{number}", 40 - number, "long " * 20_000) for number in range(5)]
    cli("sessions", "prune", "--older-than", "37.5", "--yes")
    code, out, _ = cli("sessions", "vacuum", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["after"] < told["before"] / 1.5
    assert told["after"] == (home / "sessions.db").stat().st_size  # nothing is left in the log
    stayed = [turn for turn, number in zip(order, range(5), strict=True) if 40 - number <= 37]
    assert [one.id for one in agent([], home).journal.recent()] == stayed[::-1]
    assert health(home) is not None
