"""Two processes on one session: what one of them did is never lost in, or written over by, what the other
believes.

Another process is another ``Store`` of the same home: it has live copies, a lock that shows it lives, and an
owner's name of its own. ``tests/crash/crowd.py`` does the same with real processes, at random."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.errors import ConfigError, JournalError, OwnershipLost, SessionBusy
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.lineage import compacted_line, descendants, lineage
from fsm_agent.sessions.store.owners import Owners
from fsm_agent.sessions.store.rows import changed, insert_session
from fsm_agent.sessions.store.search.messages import Among, search
from fsm_agent.support.file_lock import take
from fsm_agent.testing import FakeClock, ScriptedModel, call, overflow, repeat, text, tools
from fsm_agent.toolsets.agent.earlier import newest_result

HISTORY = [
    {"role": role, "content": f"{role} {n} " + "word " * 300}
    for n in range(8)
    for role in ("user", "assistant")
]


def agent(home: Path, *script: Any, store: Store | None = None, **options: Any) -> Agent:
    given = {"toolsets": [], "clock": FakeClock(), "session_id": "s-1", **options}
    return Agent(ScriptedModel(script), home=home, store=store or Store(home), **given)


def said(home: Path, session: str = "s-1") -> list[str]:
    """The transcript as the file has it, read by nobody who believes anything."""
    return [row.content for row in Store(home).session(session).rows]


async def moves(turn: Any, count: int) -> None:
    for _ in range(count):
        await turn.step()


def declared_dead(store: Store) -> None:
    """As where the lock of a living process is not seen: what it runs may be taken over while it goes on."""
    store.database.write(lambda c: c.execute("UPDATE turns SET owner = 'gone' WHERE ended IS NULL") and None)
    store.database.write(
        lambda c: c.execute("UPDATE sessions SET owner = 'gone' WHERE owner IS NOT NULL") and None
    )


# A copy is believed only as long as nobody changed the session


def test_who_was_refused_and_tries_again_begins_with_what_was_said_meanwhile(tmp_path: Path) -> None:
    """It read the session while the other one's turn ran, so its copy looks as new as the session."""
    first, second = agent(tmp_path, text("one")), agent(tmp_path, text("two"), text("three"))

    async def scenario() -> None:
        running = first.start("first")
        await moves(running, 1)
        for _ in range(3):
            with pytest.raises(SessionBusy):
                await second.arun("second")
        await running.arun()
        result = await second.arun("second")
        assert (result.completed, result.stored) == (True, True)
        await second.arun("third")

    asyncio.run(scenario())
    assert said(tmp_path) == ["first", "one", "second", "two", "third", "three"]


def test_the_model_sees_what_was_said_meanwhile_also_when_the_turn_was_made_before(tmp_path: Path) -> None:
    first, model = agent(tmp_path, text("one"), text("more")), ScriptedModel([text("two")])
    first.chat("first")
    second = Agent(model, toolsets=[], home=tmp_path, store=Store(tmp_path), session_id="s-1")
    waiting = second.start("second")
    first.chat("between")
    waiting.run()
    assert [row["content"] for row in model.requests[0]["messages"][1:]] == [
        "first",
        "one",
        "between",
        "more",
        "second",
    ]
    assert said(tmp_path) == ["first", "one", "between", "more", "second", "two"]


@pytest.mark.parametrize("change", ["undo", "compact", "give up", "rename"])
def test_whatever_changes_a_session_is_seen_by_who_has_a_copy(tmp_path: Path, change: str) -> None:
    store = Store(tmp_path)
    one = agent(tmp_path, text("one"), text("two"), text("the summary"), store=store)
    one.run_conversation("first", conversation_history=HISTORY)
    one.chat("second")
    other = Store(tmp_path)
    before = other.session("s-1")
    revision = before.revision
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
            agent(tmp_path, text("on")).chat("third")
    again = other.session("s-1")
    assert again is before
    assert again.revision > revision
    assert [row.content for row in again.rows] == said(tmp_path)
    assert again.title == Store(tmp_path).session("s-1").title


@pytest.mark.parametrize("act", ["undo", "compact"])
def test_rows_that_an_unfinished_turn_wrote_are_known_to_who_holds_its_session(
    tmp_path: Path, act: str
) -> None:
    """A turn's rows do not count the revision up, so a copy may look new that lacks them."""
    store = Store(tmp_path)
    one = agent(tmp_path, text("one"), text("two"), store=store)
    one.chat("first")
    other = agent(tmp_path, text("three"), text("four"))

    async def scenario() -> None:
        left = one.start("second")
        await left.step_into()  # it has begun, and said nothing yet
        copy = other._store.session("s-1")
        await moves(left, 2)
        declared_dead(store)
        assert [row.content for row in copy.rows] == ["first", "one"]
        if act == "undo":
            assert (await other.aundo()).turns == (left.id,)
        else:
            with pytest.raises(SessionBusy, match=f"turn {left.id} was left unfinished"):
                await other.acompact()
            assert [row.content for row in copy.rows] == ["first", "one", "second"]
        with pytest.raises(JournalError):
            await left.arun()
        result = await other.arun("third")
        assert (result.completed, result.stored) == (True, True)

    asyncio.run(scenario())
    expected = ["first", "one", *(["second"] if act == "compact" else []), "third", "three"]
    assert said(tmp_path) == expected


@pytest.mark.behaviour("SESS-07")
def test_a_turn_begins_in_what_the_session_went_on_as(tmp_path: Path) -> None:
    """Compacted into another one by another process, between the moment a turn was made and its first
    move."""
    rotating = {"compression": {"mode": "rotate"}}
    one = agent(tmp_path, text("one"), text("the summary"), settings=rotating)
    one.run_conversation("first", conversation_history=HISTORY)
    other = agent(tmp_path, text("two"), text("three"))
    waiting = other.start("second")
    one.compact()
    result = waiting.run()
    assert result.session_id == one.session_id != "s-1"
    assert result.parent_session_id == "s-1"
    assert [row["content"] for row in result.messages][-2:] == ["second", "two"]
    assert said(tmp_path, one.session_id)[-2:] == ["second", "two"]
    assert other.session_id == one.session_id
    assert agent(tmp_path, text("four")).run_conversation("fourth").messages[-4]["content"] == "second"


def test_a_compaction_that_came_too_late_changes_nothing(tmp_path: Path) -> None:
    one = agent(tmp_path, text("one"), settings={"compression": {"mode": "rotate"}})
    one.run_conversation("first", conversation_history=HISTORY)

    def summary(body: dict[str, Any]) -> Any:
        declared_dead(one._store)
        other = agent(tmp_path, text("between"))
        meanwhile = threading.Thread(target=lambda: asyncio.run(other.arun("meanwhile")))
        meanwhile.start()
        meanwhile.join()
        return text("the summary")

    late = agent(tmp_path, summary, text("on"), settings={"compression": {"mode": "rotate"}})
    with pytest.raises(SessionBusy, match="was changed by another process in the meantime; try again"):
        late.compact()
    assert Store(tmp_path).newest("s-1").id == "s-1"
    late.chat("after")
    assert said(tmp_path)[-4:] == ["meanwhile", "between", "after", "on"]


def test_a_session_with_an_unfinished_turn_is_not_compacted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = agent(tmp_path, text("one"), text("unused"), store=store)
    one.run_conversation("first", conversation_history=HISTORY)
    turn = one.start("left")
    asyncio.run(moves(turn, 1))
    declared_dead(store)
    with pytest.raises(
        SessionBusy, match=f"turn {turn.id} was left unfinished; resume it, or say something new"
    ):
        agent(tmp_path, text("the summary")).compact()


@pytest.mark.parametrize("goes_on", [False, True], ids=["gives it up and dies", "goes on"])
def test_nobody_goes_on_in_a_session_that_was_never_stored(tmp_path: Path, goes_on: bool) -> None:
    """A turn compacts the session into another one, and another process gives the turn up before that is
    written."""
    store = Store(tmp_path)

    def given_up() -> None:
        declared_dead(store)
        if goes_on:
            other = agent(tmp_path, text("between"))
            meanwhile = threading.Thread(target=lambda: asyncio.run(other.arun("meanwhile")))
            meanwhile.start()
            meanwhile.join()
        else:
            sql = (
                "UPDATE turns SET epoch = epoch + 1, ended = 1, exit = 'abandoned', outcome = 'failed' WHERE"
                " ended IS NULL"
            )
            store.database.write(lambda c: c.execute(sql) and None)
            store.database.write(lambda c: changed(c, "s-1"))

    def answer(body: dict[str, Any]) -> Any:
        said = json.dumps(body["messages"])
        if "tools" not in body:
            given_up()
            return text("the summary")
        return text("on") if "after" in said else overflow()

    agent(tmp_path, text("one"), store=store).run_conversation("first", conversation_history=HISTORY)
    rotating = {"compression": {"mode": "rotate"}}
    one = agent(tmp_path, repeat(answer), store=store, settings=rotating, tools=[put])
    with pytest.raises(JournalError):
        one.run_conversation("second")
    result = asyncio.run(asyncio.wait_for(one.arun("after"), 30))
    assert result.stored
    assert Store(tmp_path).newest("s-1").id == result.session_id == one.session_id == "s-1"
    contents = said(tmp_path)
    assert contents[-2:] == ["after", "on"]
    assert ("meanwhile" in contents) == goes_on


# An answer is delivered, and whether it is stored is said


def intruder(home: Path, turn: str) -> None:
    """Somebody writes into the session as if nobody held it."""

    def write(c: SqlConnection) -> None:
        number = c.execute("SELECT MAX(number) FROM messages WHERE session = 's-1'").fetchone()[0] + 1
        body = json.dumps({"role": "user", "content": f"from {turn}"})
        c.execute(
            "INSERT INTO messages (session, number, version, at, role, body) VALUES ('s-1', ?, 0, 0,"
            " 'user', ?)",
            (number, body),
        )

    Store(home).database.write(write)


def test_an_end_that_is_refused_is_written_on_a_fresh_copy(tmp_path: Path) -> None:
    told: list[str] = []

    def late(words: str) -> str:
        intruder(tmp_path, "elsewhere")
        return words

    one = agent(tmp_path, text("one"), text("two"), callbacks={"transform": late, "status": told.append})
    result = one.run_conversation("first")
    assert (result.final_response, result.completed, result.stored) == ("one", True, True)
    assert any("was changed by somebody else while turn" in line for line in told)
    assert said(tmp_path) == ["first", "from elsewhere", "one"]
    assert one.journal.info(result.turn_id).exit == "text_response"


def test_an_answer_whose_turn_was_taken_over_at_the_end_is_not_reported(tmp_path: Path) -> None:
    """Whoever has the turn now says how it ends: two answers to one message would both be believed."""
    store = Store(tmp_path)

    def taken(words: str) -> str:
        turn = store.database.write(lambda c: c.execute("SELECT id FROM turns").fetchone()[0])
        store.database.write(
            lambda c: c.execute("UPDATE turns SET epoch = epoch + 1 WHERE id = ?", (turn,)) and None
        )
        return words

    told: list[str] = []
    callbacks = {"transform": taken, "status": told.append}
    with pytest.raises(OwnershipLost, match="was taken over by another process; this one stops here"):
        agent(tmp_path, text("one"), store=store, callbacks=callbacks).run_conversation("first")
    assert not told
    assert said(tmp_path) == ["first"]


# The fence


@tool(effect="unsafe")
def put(key: str) -> str:
    """Do what cannot be undone."""
    Ran.keys.append(key)
    return f"put {key}"


class Ran:
    keys: list[str] = []


def by_what_was_said(body: dict[str, Any]) -> Any:
    ran = any(row["role"] == "tool" for row in body["messages"])
    return text("done") if ran else tools(call("put", {"key": "a"}, "c1"))


@pytest.mark.parametrize("stands", range(1, 25))
def test_an_owner_that_lost_its_turn_writes_nothing_and_runs_nothing(tmp_path: Path, stands: int) -> None:
    """Wherever it stands when another one takes the turn over and brings it to its end."""
    Ran.keys = []

    async def scenario() -> None:
        store = Store(tmp_path)
        turn = agent(tmp_path, repeat(by_what_was_said), store=store, tools=[put]).start("go")
        for _ in range(stands):
            await turn.step_into()
        await store.written(lambda c: None)
        declared_dead(store)
        result = await agent(tmp_path, repeat(by_what_was_said), tools=[put]).resume(turn.id).arun()
        assert result.final_response == "done"
        before, ran = dumped(tmp_path), list(Ran.keys)
        with pytest.raises(OwnershipLost, match="was taken over by another process"):
            await turn.arun()
        await store.written(lambda c: None)
        assert dumped(tmp_path) == before
        assert Ran.keys == ran
        assert len(ran) <= 1

    asyncio.run(scenario())


def dumped(home: Path) -> tuple[Any, ...]:
    """All that the file says of the turn and its session; words for the search may be added at any time."""
    of_messages = "session, number, version, turn, at, role, active, body FROM messages"
    names = ("sessions", "turns", "transitions", "effects", "transcripts")
    with Store(home).database.reading() as c:
        asked = [of_messages, *(f"* FROM {name}" for name in names)]
        return tuple(tuple(sorted(map(repr, c.execute(f"SELECT {what}").fetchall()))) for what in asked)


def test_who_lets_go_frees_only_what_it_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        turn = agent(tmp_path, text("one"), store=store).start("first")
        await moves(turn, 1)
        declared_dead(store)
        new = agent(tmp_path, text("two")).resume(turn.id)
        await moves(new, 1)
        store.let_go(turn.id, 1)
        await store.written(lambda c: None)
        with pytest.raises(SessionBusy):
            await agent(tmp_path, text("x")).arun("third")
        await new.arun()

    asyncio.run(scenario())


def test_a_turn_is_claimed_before_it_is_read(tmp_path: Path) -> None:
    """What its owner wrote between the look and the claim is known: a tool that ran then is not run a second
    time."""
    Ran.keys = []

    async def scenario() -> Any:
        store = Store(tmp_path)
        old = agent(
            tmp_path, tools(call("put", {"key": "a"}, "c1")), text("unused"), store=store, tools=[put]
        )
        turn = old.start("go")
        await moves(turn, 3)
        assert turn.state == "ExecuteTools"
        declared_dead(store)
        resumed = agent(tmp_path, text("done"), tools=[put]).resume(turn.id)
        while not Ran.keys:
            await turn.step_into()
        await store.written(lambda c: None)
        return await resumed.arun()

    result = asyncio.run(scenario())
    assert Ran.keys == ["a"]
    assert result.final_response == "done"
    assert [row["content"] for row in result.messages if row["role"] == "tool"] == ["put a"]


def test_of_two_that_resume_one_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store(tmp_path)
        turn = agent(tmp_path, text("unused"), store=store).start("first")
        await moves(turn, 1)
        declared_dead(store)
        one, two = (agent(tmp_path, text("done")).resume(turn.id) for _ in range(2))
        await moves(one, 1)
        with pytest.raises(SessionBusy, match="is running in process"):
            await two.arun()
        await one.arun()
        with pytest.raises(ConfigError, match="nothing to resume: the turn ended with text_response"):
            await two.arun()

    asyncio.run(scenario())


def test_a_turn_that_is_resumed_in_its_own_process_stops_the_older_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = agent(tmp_path, text("done"))
        older = one.start("first")
        await moves(older, 2)
        newer = one.resume(older.id)
        await moves(newer, 1)
        with pytest.raises(JournalError, match="was taken over in this process; this one stops here"):
            await older.step()
        assert (await newer.arun()).final_response == "done"

    asyncio.run(scenario())
    assert said(tmp_path) == ["first", "done"]


def test_a_turn_is_not_resumed_while_its_own_process_makes_a_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        asked = asyncio.Event()

        @tool(effect="pure")
        async def wait() -> str:
            """Wait."""
            asked.set()
            await asyncio.sleep(0.05)
            return "waited"

        one = agent(tmp_path, tools(call("wait", {}, "c1")), text("done"), tools=[wait])
        turn = one.start("first")
        running = asyncio.ensure_future(turn.arun())
        await asked.wait()
        with pytest.raises(SessionBusy, match="is still running"):
            one.resume(turn.id)
        assert (await running).final_response == "done"

    asyncio.run(scenario())


# A line of sessions has no limit


@pytest.fixture
def line(tmp_path: Path) -> tuple[Store, list[str]]:
    """A hundred compactions into child sessions, by as many real turns of two processes by turns."""
    store = Store(tmp_path)
    stores = (store, Store(tmp_path))
    ids = ["s-1"]
    for number in range(100):
        one = agent(
            tmp_path,
            repeat(lambda body: text("short" if "tools" not in body else "said")),
            store=stores[number % 2],
            settings={"compression": {"mode": "rotate"}, "store": {"index": False}},
        )
        if number == 0:
            one.run_conversation("begin", conversation_history=HISTORY)
        one.run_conversation(f"say {number} " + "word " * 300)
        one.compact()
        ids.append(one.session_id)
    return store, ids


@pytest.mark.behaviour("SESS-07")
@pytest.mark.slow
def test_a_conversation_that_was_compacted_a_hundred_times_is_one(
    line: tuple[Store, list[str]], tmp_path: Path
) -> None:
    store, ids = line
    assert len(set(ids)) == 101
    assert Store(tmp_path).newest("s-1").id == ids[-1]
    assert Store(tmp_path).newest(ids[50]).id == ids[-1]
    with store.database.reading() as c:
        assert c.execute("SELECT COUNT(*) FROM sessions WHERE successor IS NULL").fetchone() == (1,)
        assert compacted_line(c, ids[-1]) == ids[::-1]
        assert lineage(c, ids[-1]) == "s-1"
        assert descendants(c, "s-1") == ids
    assert {hit.lineage for hit in search(store.database, "say", Among(), limit=50).hits} == {"s-1"}
    one = agent(tmp_path, text("on"))
    assert one.run_conversation("and now?").session_id == ids[-1]
    assert len(one.undo(90).turns) == 90


def test_the_to_do_list_outlives_a_hundred_compactions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plan = [{"id": "a", "content": "go on", "status": "in_progress"}]
    agent(
        tmp_path, tools(call("todo", {"todos": plan})), text("planned"), toolsets=["todo"], store=store
    ).chat("plan")

    def write(c: SqlConnection) -> None:
        for number in range(1, 101):
            before = f"s-{number}"
            made = Session(f"s-{number + 1}", kind="compression", parent=before)
            insert_session(c, made, store.now())
            c.execute("UPDATE sessions SET successor = ? WHERE id = ?", (made.id, before))

    store.database.write(write)
    newest = Store(tmp_path).newest("s-1")
    assert newest.id == "s-101"
    found = newest_result(store, newest, "todo")
    assert found is not None
    assert found["todos"][0]["content"] == "go on"


def test_a_process_whose_lock_file_was_removed_makes_another(tmp_path: Path) -> None:
    """What it runs may be taken over; what it begins is seen to live again, and is not given up by everybody
    who comes."""
    one, other = Store(tmp_path), Store(tmp_path)
    lost = one.owners.me
    (tmp_path / "owners" / f"{lost}.lock").unlink()
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
