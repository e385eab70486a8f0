"""Two processes on one session: what one of them did is never lost in, or written over by, what the other
believes. ``tests/crash/crowd.py`` does the same with real processes, at random."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.errors import ConfigError, JournalError, OwnershipLost, SessionBusy
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.fence import Owners
from fsm_agent.sessions.store.rows import (
    compaction_chain,
    count_revision,
    descendants,
    insert_session,
    lineage,
)
from fsm_agent.sessions.store.search import Among, search
from fsm_agent.sessions.store.stored_sessions import any_turn
from fsm_agent.support.files import take
from fsm_agent.testing import ScriptedModel, call, overflow, repeat, text, tools
from fsm_agent.toolsets.agent.todo import newest_result
from tests.helpers.store_homes import (
    HISTORY,
    ROTATE,
    contents,
    declared_dead,
    look,
    moves,
    process,
    unsafe_tool,
)


def said(home: Path, session: str = "s-1") -> list[str]:
    """The transcript in the file, read by a store without cached copies."""
    return contents(Store(home).session(session).rows)


def says_meanwhile(home: Path) -> None:
    """Another process runs a turn while this process's loop is blocked."""
    with ThreadPoolExecutor(1) as beside:
        beside.submit(lambda: asyncio.run(process(home, text("between")).arun("meanwhile"))).result()


# A cached copy is used only while the session is unchanged


async def test_a_refused_caller_that_retries_sees_the_messages_added_meanwhile(home: Path) -> None:
    """It read the session while the other one's turn ran, so its copy looks as new as the session."""
    first, second = process(home, text("one")), process(home, text("two"), text("three"))
    running = first.start("first")
    await moves(running, 1)
    for _ in range(3):
        with pytest.raises(SessionBusy):
            await second.arun("second")
    await running.arun()
    result = await second.arun("second")
    assert (result.completed, result.stored) == (True, True)
    await second.arun("third")
    assert said(home) == ["first", "one", "second", "two", "third", "three"]


def test_the_model_sees_what_was_said_meanwhile_also_when_the_turn_was_made_before(home: Path) -> None:
    first, model = process(home, text("one"), text("more")), ScriptedModel([text("two")])
    first.chat("first")
    waiting = process(home, model=model).start("second")
    first.chat("between")
    waiting.run()
    asked = contents(model.requests[0]["messages"][1:])
    assert asked == ["first", "one", "between", "more", "second"]
    assert said(home) == ["first", "one", "between", "more", "second", "two"]


@pytest.mark.parametrize("change", ["undo", "compact", "give up", "rename"])
def test_whatever_changes_a_session_is_seen_by_who_has_a_copy(home: Path, store: Store, change: str) -> None:
    one = process(home, text("one"), text("two"), text("the summary"), store=store)
    one.run_conversation("first", conversation_history=HISTORY)
    one.chat("second")
    other = Store(home)
    before = other.session("s-1")
    match change:
        case "undo":
            one.undo()
        case "compact":
            one.compact()
        case "rename":
            one.rename("another name")
        case "give up":
            asyncio.run(moves(one.start("left"), 2))
            declared_dead(store)
            process(home, text("on")).chat("third")
    again = other.session("s-1")
    assert again.revision > before.revision
    assert contents(again.rows) == said(home)
    assert again.title == Store(home).session("s-1").title


@pytest.mark.parametrize("act", ["undo", "compact"])
def test_rows_that_an_unfinished_turn_wrote_are_known_to_who_holds_its_session(
    home: Path, store: Store, act: str
) -> None:
    """A turn's rows do not count the revision up, so a copy may look new that lacks them."""
    one = process(home, text("one"), text("two"), store=store)
    one.chat("first")
    other = process(home, text("three"), text("four"))

    async def scenario() -> None:
        left = one.start("second")
        await left.step_into()  # it has begun, and said nothing yet
        await moves(left, 2)
        declared_dead(store)
        if act == "undo":
            assert (await other.aundo()).turns == (left.id,)
        else:
            words = f"turn {left.id} was left unfinished; resume it, or say something new"
            with pytest.raises(SessionBusy, match=words):
                await other.acompact()
            assert said(home) == ["first", "one", "second"]
        with pytest.raises(JournalError):
            await left.arun()
        result = await other.arun("third")
        assert (result.completed, result.stored) == (True, True)

    asyncio.run(scenario())
    expected = ["first", "one", *(["second"] if act == "compact" else []), "third", "three"]
    assert said(home) == expected


@pytest.mark.behaviour("SESS-07")
def test_a_turn_begins_in_what_the_session_went_on_as(home: Path) -> None:
    """Compacted into another one by another process, between the moment a turn was made and its first
    move."""
    one = process(home, text("one"), text("the summary"), settings=ROTATE)
    one.run_conversation("first", conversation_history=HISTORY)
    other = process(home, text("two"), text("three"))
    waiting = other.start("second")
    one.compact()
    result = waiting.run()
    assert result.session_id == one.session_id != "s-1"
    assert result.parent_session_id == "s-1"
    assert contents(result.messages)[-2:] == ["second", "two"]
    assert said(home, one.session_id)[-2:] == ["second", "two"]
    assert other.session_id == one.session_id
    assert process(home, text("four")).run_conversation("fourth").messages[-4]["content"] == "second"


def test_a_compaction_that_came_too_late_changes_nothing(home: Path, store: Store) -> None:
    one = process(home, text("one"), settings=ROTATE, store=store)
    one.run_conversation("first", conversation_history=HISTORY)

    def summary(body: dict[str, Any]) -> Any:
        declared_dead(store)
        says_meanwhile(home)
        return text("the summary")

    late = process(home, summary, text("on"), settings=ROTATE)
    with pytest.raises(SessionBusy, match="was changed by another process in the meantime; try again"):
        late.compact()
    assert Store(home).newest("s-1").id == "s-1"
    late.chat("after")
    assert said(home)[-4:] == ["meanwhile", "between", "after", "on"]


@pytest.mark.parametrize("goes_on", [False, True], ids=["gives it up and dies", "continues"])
def test_nobody_goes_on_in_a_session_that_was_never_stored(home: Path, store: Store, goes_on: bool) -> None:
    """A turn compacts the session into another one, and another process gives the turn up before that is
    written."""

    def given_up() -> None:
        declared_dead(store)
        if goes_on:
            says_meanwhile(home)
        else:
            end = "epoch = epoch + 1, ended = 1, exit = 'abandoned', outcome = 'failed'"
            store.database.write(lambda c: c.execute(f"UPDATE turns SET {end} WHERE ended IS NULL") and None)
            store.database.write(lambda c: count_revision(c, "s-1"))

    def answer(body: dict[str, Any]) -> Any:
        said = json.dumps(body["messages"])
        if "tools" not in body:
            given_up()
            return text("the summary")
        return text("on") if "after" in said else overflow()

    process(home, text("one"), store=store).run_conversation("first", conversation_history=HISTORY)
    one = process(home, repeat(answer), store=store, settings=ROTATE, tools=[look])
    with pytest.raises(JournalError):
        one.run_conversation("second")
    result = asyncio.run(asyncio.wait_for(one.arun("after"), 30))
    assert result.stored
    assert Store(home).newest("s-1").id == result.session_id == one.session_id == "s-1"
    contents = said(home)
    assert contents[-2:] == ["after", "on"]
    assert ("meanwhile" in contents) == goes_on


# An answer is delivered, and whether it is stored is said


def intruder(home: Path) -> None:
    """Another process writes into the session as if it had no owner."""

    def write(c: SqlConnection) -> None:
        number = c.execute("SELECT MAX(number) FROM messages WHERE session = 's-1'").fetchone()[0] + 1
        columns, body = (
            "session, number, version, at, role, body",
            '{"role":"user","content":"from elsewhere"}',
        )
        values = ("s-1", number, 0, 0, "user", body)
        c.execute(f"INSERT INTO messages ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)

    Store(home).database.write(write)


def test_an_end_that_is_refused_is_written_on_a_fresh_copy(home: Path) -> None:
    told: list[str] = []

    def late(words: str) -> str:
        intruder(home)
        return words

    one = process(home, text("one"), text("two"), callbacks={"transform": late, "status": told.append})
    result = one.run_conversation("first")
    assert (result.final_response, result.completed, result.stored) == ("one", True, True)
    assert any("was changed from outside while turn" in line for line in told)
    assert said(home) == ["first", "from elsewhere", "one"]
    assert one.journal.info(result.turn_id).exit == "text_response"


def test_an_answer_whose_turn_was_taken_over_at_the_end_is_not_reported(home: Path, store: Store) -> None:
    """The new owner reports how the turn ends: two answers to one message would both be believed."""

    def taken(words: str) -> str:
        store.database.write(lambda c: c.execute("UPDATE turns SET epoch = epoch + 1") and None)
        return words

    told: list[str] = []
    callbacks = {"transform": taken, "status": told.append}
    with pytest.raises(OwnershipLost, match="was taken over by another process; this one stops here"):
        process(home, text("one"), store=store, callbacks=callbacks).run_conversation("first")
    assert not told
    assert said(home) == ["first"]


# The fence


def by_what_was_said(body: dict[str, Any]) -> Any:
    ran = any(row["role"] == "tool" for row in body["messages"])
    return text("done") if ran else tools(call("put", {"key": "a"}, "c1"))


@pytest.mark.parametrize("stands", range(1, 25))
async def test_an_owner_that_lost_its_turn_writes_nothing_and_runs_nothing(
    home: Path, store: Store, stands: int
) -> None:
    """At any point of the turn, another process takes it over and completes it."""
    put, keys = unsafe_tool()
    turn = process(home, repeat(by_what_was_said), store=store, tools=[put]).start("go")
    for _ in range(stands):
        await turn.step_into()
    await store.write(lambda c: None)
    declared_dead(store)
    result = await process(home, repeat(by_what_was_said), tools=[put]).resume(turn.id).arun()
    assert result.final_response == "done"
    before, ran = dumped(home), list(keys)
    with pytest.raises(OwnershipLost, match="was taken over by another process"):
        await turn.arun()
    await store.write(lambda c: None)
    assert dumped(home) == before
    assert keys == ran
    assert len(ran) <= 1


def dumped(home: Path) -> tuple[Any, ...]:
    """All that the file says of the turn and its session; words for the search may be added at any time."""
    of_messages = "session, number, version, turn, at, role, active, body FROM messages"
    names = ("sessions", "turns", "transitions", "effects", "transcripts")
    with Store(home).database.reading() as c:
        asked = [of_messages, *(f"* FROM {name}" for name in names)]
        return tuple(tuple(sorted(map(repr, c.execute(f"SELECT {what}").fetchall()))) for what in asked)


async def test_who_lets_go_frees_only_what_it_holds(home: Path, store: Store) -> None:
    turn = process(home, text("one"), store=store).start("first")
    await moves(turn, 1)
    declared_dead(store)
    new = process(home, text("two")).resume(turn.id)
    await moves(new, 1)
    store.let_go(turn.id, 1)
    await store.write(lambda c: None)
    with pytest.raises(SessionBusy):
        await process(home, text("x")).arun("third")
    await new.arun()


async def test_a_turn_is_claimed_before_it_is_read(home: Path) -> None:
    """What its owner wrote between the look and the claim is known: a tool that ran then is not run a second
    time."""
    put, keys = unsafe_tool()
    store, asks = Store(home), tools(call("put", {"key": "a"}, "c1"))
    turn = process(home, asks, text("unused"), store=store, tools=[put]).start("go")
    await moves(turn, 3)
    assert turn.state == "ExecuteTools"
    declared_dead(store)
    resumed = process(home, text("done"), tools=[put]).resume(turn.id)
    while not keys:
        await turn.step_into()
    await store.write(lambda c: None)
    result = await resumed.arun()
    assert keys == ["a"]
    assert result.final_response == "done"
    assert contents(row for row in result.messages if row["role"] == "tool") == ["put a"]


async def test_one_of_two_resumers_continues(home: Path, store: Store) -> None:
    turn = process(home, text("unused"), store=store).start("first")
    await moves(turn, 1)
    declared_dead(store)
    one, two = (process(home, text("done")).resume(turn.id) for _ in range(2))
    await moves(one, 1)
    with pytest.raises(SessionBusy, match="is running in process"):
        await two.arun()
    await one.arun()
    with pytest.raises(ConfigError, match="nothing to resume: the turn ended with text_response"):
        await two.arun()


async def test_a_turn_that_is_resumed_in_its_own_process_stops_the_older_one(home: Path) -> None:
    one = process(home, text("done"))
    older = one.start("first")
    await moves(older, 2)
    newer = one.resume(older.id)
    await moves(newer, 1)
    with pytest.raises(JournalError, match="was taken over in this process; this one stops here"):
        await older.step()
    assert (await newer.arun()).final_response == "done"
    assert said(home) == ["first", "done"]


async def test_a_turn_is_not_resumed_while_its_own_process_makes_a_step(home: Path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        asked.set()
        await go.wait()
        return "waited"

    one = process(home, tools(call("wait", {}, "c1")), text("done"), tools=[wait])
    turn = one.start("first")
    running = asyncio.ensure_future(turn.arun())
    await asked.wait()
    with pytest.raises(SessionBusy, match="is still running"):
        one.resume(turn.id)
    go.set()
    assert (await running).final_response == "done"


# A line of sessions has no limit


@pytest.mark.behaviour("SESS-07")
@pytest.mark.slow
def test_a_conversation_that_was_compacted_a_hundred_times_is_one(home: Path, store: Store) -> None:
    """By as many real turns of two processes by turns."""
    stores, ids = (store, Store(home)), ["s-1"]
    model = repeat(lambda body: text("short" if "tools" not in body else "said"))
    for number in range(100):
        settings = {**ROTATE, "store": {"index": False}}
        one = process(home, model, store=stores[number % 2], settings=settings)
        if number == 0:
            one.run_conversation("begin", conversation_history=HISTORY)
        one.run_conversation(f"say {number} " + "word " * 300)
        one.compact()
        ids.append(one.session_id)
    assert len(set(ids)) == 101
    assert Store(home).newest("s-1").id == Store(home).newest(ids[50]).id == ids[-1]
    with store.database.reading() as c:
        assert c.execute("SELECT COUNT(*) FROM sessions WHERE successor IS NULL").fetchone() == (1,)
        assert compaction_chain(c, ids[-1]) == ids[::-1]
        assert lineage(c, ids[-1]) == "s-1"
        assert descendants(c, "s-1") == ids
    assert {hit.lineage for hit in search(store.database, "say", Among(), limit=50).hits} == {"s-1"}
    one = process(home, text("on"))
    assert one.run_conversation("and now?").session_id == ids[-1]
    assert len(one.undo(90).turns) == 90


def test_the_to_do_list_outlives_a_hundred_compactions(home: Path, store: Store) -> None:
    plan = [{"id": "a", "content": "continue", "status": "in_progress"}]
    script = tools(call("todo", {"todos": plan})), text("planned")
    process(home, *script, toolsets=["todo"], store=store).chat("plan")

    def write(c: SqlConnection) -> None:
        for number in range(1, 101):
            before = f"s-{number}"
            made = Session(f"s-{number + 1}", kind="compression", parent=before)
            insert_session(c, made, store.now())
            c.execute("UPDATE sessions SET successor = ? WHERE id = ?", (made.id, before))

    store.database.write(write)
    newest = Store(home).newest("s-1")
    assert newest.id == "s-101"
    found = newest_result(store, newest, "todo")
    assert found is not None
    assert found["todos"][0]["content"] == "continue"


def test_a_process_whose_lock_file_was_removed_makes_another(home: Path) -> None:
    """What it runs may be taken over; what it begins is seen to live again, and is not given up by everybody
    who comes."""
    one, other = Store(home), Store(home)
    lost = one.owners.me
    (home / "owners" / f"{lost}.lock").unlink()
    assert other.owners.alive(lost) is None
    again = one.owners.me
    assert again != lost
    assert again == one.owners.me
    assert other.owners.alive(again) is not None
    with pytest.raises(SessionBusy, match="is running in process"):
        other.owners.refuse_if_alive("s-1", "t-1", again)


def test_an_owner_that_is_not_needed_any_more_leaves_neither_file_nor_lock(tmp_path: Path) -> None:
    owners = Owners(tmp_path)
    file = tmp_path / "owners" / f"{owners.me}.lock"
    with file.open("rb") as again:
        with pytest.raises(BlockingIOError):
            take(again.fileno())
        del owners
        assert not file.exists()
        take(again.fileno())  # its handle is closed


# Turns follow each other by their number


def test_undo_takes_the_turn_with_the_highest_number_whatever_the_clocks_say(store: Store) -> None:
    """As on machines whose clocks differ, in a database that gives rows no numbers of its own."""
    one = process(store.home, text("one"), text("two"), store=store)
    one.chat("first")
    second = one.run_conversation("second")
    other = "began = -began" if store.database.path is None else "began = -began, rowid = 10 - rowid"
    store.database.write(lambda c: c.execute(f"UPDATE turns SET {other}") and None)
    assert any_turn(store, one.session_id) == second.turn_id
    assert (one.undo().asked, one.undo().asked) == ("second", "first")


def test_numbers_go_up_along_compactions(store: Store) -> None:
    script = text("one"), text("the summary"), text("two"), text("three")
    one = process(store.home, *script, store=store, settings=ROTATE)
    one.run_conversation("first", conversation_history=HISTORY)
    one.compact()
    one.chat("second")
    one.chat("third")
    assert one.session_id != "s-1"
    found = store.database.select("SELECT asked, number, id FROM turns ORDER BY number")
    assert [row[:2] for row in found] == [("first", 1), ("second", 2), ("third", 3)]
    assert one.undo(3).turns[-1] == found[0][2]


# Forked processes have none of the threads of their parents, and SQLite forbids them an open file

FORKS = """
import os, sys
from pathlib import Path
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, repeat, text

def made(name):
    return Agent(ScriptedModel([repeat(text(name))]), toolsets=[], home=Path(sys.argv[1]) / name)

used, unused = made("used"), made("unused")
print(used.chat("before"), flush=True)
if os.fork() == 0:
    for one in (unused, used, made("used")):
        try:
            print(one.chat("in the child"), flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
print(used.chat("after"), len(used.run_conversation("after").messages))
"""


def test_a_forked_process_runs_agents_except_where_its_parent_has_a_file_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    lines = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    if "FSM_AGENT_STORE__DATABASE_URL" in os.environ:  # a server does not mind
        assert lines == ["used", "unused", "used", "used", "used 8"]
        return
    assert [lines[0], lines[1], lines[4]] == ["used", "unused", "used 6"]
    for refused in lines[2:4]:
        assert refused.startswith(f"StoreError the session store {tmp_path}/used/sessions.db cannot be used")


OUTLIVES = """
import os, sys
from pathlib import Path
from fsm_agent.sessions.store import Store

store = Store(Path(sys.argv[1]))
owner = store.owners.me
if os.fork() == 0:
    print(owner, flush=True)
    sys.stdin.read()
else:
    os._exit(0)
"""


def test_a_forked_process_that_lives_on_does_not_hold_the_turns_of_its_parent(home: Path) -> None:
    command = [sys.executable, "-c", OUTLIVES, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        owner = parent.stdout.readline().strip()
        parent.wait(30)
        assert Owners(home).alive(owner) is None, "although the child lives"
