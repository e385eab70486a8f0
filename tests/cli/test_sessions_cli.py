from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.stored_sessions import any_turn, find_session, first_words, one_of
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.processes import ran
from tests.helpers.store_homes import agent, left_unfinished

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def talked(home: Path, *asked: str, script: list[Any] | None = None) -> Agent:
    """A session of some turns, its agent closed."""
    with agent(script or [text(f"answer to {words}") for words in asked], home) as one:
        for words in asked:
            one.chat(words)
    return one


# wrong use


def test_a_copy_that_would_copy_nothing_is_refused(home: Path, tmp_path: Path, cli: Cli) -> None:
    err = cli.refused("sessions", "copy", "--to", str(tmp_path / "there"))
    assert f"there are no sessions to copy; given: {home}" in err
    talked(home, "hello")
    (tmp_path / "link").symlink_to(home)
    for same in (home, tmp_path / "link", home / ".." / home.name):
        err = cli.refused("sessions", "copy", "--to", str(same))
        assert "source and target are the same store" in err, same


def test_a_copy_with_a_home_reads_that_home_whatever_the_environment_names(
    home: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(home, "hello")
    monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", "postgresql://no.such.host.invalid/x")
    code, out, _ = cli("sessions", "copy", "--home", str(home), "--to", str(tmp_path / "there"))
    assert (code, out[:12]) == (0, "1 session in")


@pytest.mark.parametrize("file", ["sessions.db", "sessions.db-wal", "link"])
def test_an_export_into_the_store_itself_is_refused(home: Path, file: str, cli: Cli) -> None:
    talked(home, "hello")
    (home / "link").symlink_to(home / "sessions.db")
    err = cli.refused("sessions", "export", "hello", "--output", str(home / file))
    assert f"the store would be written over; given: {home / file}" in err
    assert cli("sessions", "list")[0] == 0


# list, show, search


def test_list(cli: Cli, home: Path) -> None:
    assert cli.json("sessions", "list") == []
    first = talked(home, "what about okapis?", "more?")
    talked(home, "evil \x1b[2J\u202etitle")
    out = cli.ok("sessions", "list")
    assert not CONTROL.search(out)
    lines = out.splitlines()
    assert " ".join(lines[0].split()) == "id title by model turns last exit tokens cost used"
    assert lines[2].startswith(f"{first.session_id}  what about okapis?")
    assert re.search(r" 2  text_response +30 +included +now$", lines[2])
    told = cli.json("sessions", "list", "--limit", "1")
    assert [one["asked"] for one in told] == ["evil \x1b[2J\u202etitle"]
    told = cli.json("sessions", "list")
    keys = ("id", "turns", "tokens", "cost_usd", "cost_status")
    assert [told[1][key] for key in keys] == [first.session_id, 2, 30, None, "included"]
    assert (told[1]["last_exit"], told[1]["last_outcome"]) == ("text_response", "completed")
    assert told[1]["unfinished"] is False


def test_an_unfinished_turn_is_marked_and_a_running_one_too(cli: Cli, home: Path) -> None:
    session, turn = left_unfinished(home, [tools(call("book", {"city": "Rome"}))], 3)
    assert "unfinished" in cli("sessions", "list")[1]
    told = cli.json("sessions", "list")[0]
    assert (told["unfinished"], told["running"], told["last_turn"]) == (True, None, turn)
    assert f"unfinished: fsm-agent sessions resume {turn}" in cli("sessions", "show", session)[1]
    with agent([text("x")], home) as one:
        running = one.start("go")
        asyncio.run(running.step())
        told = cli.json("sessions", "list")[0]
        assert (told["unfinished"], told["running"]["pid"] > 0) == (False, True)
        assert "running" in cli("sessions", "list")[1]
        running.run()


def test_show_a_session_and_a_turn(cli: Cli, home: Path) -> None:
    rounds = tools(call("lookup", {"city": "Bern"}), call("book", {"city": "Oslo"}))
    script = [rounds, text("Sunny \x1b[31min\x1b]0;owned\x07 Bern\u202e.\r\nBut no room.")]
    one = talked(home, "weather and a room", script=script)
    turn = Turns(store_for(str(home)).database).recent(1)[0].id
    out = cli.ok("sessions", "show", "weather and")
    assert not CONTROL.search(out)
    assert out.splitlines()[0] == f"{one.session_id}  weather and a room"
    assert "  → lookup  city=Bern" in out
    assert "  ← book: 1 line" in out
    assert "agent\n  Sunny \\x1b[31min\\x1b]0;owned\\x07 Bern\\u202e.\n  But no room." in out
    assert "CallLLM.tools" not in out
    for moves in (cli("sessions", "show", one.session_id, "--moves")[1], cli("sessions", "show", turn)[1]):
        assert re.search(r"^ +3 +CallLLM\.tools +ExecuteTools +\d", moves, re.MULTILINE)
        assert re.search(
            r"built/3 +CallLLM +✓ attempts left ✓ sends left ✓ no block open ✓ iterations left", moves
        )
        assert "⇥ text_response" in moves
    told = cli.json("sessions", "show", turn)
    assert [move["row"] for move in told["turns"][0]["moves"]][-1] == "CallLLM.text"
    assert told["turns"][0]["result"]["turn_exit_reason"] == "text_response"
    assert [row["role"] for row in told["messages"]] == ["user", "assistant", "tool", "tool", "assistant"]


def test_children_and_handoffs_are_shown_below_their_turn(cli: Cli, agent: Any) -> None:
    cats = agent(text("meow"), name="cats", toolsets=[])
    asks = tools(call("cats", {"task": "ask the cat"}))
    billing = agent(asks, text("done"), name="billing", toolsets=[], tools=[cats.as_tool()])
    triage = agent(tools(call("transfer_to_billing")), name="triage", toolsets=[], handoffs=[billing])
    result = triage.run_conversation("what did I pay?")
    _, out, _ = cli("sessions", "show", result.session_id)
    first, second = result.handoffs[0].turn_id, result.turn_id
    assert f"── {first}  completed  triage\n" in out
    assert "   agents\n   └── → billing continues\n" in out
    assert f"── {second}  completed  billing\n" in out
    child = result.children[0].turn_id
    line = next(line for line in out.splitlines() if child in line)
    assert line.startswith("   └── cats  ask the cat  text_response · scripted:")
    assert " · 15 tokens · cost " in line
    one, two = cli.json("sessions", "show", result.session_id)["turns"]
    assert (one["agent"], one["handed_to"], one["children"]) == ("triage", "billing", [])
    assert [(below["id"], below["agent"]) for below in two["children"]] == [(child, "cats")]


def test_show_cuts_long_results_unless_they_are_asked_for(cli: Cli, home: Path) -> None:
    one = talked(home, "go", script=[tools(call("lookup", {"city": "a\n" * 30})), text("done")])
    assert "23 lines more; --full shows them" in cli("sessions", "show", one.session_id)[1]
    assert "more; --full" not in cli("sessions", "show", one.session_id, "--full")[1]
    one = talked(home, "once more", script=[tools(call("lookup", {"city": "a" * 2000})), text("done")])
    cut, whole = (cli("sessions", "show", one.session_id, *full)[1] for full in ((), ("--full",)))
    assert "… long lines are cut; --full shows them" in cut
    assert cut.count("a") < 1000 < 2000 < whole.count("a")
    assert "long lines" not in whole


def test_effects_in_doubt_are_shown(cli: Cli, home: Path) -> None:
    session, turn = left_unfinished(home, [tools(call("book", {"city": "Rome"}))], 3)
    store = Store(home)
    place, asked = (turn, 3, 5, 0, "ExecuteTools"), '{"arguments": {"city": "Rome"}}'
    row = (*place, "RunTool", "book", "unsafe", "k", "in_flight", asked, 1.0)
    names = "turn, seq, ordinal, place, state, kind, name, class, key, status, request, at"
    store.database.write(
        lambda c: c.execute(f"INSERT INTO effects ({names}) VALUES ({', '.join('?' * 12)})", row) and None
    )
    store.close()
    shown = cli("sessions", "show", session)[1]
    told = "it was running when the turn was last seen (unsafe, after move 3)"
    assert f"! book  city=Rome\n     {told}" in shown
    (doubt,) = cli.json("sessions", "show", turn)["turns"][0]["effects_in_doubt"]
    assert [doubt[key] for key in ("name", "status", "arguments")] == ["book", "in_flight", {"city": "Rome"}]


def test_search(cli: Cli, home: Path) -> None:
    one = talked(home, "what about okapis?", "数据库设计")
    assert cli("sessions", "search", "absent") == (0, "nothing found for absent\n", "")
    code, out, err = cli("sessions", "search", "okapis")
    assert (code, err) == (0, "")
    assert out.startswith(f"{one.session_id}  what about okapis?\n  ")
    assert "    what about okapis?\n" in out
    assert "    数据库设计\n" in cli("sessions", "search", "数据")[1]
    assert "with some of them" in cli("sessions", "search", "okapis", "absent")[1]
    told = cli.json(
        "sessions", "search", "okapis", "--role", "user", "--days", "1", "--session", one.session_id
    )
    hit = told["hits"][0]
    assert (hit["snippet"], hit["marks"], hit["standing"]) == ("what about okapis?", [[11, 17]], "current")
    rest = {"query": "okapis", "looked_at": 1, "more": False, "relaxed": False, "waiting": 0}
    assert {k: told[k] for k in told if k != "hits"} == rest


# titles


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("fix the tests", "fix the tests"),
        ("  many   blanks\n\tand lines ", "many blanks and lines"),
        ("a sentence that is much longer than a title may be, so",
         "a sentence that is much longer than a title may"),
        ("x" * 100, "x" * 48),
        ("the key sk-abcdefghijk is mine", "the key sk-*** is mine"),
        ([{"type": "image_url"}, {"type": "text", "text": "what is this?"}], "what is this?"),
        ("\x1b[31mred\u202e", "[31mred"),
        ("👩\u200d👧 and می\u200cخواهم", "👩\u200d👧 and می\u200cخواهم"),
    ],
)  # fmt: skip
def test_titles_come_from_the_first_words(said: Any, title: str) -> None:
    assert first_words(said) == title


def test_a_session_has_a_title_of_its_own(home: Path) -> None:
    agents = [agent([text("x"), text("y")], home) for _ in range(11)]
    for one in agents:
        one.chat("hi there")
    titles = [one.title for one in agents]
    assert (titles[:3], len(set(titles))) == (["hi there", "hi there (2)", "hi there (3)"], 11)
    first = agents[0]
    assert first.rename("  greetings \n again ") == first.title == "greetings again"
    first.chat("more")
    assert first.title == "greetings again"
    with pytest.raises(ConfigError, match="another session is called so"):
        first.rename(titles[1])
    with pytest.raises(ConfigError, match="a session gets its title with its first turn"):
        agent([], home).rename("too early")
    for one in agents:
        one.close()
    assert Store(home).session(first.session_id).title == "greetings again"


def test_rename(cli: Cli, home: Path) -> None:
    one = talked(home, "hi")
    assert cli("sessions", "rename", one.session_id[:6], "a \x1b[2J new title")[:2] == (
        0, f"{one.session_id} is called “a [2J new title” now\n"
    )  # fmt: skip
    assert cli("sessions", "show", "a [2J new")[0] == 0


def test_names_of_sessions_and_turns(home: Path) -> None:
    one, other = talked(home, "alpha"), talked(home, "beta")
    store = store_for(str(home))
    turn = Turns(store.database).recent(1, one.session_id)[0].id
    for name in (one.session_id[:-2], "alpha", "alp"):
        assert find_session(store, name) == one.session_id
    assert one_of(store, turn) == one_of(store, turn[:-2]) == ("turn", turn)
    assert one_of(store, "beta") == ("session", other.session_id)
    assert any_turn(store, "alpha") == any_turn(store, turn) == turn


# undo


def home_of() -> str:
    return os.environ["FSM_AGENT_HOME"]


def said(one: Agent) -> list[Any]:
    return [row.content for row in store_for(home_of()).session(one.session_id).rows]


@pytest.mark.behaviour("SESS-12")
def test_undo_takes_the_last_turns_back_and_keeps_their_rows(cli: Cli, home: Path) -> None:
    with agent([text("1"), text("2"), text("3"), text("4")], home) as one:
        results = [one.run_conversation(words) for words in ("first", "second", "third")]
        undone = one.undo()
        assert (undone.turns, undone.asked, undone.rows) == ((results[2].turn_id,), "third", 4)
        assert said(one) == ["first", "1", "second", "2"]
        assert one.undo().turns == (results[1].turn_id,)
        again = one.run_conversation("other")
        assert [row["content"] for row in again.messages] == ["first", "1", "other", "4"]
        assert [row.content for row in store_for(home_of()).archived(one.session_id)] == [
            "second", "2", "third", "3",
        ]  # fmt: skip
    assert [row.content for row in Store(home).session(one.session_id).rows] == ["first", "1", "other", "4"]
    out = cli.ok("sessions", "undo", one.session_id, "--turns", "2")
    assert "2 turns of" in out
    assert "from “first” on; the transcript has 0 messages now" in out
    shown = cli("sessions", "show", one.session_id, "--all")[1]
    assert shown.count("undone") == 4
    assert "you  (put aside)\n  second" in shown
    assert Store(home).session(one.session_id).rows == []


@pytest.mark.parametrize("mode", ["in_place", "rotate"])
def test_undo_brings_back_what_a_compaction_put_aside(mode: str, home: Path) -> None:
    history = [
        {"role": ("user", "assistant")[n % 2], "content": f"line {n} " + "of a long talk " * 60}
        for n in range(40)
    ]
    with ScriptedServer([text("begun"), text("SUMMARY"), text("after"), text("again")]) as server:
        options: dict[str, Any] = {"base_url": server.url, "api_key": "k", "toolsets": [], "home": home}
        options["settings"] = {"compression": {"mode": mode}}
        one = Agent("openai:gpt-x", context_window=200_000, **options)
        before = [row["content"] for row in one.run_conversation("go", conversation_history=history).messages]
        session = one.session_id
        one.close()
        with Agent("openai:gpt-x", context_window=8_192, session_id=session, **options) as one:
            result = one.run_conversation("more")
            assert len(result.compressions) == 1
            assert (one.session_id != session) == (mode == "rotate")
            assert one.undo().turns == (result.turn_id,)
            assert said(one) == before
            assert not {row.content for row in store_for(home_of()).archived(one.session_id)} & set(before)
        with Agent("openai:gpt-x", context_window=200_000, session_id=session, **options) as one:
            final = one.run_conversation("and now?")
            assert [row["content"] for row in final.messages] == [*before, "and now?", "again"]
            assert one.undo(2).rows == 0, "the first turn was in the session that went on as this one"


def test_undo_of_a_turn_that_was_left_unfinished(home: Path) -> None:
    with agent([text("1")], home) as one:
        one.chat("first")
        session = one.session_id
    _, turn = left_unfinished(
        home, [tools(call("lookup", {"city": "Bern"}))], 4, "second", session_id=session
    )
    with agent([text("3")], home, session_id=session, store=Store(home)) as one:
        assert said(one) == ["first", "1", "second", None, "Bern: sunny"]
        assert one.undo().turns == (turn,)
        assert said(one) == ["first", "1"]
        assert one.journal.info(turn).exit == "abandoned"
        with pytest.raises(ConfigError, match="nothing to resume"):
            one.resume(turn)
        assert one.chat("third") == "3"


def test_undo_of_a_fork_goes_back_before_the_question(home: Path) -> None:
    with agent([text("1"), text("2"), text("3")], home) as one:
        one.chat("first")
        second = one.run_conversation("second")
        forked = one.fork(second.turn_id, at=2).run()
        other = agent([], home, session_id=forked.session_id)
        assert said(other) == ["first", "1", "second", "3"]
        other.undo()
        assert said(other) == ["first", "1"]
        with agent([], home, session_id=second.session_id) as origin:
            assert said(origin) == ["first", "1", "second", "2"], "the turn that it was forked from stays"
    other.close()


def test_undo_is_refused_while_another_process_uses_the_session(home: Path) -> None:
    one = agent([text("1"), text("2")], home)
    one.chat("first")
    elsewhere = Store(home)  # with an owner of its own, as another process has

    async def held() -> None:
        async with elsewhere.held(one.session_id, "compacting"):
            with pytest.raises(SessionBusy, match="turn compacting is running"):
                await one.aundo()

    asyncio.run(held())
    with agent([text("2")], home, session_id=one.session_id, store=elsewhere) as other:
        paused = other.start("second")
        asyncio.run(paused.step())
        elsewhere.let_go(paused.id)
        elsewhere.database.write(lambda c: None)
        with pytest.raises(SessionBusy, match=f"turn {paused.id} is running"):
            one.undo()
        assert paused.run().final_response == "2"
        assert one.undo().turns == (paused.id,)
        one.close()


# Continuing a session


@pytest.mark.behaviour("SESS-08b")
def test_resume_goes_on_live(cli: Cli, home: Path) -> None:
    with ScriptedServer([tools(call("get_time")), text("it is late")]) as server:
        _, turn = left_unfinished(home, [], 3, "what time is it?", model="local:m", base_url=server.url)
        code, out, err = cli("sessions", "resume", "--verbose")
        assert (code, out) == (0, "it is late\n")
        assert err.startswith(f"  continuing “what time is it?”, {turn}, ")
        assert re.search(r"^  ExecuteTools +done +→ BuildMessages", err, re.MULTILINE)
        assert err.splitlines()[-1].startswith("completed · local:m · 2 requests")
        assert "nothing to resume" in cli("sessions", "resume", turn)[2]


def test_a_stored_address_of_another_machine_is_not_believed(cli: Cli, home: Path) -> None:
    _, turn = left_unfinished(home, [text("x")], 1)
    store = Store(home)
    start = '{"runtime": {"provider": "local", "model": "m", "base_url": "http://evil.example/v1"}}'
    store.database.write(
        lambda c: (
            c.execute("UPDATE turns SET start = json_patch(start, ?), start_crc = NULL", (start,)) and None
        )
    )
    store.database.write(
        lambda c: c.execute("UPDATE transitions SET delta = '{}', delta_crc = NULL") and None
    )
    store.close()
    err = cli.refused("sessions", "resume", turn)
    assert "provider 'local' needs an address" in err


def test_fork_with_an_edit(cli: Cli, home: Path) -> None:
    with ScriptedServer([text("first"), text("another")]) as server:
        assert cli("run", "hello", "--model", "local:m", "--base-url", server.url)[0] == 0
        session = cli.json("sessions", "list")[0]["id"]
        told = cli.json("sessions", "fork", session, "--at", "1", "--edit", '{"user_message": "goodbye"}')
        assert told["final_response"] == "another"
        assert server.bodies[1]["messages"][-1]["content"] == "goodbye"
        listed = cli.json("sessions", "list")
        assert [(one["kind"], one["title"]) for one in listed] == [("fork", "hello (2)"), ("root", "hello")]
        assert "(fork) hello (2)" in cli("sessions", "list")[1]


@pytest.mark.behaviour("SESS-08b")
def test_run_goes_on_in_a_session(cli: Cli, home: Path) -> None:
    with ScriptedServer([text("Hello Ada."), text("You are Ada.")]) as server:
        options = ("--model", "local:m", "--base-url", server.url)
        cli("run", "I am Ada", *options)
        assert cli("run", "who am I?", "--session", "I am", *options)[0] == 0
        sent = [row["content"] for row in server.bodies[1]["messages"]][1:]
        assert sent == ["I am Ada", "Hello Ada.", "who am I?"]
    assert cli("run", "x", "--session", "nowhere", "--model", "offline:demo")[0] == 2
    assert cli.json("sessions", "list")[0]["turns"] == 2


def chat(home: Path, lines: str, *options: str) -> str:
    """The status lines, and then the answers."""
    done = ran("-m", "fsm_agent", "chat", "--home", home, *options, input=lines, check=True)
    return done.stderr + done.stdout


@pytest.mark.slow
def test_chat_continues_and_undoes(home: Path) -> None:
    with ScriptedServer([text("one"), text("two"), text("three")]) as server:
        options = ("--model", "local:m", "--base-url", server.url)
        out = chat(
            home, "/title\nfirst\nsecond\n/undo\n/undo 7\n/undo x\n/title my talk\n/title\nthird\n", *options
        )
        assert "The session gets its title with its first turn." in out
        assert "Taken back, from “second” on; the transcript has 2 messages now." in out
        assert "this number of turns cannot be undone; given: 7; allowed: 1" in out
        assert "this number of turns cannot be undone; given: x; allowed: a number" in out
        assert out.count("The session is called “my talk”.") == 2
        session = json.loads(json.dumps(re.search(r"fsm-agent chat --session (\S+)", out).group(1)))
        assert [row["content"] for row in server.bodies[2]["messages"]][1:] == ["first", "one", "third"]
    resumed = chat(home, "", "--model", "offline:demo", "--session", "my talk")
    assert f"my talk  {session}" in resumed
    assert "› third\n\nthree\n" in resumed
    assert "second" not in resumed


@pytest.mark.slow
def test_chat_offers_to_resume(home: Path) -> None:
    session, _ = left_unfinished(home, [tools(call("book", {"city": "Rome"}))], 3, "book a room")
    out = chat(home, "/resume\n", "--model", "offline:demo", "--session", session)
    assert "its last turn was left unfinished in ExecuteTools, after 3 moves: “book a room”" in out
    assert "/resume continues it" in out
    assert re.search(r"^completed · ", out, re.MULTILINE)
    out = chat(home, "/resume\n", "--model", "offline:demo", "--session", session)
    assert "left unfinished" not in out
    assert "nothing to resume: the turn ended with" in out


@pytest.mark.slow
def test_chat_reminds_of_what_was_left(home: Path) -> None:
    _, turn = left_unfinished(home, [text("x")], 1, "book a room")
    out = chat(home, "", "--model", "offline:demo")
    assert f"a turn was left unfinished: “book a room”\n  fsm-agent sessions resume {turn}\n" in out
    talked(home, "something newer")
    assert "left unfinished" not in chat(home, "", "--model", "offline:demo")


# carrying elsewhere


STORED_WORDS = {
    "session": ("title", "source", "model"), "turn": ("asked", "exit", "outcome"), "move": ("row", "exit"),
    "effect": ("name", "safety"), "usage": ("purpose", "provider", "model"),
}  # fmt: skip
"""What a line of a file may hold any words in, and what is shown of it."""


def test_no_word_of_an_imported_session_steers_the_terminal(cli: Cli, home: Path, tmp_path: Path) -> None:
    evil = "e\x1b]0;owned\x07\u202e"
    script = [tools(call("lookup", {"city": "Bern"}), call("book", {"city": "Oslo"})), text("Sunny.")]
    talked(home, "weather and a room", script=script)
    lines = [json.loads(line) for line in cli("sessions", "export", "weather")[1].splitlines()]
    for line in lines:
        line |= dict.fromkeys(STORED_WORDS.get(line["kind"], ()), evil)
        if line["kind"] == "effect" and line["type"] == "RunTool":
            line["status"] = "unknown"
    file = tmp_path / "evil.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = ("--home", str(tmp_path / "other"))
    assert cli("sessions", "import", str(file), *other)[0] == 0
    (session,) = [line["id"] for line in lines if line["kind"] == "session"]
    shown = ""
    for command in (["list"], ["show", session, "--moves", "--all"], ["search", "weather"]):
        code, out, err = cli("sessions", *command, *other)
        assert (code, err) == (0, "")
        shown += out
    shown += cli("insights", *other)[1]
    assert not CONTROL.search(shown)
    assert "\u202e" not in shown


def test_export_and_import(cli: Cli, home: Path, tmp_path: Path) -> None:
    one = talked(home, "the key is sk-abcdefghijkl")
    file = tmp_path / "out.jsonl"
    code, out, err = cli("sessions", "export", one.session_id, "-o", str(file))
    assert (code, out) == (0, "")
    assert re.search(r"session \S+: \d+ lines in .*out\.jsonl, secrets masked", err)
    assert file.stat().st_mode & 0o077 == 0
    assert "sk-abcdefghijkl" not in file.read_text()
    assert cli("sessions", "export", one.session_id)[1] == file.read_text()
    assert "sk-abcdefghijkl" in cli("sessions", "export", one.session_id, "--raw")[1]
    other = str(tmp_path / "other")
    code, out, _ = cli("sessions", "import", str(file), "--home", other)
    assert (code, out) == (0, f"session {one.session_id}: 1 turn and 2 messages imported\n")
    again = cli("sessions", "import", str(file), "--home", other)[1]
    assert "under new ids, because it was here already" in again
    told = cli.json("sessions", "import", str(file), "--home", other)
    assert (told["copied"], told["turns"], told["unfinished"]) == (True, 1, [])
    exported = cli("sessions", "export", told["id"], "--home", other)[1]
    assert json.loads(exported.splitlines()[1])["title"] == "the key is sk-*** (3)"
    trajectory = json.loads(cli("sessions", "export", one.session_id, "--format", "sharegpt")[1])
    assert [row["from"] for row in trajectory["conversations"]] == ["system", "human", "gpt"]


@pytest.mark.slow
def test_a_turn_is_exported_as_a_test_that_is_green(cli: Cli, home: Path) -> None:
    with ScriptedServer([status(503), text("blue")]) as server:
        assert cli("run", "What color?", "--model", "local:m", "--base-url", server.url)[0] == 0
    one = cli.json("sessions", "list")[0]
    source = cli.ok("sessions", "export", one["last_turn"], "--format", "pytest")
    names: dict[str, Any] = {}
    exec(compile(source, "test_made.py", "exec"), names)
    names["test_turn"]()
    code, _, err = cli("sessions", "export", one["id"], "--format", "pytest")
    assert (code, err.startswith("fsm-agent: a test is made of one turn")) == (2, True)
