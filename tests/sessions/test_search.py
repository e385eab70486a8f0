"""Searching what was said: words in any script, filters, the index beside it, and what an agent recalls."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.rows import json_with_checksum, loads
from fsm_agent.sessions.store.search import SCAN, Among, catch_up, keep_up, pending, search, snippet_of
from fsm_agent.sessions.store.search.indexes import SqliteIndex
from fsm_agent.sessions.store.search.text_analysis import fold, plain_text, query_of
from fsm_agent.testing import call, text, tools
from fsm_agent.toolsets.agent.recall import around, by_words, recent
from tests.helpers.store_homes import agent, left_unfinished, written
from tests.helpers.waiting import until


def found(store: Store, words: str, **options: object) -> list[str]:
    among = Among(**options)
    return sorted(hit.text for hit in search(store.database, words, among, limit=100).hits)


# words

TEXTS = [
    "Check the database, then foo_bar(baz) in path/to/file.py", "naïve Café in STRASSE 12",
    "请检查数据库设计文档 in Python", "日本語のテキストを検索する", "한국어를 검색합니다", "ภาษาไทยไม่มีช่องว่าง 🔥 hot",
    "it's C++ and rm -rf; a=>b", "ＦＵＬＬ width",
]  # fmt: skip
FINDS: dict[tuple[int, ...], list[str]] = {
    (0,): ["database", "DataBase", "data*", "foo_bar", "bar foo", '"foo bar baz"', "to/file.py"],
    (1,): ["cafe naive", "CAFÉ"],
    (2,): ["数", "数据", "数据库", "据库设计文", "检查 文档", "文档python", "python"],
    (3,): ["テキスト", "検"],
    (4,): ["검색", "국어를"],
    (5,): ["ไม่มี", "🔥", "hot"],
    (6,): ["c++", "-rf", "it's"],
    (7,): ["full"],
    (0, 5): ["database OR hot"],
    (0, 1): ["in NOT python"],
    (): ["data", "da*", '"bar foo"', "库数", "NOT python", "", "=>", '"'],
}
QUOTED = ['"""', "'; --", "\x00a", "\ud800", "a:b^2", "^a", "words : x", "{words}: x"]
OPERATORS = ["* OR NOT (", "( AND )", "a NEAR b", "OR OR"]


def test_what_words_find(shared: Store) -> None:
    for numbers, searches in FINDS.items():
        for words in searches:
            assert found(shared, words) == sorted(TEXTS[number] for number in numbers), words
    assert found(shared, "in NOT python NOT cafe") == [TEXTS[0]]


def test_no_search_is_an_error(shared: Store) -> None:
    for words in (*QUOTED, *OPERATORS):
        search(shared.database, words)


@given(words=st.text(max_size=40))
def test_no_text_is_an_error_for_the_index(words: str, shared: Store) -> None:
    search(shared.database, words)


@given(
    texts=st.lists(st.text("数据库设検ไก a", min_size=1, max_size=12), min_size=1, max_size=5),
    word=st.text("数据库設検ไก", min_size=1, max_size=4),
)
def test_scripts_without_blanks_are_found_as_the_text_has_them(
    texts: list[str], word: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The index gives exactly the messages that hold these characters side by side."""
    store = Store(tmp_path_factory.mktemp("home"))
    written(store, [{"role": "tool", "content": f"{one} {n}"} for n, one in enumerate(texts)])
    assert found(store, word) == sorted(f"{one} {n}" for n, one in enumerate(texts) if word in one)
    store.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("shared"))
    written(made, TEXTS)
    yield made
    made.close()


def calling(words: str | None, arguments: str) -> dict[str, Any]:
    """A row of the model's with a call."""
    asked = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    return {"role": "assistant", "content": words, "tool_calls": [asked]}


def test_half_a_surrogate_pair_does_not_keep_the_others_from_being_found(store: Store) -> None:
    """Models write such in the arguments of a call, and no database takes it: one message must not stop the
    whole index."""
    written(store, ["a first", calling("half \ud83d of it", '{"key": "needle \\ud83d"}'), "the last"])
    words = {"first": 1, "needle": 2, "half": 2, "last": 3}
    assert {word: search(store.database, word).hits[0].number for word in words} == words
    search(store.database, "needle").hits[0].text.encode()


def test_what_tools_were_asked_is_found_too(store: Store) -> None:
    row = calling(None, '{"path": "notes/plan.md", "lines": ["a\\nzebra"]}')
    parts = [{"type": "text", "text": "an okapi"}, {"type": "image_url", "image_url": {"url": "x"}}]
    written(store, [row, {"role": "user", "content": parts}])
    assert found(store, "plan.md") == found(store, "zebra") == [plain_text(row)]
    assert found(store, "okapi") == ["an okapi\n[image]"]
    assert found(store, "image_url") == []


def test_places_in_a_folded_text_are_places_in_the_text() -> None:
    for one in (*TEXTS, "e\u0301te\u0301", "İstanbul ß ﬁ Ⅷ"):
        assert len(fold(one)) in (len(one), len(one) - one.count("\u0301"))


# order, filters, standing


def test_the_best_of_the_newest(store: Store) -> None:
    written(store, ["needle needle needle", *("filler words" for _ in range(10))], "s-old")
    written(store, [f"a needle in message {n} " + "and much else " * (n % 7) for n in range(SCAN)], "s-new")
    got = search(store.database, "needle", limit=5)
    assert (got.looked_at, got.more) == (SCAN, True)
    assert {hit.session for hit in got.hits} == {"s-new"}, "an older hit is not ranked, however good it is"
    assert got.hits[0].score >= got.hits[-1].score
    assert len(got.hits[0].text) < 40
    newest = search(store.database, "needle", limit=3, newest=True).hits
    assert [hit.text.split()[4] for hit in newest] == ["299", "298", "297"]


def test_some_of_the_words_when_no_message_has_all(store: Store) -> None:
    written(store, ["the alpha rises", "the omega falls"])
    got = search(store.database, "alpha omega")
    assert (got.relaxed, len(got.hits)) == (True, 2)
    assert not search(store.database, "alpha rises").relaxed


def test_filters(store: Store) -> None:
    day = 86_400
    of_a_tool = {"role": "tool", "content": "word of a tool"}
    written(store, ["word of the user", "word of the agent", of_a_tool], "s-1")
    written(store, ["word from last week"], "s-2", at=store.now() - 6 * day)
    written(store, ["word from last year"], "s/ö 3", at=store.now() - 360 * day)
    written(store, ["word of a child"], "s-4", kind="child", parent="s-1")
    assert found(store, "word", roles=["tool"]) == ["word of a tool"]
    assert found(store, "word", roles=["tool", "assistant"]) == ["word of a tool", "word of the agent"]
    assert found(store, "word", session="s/ö 3") == ["word from last year"]
    assert [len(found(store, "word", days=days)) for days in (5, 6.5, 50, 500, None)] == [3, 4, 4, 5, 5]
    assert "word of a child" in found(store, "word", children=True)
    assert found(store, "word", session="s-4") == ["word of a child"]
    assert found(store, "word", without=["s-1", "s-2"]) == ["word from last year"]
    with pytest.raises(ConfigError, match="no such role"):
        Among(roles=["boss"])
    with pytest.raises(ConfigError, match="days are out of range"):
        Among(days=0)


def test_what_was_undone_or_put_aside_is_found_and_marked(tmp_path: Path) -> None:
    one = agent([text("first answer"), text("second answer")], tmp_path)
    one.chat("an okapi")
    one.chat("a zebra")
    one.undo()
    database = one.store.database
    assert [hit.standing for hit in search(database, "zebra").hits] == ["undone"]
    assert [hit.standing for hit in search(database, "okapi").hits] == ["current"]
    database.write(lambda c: c.execute("UPDATE messages SET active = 0 WHERE number = 1") and None)
    assert [hit.standing for hit in search(database, "okapi").hits] == ["put aside"]
    (body,) = database.select("SELECT body, body_crc FROM messages WHERE number = 1")
    summary = json_with_checksum(loads(*body) | {"summary": True})
    as_summary = "UPDATE messages SET active = ?, body = ?, body_crc = ? WHERE number = 1"
    for active, standing in ((0, "put aside"), (1, "summary")):
        database.write(lambda c, active=active: c.execute(as_summary, (active, *summary)) and None)
        assert [hit.standing for hit in search(database, "okapi").hits] == [standing]
    one.close()


def test_what_a_visit_wrote_that_was_run_again_is_not_found(tmp_path: Path) -> None:
    script = [tools(call("lookup", {"city": "Bern"}))]
    session, _ = left_unfinished(tmp_path, script, 3, "the okapi question")
    one = agent([text("done")], tmp_path)
    database = one.store.database
    insert = (
        "INSERT INTO messages (session, number, version, at, role, body) VALUES (?, 99, 0, 1, 'assistant', ?)"
    )
    body = '{"role":"assistant","content":"half an okapi"}'
    database.write(lambda c: c.execute(insert, (session, body)) and None)
    assert len(search(database, "okapi").hits) == 2
    one.resume(session).run()
    assert [hit.text for hit in search(database, "okapi").hits] == ["the okapi question"]
    one.close()


def test_a_fork_says_nothing_twice(tmp_path: Path) -> None:
    one = agent([text("an answer"), text("another answer")], tmp_path)
    result = one.run_conversation("the okapi question")
    forked = one.fork(result.turn_id, at=2).run()
    assert forked.session_id != result.session_id
    hits = search(one.store.database, "okapi").hits
    assert [(hit.lineage, hit.text) for hit in hits] == [(result.session_id, "the okapi question")]
    assert len(search(one.store.database, "answer").hits) == 2
    one.close()


# the index


def test_the_index_is_filled_in_batches_beside_running_turns(store: Store) -> None:
    written(store, [f"message {n}" for n in range(300)])
    assert pending(store.database) == 300
    commits = store.database.commits
    keep_up(store.database)
    until(lambda: pending(store.database) == 0, "the index of all")
    assert store.database.commits - commits >= 300 // 64
    assert len(found(store, "message", session="s-1")) == 100


def test_two_may_index_at_once(store: Store) -> None:
    written(store, [f"message {n}" for n in range(500)])
    other = Store(store.home)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(catch_up, (store.database, other.database)))
    other.close()
    assert search(store.database, "message").looked_at == SCAN
    count = "SELECT COUNT(*) FROM message_index WHERE message_index MATCH 'message'"
    assert store.database.select(count) == [(500,)]


def test_others_write_while_much_is_indexed(store: Store) -> None:
    """Between two batches nothing is locked: a writer does not wait then."""
    written(store, ["a message of many words, " * 40 for _ in range(4_000)])
    other, left = Store(store.home), []

    def between(done: int, total: int) -> None:
        other.database.write(lambda c: c.execute("INSERT OR REPLACE INTO marks VALUES ('test', 1)") and None)
        left.append(total - done)

    catch_up(store.database, progress=between)
    other.close()
    assert len(left) > 3
    assert (left, left[-1]) == (sorted(left, reverse=True), 0)


def test_an_index_of_another_format_is_rebuilt(store: Store) -> None:
    written(store, ["an okapi"])
    assert found(store, "okapi")
    older = "UPDATE marks SET value = 0 WHERE name = 'message_index_format'"
    store.database.write(lambda c: c.execute(older) and None)
    assert pending(store.database) == 1
    assert found(store, "okapi") == ["an okapi"]


def test_a_damaged_index_is_rebuilt_and_harms_no_other_job(store: Store) -> None:
    written(store, ["an okapi", "a zebra"])
    assert found(store, "okapi")
    garbage = random.Random(1)
    damage = "UPDATE message_index_data SET block = ? WHERE id != 1"
    for query in (damage, damage.replace("!=", "=")):
        store.database.write(lambda c, query=query: c.execute(query, (garbage.randbytes(50),)) and None)
        assert found(store, "okapi") == ["an okapi"]
        assert found(store, "zebra") == ["a zebra"]
    everywhere = damage.replace("WHERE id != 1", "")
    store.database.write(lambda c: c.execute(everywhere, (garbage.randbytes(50),)) and None)
    written(store, ["another okapi"])
    jobs = (lambda c: 1, lambda c: SqliteIndex().index_batch(c, 10, 1_000), lambda c: 2)
    beside = [store.database.submit(job) for job in jobs]
    assert (beside[0].result(), beside[2].result()) == (1, 2)
    with pytest.raises(StoreError, match="the full-text index of the sessions is damaged"):
        beside[1].result()
    assert found(store, "okapi") == ["an okapi", "another okapi"]


def test_an_index_that_cannot_even_be_opened_is_rebuilt(home: Path) -> None:
    for number, damage in enumerate(
        (
            "UPDATE message_index_config SET v = 'nonsense'",
            "DROP TABLE message_index_data",
            "DROP TABLE message_index_config",
            "UPDATE message_index_data SET block = zeroblob(50)",
        )
    ):
        store = Store(home / str(number))
        written(store, ["an okapi"])
        assert found(store, "okapi")
        store.close()
        with contextlib.closing(sqlite3.connect(store.home / "sessions.db", isolation_level=None)) as c:
            c.execute(damage)
        again = Store(store.home)
        written(again, ["another okapi"])
        assert found(again, "okapi") == ["an okapi", "another okapi"], damage
        again.close()


def test_indexing_says_how_far_it_is_and_stops_in_time(store: Store) -> None:
    written(store, [f"message {n}" for n in range(2_500)])
    heard: list[tuple[int, int]] = []
    assert catch_up(store.database, seconds=0.0) == 2_500
    assert search(store.database, "message", seconds=0.0).waiting == 2_500
    assert catch_up(store.database, progress=lambda done, total: heard.append((done, total))) == 0
    assert heard == [(done, 2_500) for done in (400, 800, 1_200, 1_600, 2_000, 2_400, 2_500)]


def test_long_messages_make_short_batches(store: Store) -> None:
    written(store, ["word " * 2_000 for _ in range(10)])
    assert store.database.write(lambda c: SqliteIndex().index_batch(c, 64, 25_000)) is True
    assert pending(store.database) == 7


# snippets


def test_a_snippet_shows_the_words_where_most_of_them_are() -> None:
    whole = "alpha " + "filler " * 100 + "here alpha meets\n\nomega in the end " + "filler " * 100
    got = snippet_of(whole, query_of("alpha omega"))
    assert "**alpha** meets **omega**" in got.marked()
    assert got.marked().startswith("…")
    assert got.marked().endswith("…")
    assert [got.text[start:end] for start, end in got.marks] == ["alpha", "omega"]


def test_a_snippet_keeps_the_letters_of_the_text() -> None:
    assert snippet_of("Ein Café am Eck", query_of("cafe")).marked("[", "]") == "Ein [Café] am Eck"
    assert snippet_of("检查数据库设计", query_of("数据 库设")).marked("[", "]") == "检查[数据][库设]计"
    assert snippet_of("数据Python数据", query_of("python")).marked("[", "]") == "数据[Python]数据"
    assert snippet_of("nothing here", query_of("absent")).marked() == "nothing here"


# recalling


@pytest.mark.behaviour("AGT-04b")
def test_an_agent_recalls_by_words(store: Store) -> None:
    written(store, [f"line {n}" if n != 20 else "the okapi" for n in range(41)], "s-1", title="first")
    written(store, ["okapi again"], "s-2", title="second", parent="s-1", kind="fork")
    written(store, ["the okapi question of today"], "s-me")
    written(store, ["okapi of a sub-agent"], "s-child", kind="child")
    got = by_words(store.database, "okapi", "s-me")
    [line] = got.lines
    assert (line.title in ("first", "second"), line.hits) == (True, 2), "a fork is of the same line"
    only = by_words(store.database, '"the okapi"', "s-me").lines[0]
    around_it = [f"line {n}" if n != 20 else "the okapi" for n in range(15, 26)]
    assert [said.text for said in only.messages] == around_it
    assert [said.hit for said in only.messages] == [False] * 5 + [True] + [False] * 5
    assert [said.text for said in only.first] == ["line 0", "line 1", "line 2"]
    assert [said.text for said in only.last] == ["line 38", "line 39", "line 40"]
    left = by_words(store.database, "okapi", "s-2").lines[0].session
    assert left == "s-me", "the whole line of the asking session is left out"


def test_an_agent_reads_on_around_a_message(store: Store) -> None:
    written(store, [f"line {n}" for n in range(30)], "s-1", title="first")
    hit = search(store.database, '"line 10"').hits[0]
    got = around(store.database, hit.id, 3)
    assert [said.text for said in got.messages] == [f"line {n}" for n in range(7, 14)]
    assert (got.session, got.title, got.before, got.after) == ("s-1", "first", 7, 16)
    on = around(store.database, got.messages[-1].id, 3)
    assert on.messages[3].text == "line 13"
    with pytest.raises(ConfigError, match="no such message"):
        around(store.database, 10**9)


def test_an_agent_lists_recent_sessions(tmp_path: Path) -> None:
    first, second = agent([text("a")], tmp_path), agent([text("b")], tmp_path)
    first.chat("what about okapis?")
    second.chat("and zebras?")
    got = recent(first.store.database, current=second.session_id)
    [one] = got
    assert (one.session, one.turns) == (first.session_id, 1)
    assert one.title == one.asked == "what about okapis?"
    first.close()
    second.close()


def test_a_long_message_is_cut_around_what_was_looked_for(store: Store) -> None:
    written(store, ["filler " * 3_000 + "okapi " + "filler " * 3_000])
    said = by_words(store.database, "okapi").lines[0].messages[0]
    assert len(said.text) < 1_300
    assert "okapi" in said.text
