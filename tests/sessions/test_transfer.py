"""What is exported is imported again, here and elsewhere; what is not whole is refused; trajectories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.agent import Agent
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.export import (
    KINDS,
    export_session,
    export_turn,
    save_trajectory,
    session_trajectory,
    turn_trajectory,
)
from fsm_agent.sessions.store.importing import Imported, import_lines
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import call, text, tools
from tests.helpers.store_homes import ROTATE, agent, contents, left_unfinished

HEAD = '{"kind":"fsm-agent","format":1,"of":"session","id":"s","masked":true}'
KEY = "sk-abcdefghijklmnop"


def made(home: Path) -> tuple[Agent, list[str]]:
    """A session of three turns with tools, one of them compacted into another session, and a fork of the
    first."""
    history = [
        {"role": ("user", "assistant")[n % 2], "content": f"line {n} " + "of a long talk " * 30}
        for n in range(40)
    ]
    script = [
        tools(call("lookup", {"city": "Bern"}), call("book", {"city": "Oslo"})), text("first \ud800 answer"),
        text("second"), text("SUMMARY of it all"), text("third"), text("forked"),
    ]  # fmt: skip
    one = agent(script, home, settings=ROTATE)
    turns = [one.run_conversation(f"the key is {KEY}, {'x' * 50}").turn_id]
    turns.append(one.run_conversation("continue", conversation_history=history).turn_id)
    one.compact()
    turns.append(one.run_conversation("third").turn_id)
    turns.append(one.fork(turns[0], at=3).run().turn_id)
    return one, turns


@dataclass
class Busy:
    """That session, and its turns."""

    database: Database
    session: str
    turns: list[str]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    path = tmp_path_factory.mktemp("busy")
    one, turns = made(path)
    session = one.journal.info(turns[0]).session
    assert one.journal.info(turns[2]).session != session, "the session went on as another one"
    one.close()
    return Busy(store_for(str(path)).database, session, turns)


def ways(busy: Busy, raw: bool) -> dict[str, list[str]]:
    database, session, turns = busy.database, busy.session, busy.turns
    fork = Turns(database).info(turns[3]).session
    return {
        "session": list(export_session(database, session, raw=raw)),
        "fork": list(export_session(database, fork, raw=raw)),
        "turn": list(export_turn(database, turns[0], raw=raw)),
        "turn after a compaction": list(export_turn(database, turns[2], raw=raw)),
        "forked turn": list(export_turn(database, turns[3], raw=raw)),
    }


def again(store: Store, done: Imported, raw: bool) -> list[str]:
    return list((export_session if done.of == "session" else export_turn)(store.database, done.id, raw=raw))


@pytest.mark.parametrize("raw", [True, False])
def test_what_is_exported_and_imported_is_exported_again(busy: Busy, raw: bool, tmp_path: Path) -> None:
    for name, lines in ways(busy, raw).items():
        assert all(line.isascii() and "\n" not in line for line in lines)
        store = Store(tmp_path / f"{name} {raw}")
        done = import_lines(store, lines)
        assert not done.copied
        assert again(store, done, raw) == lines, name
        store.close()


def test_a_turn_brings_its_session_as_it_was(busy: Busy, tmp_path: Path) -> None:
    journal, turns = Turns(busy.database), busy.turns
    for turn in (turns[0], turns[3]):
        store = Store(tmp_path / turn)
        import_lines(store, export_turn(busy.database, turn, raw=True))
        there = Turns(store.database)
        for what in (Turns.steps, Turns.messages, Turns.result):
            assert what(there, turn) == what(journal, turn)
        rows = [row.to_dict() for row in store.session(journal.info(turn).session).rows]
        assert rows[-1]["content"] == ("first \ufffd answer" if turn == turns[0] else "forked")
        assert rows[: len(journal.messages(turn))] == journal.messages(turn)
        later = store.archived(journal.info(turn).session)
        assert later == [], "what was put aside later was still in use then"
        store.close()


def test_an_imported_session_continues(busy: Busy, tmp_path: Path) -> None:
    store = Store(tmp_path)
    import_lines(store, ways(busy, raw=True)["session"])
    one = agent([text("fourth")], tmp_path, store=store, session_id=busy.session)
    result = one.run_conversation("and now?")
    assert contents(result.messages)[-4:] == ["third", "third", "and now?", "fourth"]
    one.close()


def test_what_is_there_already_gets_new_ids(busy: Busy, store: Store) -> None:
    for name, lines in ways(busy, raw=True).items():
        first, second = import_lines(store, lines), import_lines(store, lines)
        assert second.copied
        assert set(second.sessions).isdisjoint(first.sessions)
        copies = again(store, second, raw=True)
        assert len(copies) == len(lines), name
        old = {json.loads(line).get("id") for line in lines} - {None}
        assert not any(f'"{one}"' in "\n".join(copies) for one in old), "no id of the original is left"
        kinds = [json.loads(line)["kind"] for line in copies]
        assert kinds == [json.loads(line)["kind"] for line in lines]
    titles = store.database.select("SELECT title FROM sessions WHERE title != ''")
    assert len(titles) == len(set(titles))


def test_who_reads_the_lines_may_read_and_write_other_things_between(tmp_path: Path) -> None:
    one = agent([text("a"), text("b")], tmp_path)
    one.chat("first")
    lines = []
    for line in export_session(one.store.database, one.session_id):
        if not lines:
            one.chat("second")
        assert one.journal.recent(1)
        lines.append(line)
    assert sum('"kind":"turn"' in line for line in lines) in (1, 2)
    store = Store(tmp_path / "other")
    assert import_lines(store, lines).of == "session"
    next(iter(export_session(one.store.database, one.session_id)))
    store.close()
    one.close()


def test_secrets_are_masked_unless_they_are_asked_for(busy: Busy) -> None:
    database, turns = busy.database, busy.turns
    assert KEY in "\n".join(export_session(database, busy.session, raw=True))
    for lines in ways(busy, raw=False).values():
        assert KEY not in "\n".join(lines)
        assert json.loads(lines[0])["masked"] is True
    assert "xxxxx" not in "\n".join(export_turn(database, turns[0], secrets=["x" * 50]))
    assert KEY not in json.dumps(turn_trajectory(database, turns[0]))
    assert KEY in json.dumps(turn_trajectory(database, turns[0], raw=True))


def test_values_under_secret_names_are_masked(tmp_path: Path) -> None:
    one = agent([text("ok")], tmp_path)
    turn, database = one.run_conversation("hi").turn_id, one.store.database
    blocks = '[{"api_key":"plainvalue","password":"p w","max_tokens":"9"}]'
    body = f'{{"role":"user","content":"hi","blocks":{blocks}}}'
    database.write(
        lambda c: (
            c.execute("UPDATE messages SET body = ?, body_crc = NULL WHERE number = 1", (body,)) and None
        )
    )
    shown = "\n".join(export_turn(database, turn))
    assert "plainvalue" not in shown
    assert "p w" not in shown
    assert '"max_tokens":"9"' in shown
    one.close()


def test_an_unfinished_turn_is_resumed_elsewhere_but_never_twice_here(tmp_path: Path) -> None:
    session, turn = left_unfinished(tmp_path / "a", [tools(call("book", {"city": "Rome"}))], 3)
    lines = list(export_session(Store(tmp_path / "a").database, session, raw=True))
    elsewhere = Store(tmp_path / "b")
    done = import_lines(elsewhere, lines)
    assert done.unfinished == (turn,)
    copy = import_lines(elsewhere, lines)
    assert copy.unfinished == ()
    one = agent([text("booked it")], tmp_path / "b", store=elsewhere)
    with pytest.raises(ConfigError, match="nothing to resume: the turn ended with abandoned"):
        one.resume(copy.id)
    assert one.resume(turn).run().final_response == "booked it"
    one.close()


# what is not taken


@pytest.fixture(scope="module")
def exported(busy: Busy) -> list[str]:
    """The lines of one turn."""
    return ways(busy, raw=True)["turn"]


def changed(lines: list[str], kind: str, **fields: Any) -> list[str]:
    """The first line of a kind with other fields."""
    place = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    return [*lines[:place], json.dumps(json.loads(lines[place]) | fields), *lines[place + 1 :]]


def number_of(lines: list[str], kind: str) -> int:
    return next(n for n, line in enumerate(lines, 1) if json.loads(line)["kind"] == kind)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("session", {"id": 7}, "session: id: Input should be a valid string"),
    ("session", {"color": "red"}, "session: color: Extra inputs are not permitted"),
    ("session", {"type": "boss"}, "session: type: Input should be 'root'"),
    ("session", {"title": "\ud800"}, "session: title: this text has half a surrogate pair"),
    ("session", {"created": "now"}, "session: created: Input should be a valid number"),
    ("session", {"created": float("nan")}, "session: created: Input should be a finite number"),
    ("session", {"parent": "s-nowhere"}, "parent s-nowhere is not in the file"),
    ("session", {"meter": {"tokens": 1, "ratio": {}}, "guard": {"nonsense": 1}, "prompts": {"": 3}}, "prompts: "),
    ("turn", {"seq": 2}, "its moves are not numbered 1 to 2"),
    ("turn", {"state": "Prepare"}, "it is in Prepare, but its last move leads to Finalize"),
    ("turn", {"forked_at": 1}, "a forked turn names both parent and forked_at"),
    ("turn", {"session": "s-nowhere"}, "session s-nowhere is not in the file"),
    ("turn", {"start": {"history": [], "rows": []}}, "start: history must be"),
    ("message", {"role": "tool"}, "role is not that of the body"),
    ("message", {"role": "boss"}, "message: role: Input should be"),
    ("message", {"body": {"role": "user", "content": 7}}, "a message's content has the wrong type"),
    ("message", {"number": -1}, "message: number: Input should be greater than or equal to 0"),
    ("message", {"number": 2**60}, "message: number: Input should be less than or equal to"),
    ("message", {"active": 1}, "message: active: Input should be a valid boolean"),
    ("move", {"seq": 9}, "its moves are not numbered"),
    ("move", {"delta": {"rows": {"kept": "x"}}}, "delta does not fit what was before it"),
    ("move", {"delta": {"history": {"to": ["s-nowhere", 0, 1, 1]}}}, "delta: session s-nowhere is not in the file"),
    ("move", {"guards": [["left", "maybe"]]}, "move: guards.0.1: Input should be a valid boolean"),
    ("effect", {"status": "perhaps"}, "effect: status: Input should be 'in_flight', 'done' or 'unknown'"),
    ("effect", {"turn": "t-nowhere"}, "turn t-nowhere is not in the file"),
]  # fmt: skip


def test_a_bad_line_is_named_and_nothing_is_stored(exported: list[str], store: Store) -> None:
    for kind, fields, says in WRONG:
        with pytest.raises(ConfigError) as caught:
            import_lines(store, changed(exported, kind, **fields), "file.jsonl")
        message, whole = str(caught.value), "numbered" in says or "leads to" in says
        assert says in message
        number = "" if whole else f"{number_of(exported, kind)}: "
        assert message.startswith(f"file.jsonl cannot be imported: line {number}")
    for table in ("sessions", "turns", "messages", "transitions", "effects"):
        assert store.database.select(f"SELECT COUNT(*) FROM {table}") == [(0,)]


NO_EXPORTS: list[tuple[list[str], str]] = [
    ([], "line 1: there is nothing in it"),
    (["hello"], "line 1: this is not a JSON object"),
    (["[1]"], "line 1: this is not a JSON object"),
    (['{"kind": "session"}'], 'line 1: the first line must be {"kind": "fsm-agent"'),
    (['{"kind":"fsm-agent","format":2}'], "line 1: format 2 is of another version"),
    ([HEAD], 'line 1: the file was cut: its last line must be {"kind": "end"'),
    ([HEAD, '{"kind":"end","lines":2}'], "line 2: 1 lines come before the end, 2 were written"),
    ([HEAD, '{"kind":"end","lines":1}'], "line 1: the session that it names is not in the file"),
    ([HEAD, '{"kind":"end","lines":1}', ""], "line 3: there is nothing behind the end"),
    ([HEAD, '{"kind":"boss"}'], "line 2: unknown kind 'boss'"),
]  # fmt: skip


def test_a_file_that_is_not_an_export(store: Store) -> None:
    for lines, says in NO_EXPORTS:
        with pytest.raises(ConfigError, match="cannot be imported") as caught:
            import_lines(store, lines)
        assert says in str(caught.value)


def test_lines_that_are_there_twice_or_lead_round(busy: Busy, store: Store) -> None:
    lines = ways(busy, raw=True)["session"]
    for kind in ("session", "turn", "message", "move", "effect", "transcript"):
        place = number_of(lines, kind)
        with pytest.raises(ConfigError, match=f"the {kind} .* is in the file twice|circle"):
            import_lines(store, [*lines[:-1], lines[place - 1], f'{{"kind":"end","lines":{len(lines)}}}'])
    own = json.loads(lines[number_of(lines, "session") - 1])["id"]
    with pytest.raises(ConfigError, match="parent leads round in a circle"):
        import_lines(store, changed(lines, "session", parent=own))


def test_any_line_that_is_missing_or_cut_is_noticed(busy: Busy, store: Store) -> None:
    lines = ways(busy, raw=True)["turn"]
    for place, line in enumerate(lines):
        for instead in ([], [line[: len(line) // 2]], [line, line]):
            with pytest.raises(ConfigError, match="cannot be imported: line"):
                import_lines(store, [*lines[:place], *instead, *lines[place + 1 :]])
    assert store.database.select("SELECT COUNT(*) FROM sessions") == [(0,)]


def test_every_column_is_exported_or_belongs_to_this_machine(store: Store) -> None:
    """A column that is added to the schema must be added here too, or be left out on purpose."""
    own = {
        "sessions": {"revision", "holder", "owner"}, "turns": {"owner", "imported", "rank", "number"},
        "messages": {"id"}, "usage": {"id"},
    }  # fmt: skip
    for line in KINDS.values():
        there = {row[1] for row in store.database.select(f"PRAGMA table_info({line.table})")}
        assert there - set(line.stored_columns()) == own.get(line.table, set()), line.table


# trajectories


@pytest.mark.behaviour("FIN-07", "SESS-14")
def test_a_trajectory_in_the_sharegpt_form(busy: Busy, tmp_path: Path) -> None:
    database, turns = busy.database, busy.turns
    told = turn_trajectory(database, turns[0])
    assert [one["from"] for one in told["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    system, human, asks, results, answer = (one["value"] for one in told["conversations"])
    assert '"name": "lookup"' in system
    assert human.startswith("the key is sk-***")
    assert asks.count("<tool_call>") == asks.count("</tool_call>") == results.count("<tool_response>") == 2
    asked = json.loads(asks.split("<tool_call>")[1].split("</tool_call>")[0])
    assert asked == {"name": "lookup", "arguments": {"city": "Bern"}}
    said = json.loads(results.split("<tool_response>")[2].split("</tool_response>")[0])
    assert (said["name"], "no rooms left" in said["content"]) == ("book", True)
    assert answer == "first \ufffd answer"
    assert told["completed"] is True
    assert told["timestamp"].endswith("Z")
    whole = session_trajectory(database, busy.session)
    assert whole["conversations"][0]["from"] == "system"
    file = tmp_path / "deep" / "all.jsonl"
    for turn in turns[:2]:
        save_trajectory(database, turn, file)
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == turns[:2]
