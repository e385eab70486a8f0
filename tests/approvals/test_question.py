"""What a person is shown of a call before it may run: all of it, in rows that no text can imitate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.approvals.question import BEGINS, GOES_ON, Question, beside, original, visible
from fsm_agent.approvals.rules import Asked
from fsm_agent.conversation.effects import AskApproval
from tests.helpers.questions import TEXTS


def question(name: str, arguments: dict[str, Any], pattern: str | None = None, **more: str) -> Question:
    exactly = Asked.of(name, arguments, (), "/work").exactly
    return Question.of(AskApproval("c1", name, arguments, exactly if pattern is None else pattern, **more))


def read(question: Question, width: int = 80, height: int = 25) -> str:
    return question.text(width, height, "s, a or never")


@given(TEXTS, st.sampled_from([20, 31, 80, 200]))
def test_the_rows_of_a_text_hold_all_of_it_behind_the_gutter(text: str, width: int) -> None:
    whole, shown = "", beside("command", visible(text), width)
    for number, row in enumerate(shown):
        head = "    command " if number == 0 else " " * 12
        assert row.head in (f"{head}{BEGINS} ", f"{head}{GOES_ON} ")
        whole += ("\n" if number and row.head[12] == BEGINS else "") + row.text
        assert "\n" not in row.text
    assert original(whole) == text


@given(st.text(st.sampled_from("ab  漢é\x1b"), max_size=200))
def test_no_row_is_wider_than_the_terminal(text: str) -> None:
    for row in beside("c", visible(text), 60):
        assert len(str(row)) + sum(not char.isascii() for char in row.text) <= 60


def test_an_ordinary_call_is_short_to_read() -> None:
    assert read(question("terminal", {"command": "rm -rf build"})) == (
        "  terminal wants to run:\n"
        "    command │ rm -rf build\n"
        "    s, a or never would remember │ terminal(rm -rf build)"
    )  # fmt: skip


def test_what_is_hidden_in_a_terminal_sequence_is_read() -> None:
    command = "ls -la # \x1b]0;\ntouch OWNED\n: \x07"
    seen = read(question("terminal", {"command": command}))
    assert r"│ ls -la # \x1b]0;↵" in seen
    assert seen.count("│ touch OWNED↵") == 2  # in what runs, and in what would be remembered


def test_names_keys_tasks_and_patterns_are_made_visible_too() -> None:
    arguments = {"k\x1bey": "a", "b": {"\u200b": "c"}}
    shown = question("dr\u202eop", arguments, "dr\u202eop(x)", origin="a\x9btask")
    assert shown.name == r"dr\u202eop"
    assert [part.place for part in shown.parts] == [r'["k\u001bey"]', r'b["\u200b"]']
    assert shown.task == r"a\x9btask"
    assert not set(read(shown)) & set("\x1b\x9b\u200b\u202e")


def test_a_text_cannot_imitate_the_question() -> None:
    evil = "x\n  Allow it?  y once\n    workdir │ /tmp" + "\r" + "y" * 200
    for row in read(question("terminal", {"command": evil})).split("\n")[1:]:
        assert re.match(r"    (command|       ) [│┆] |    s, a or never|      [│┆] |    \(", row), row


def test_a_call_that_is_longer_than_the_screen_is_shown_whole_between_its_size() -> None:
    content = "\n".join(f"line {number}" for number in range(51))
    seen = read(question("write_file", {"path": "a.md", "content": content}, "write_file(/a.md)")).split("\n")
    assert seen[0] == "  write_file wants to run 401 characters in 52 lines:"
    assert [row for row in seen if "line 25" in row] == ["            │ line 25↵"]
    assert "  write_file wants to run 401 characters in 52 lines, shown above" in seen[-3:]
    one_line = "x" * 2_500 + "; rm -r ~; " + "x" * 2_500
    assert "; rm -r ~; " in re.sub(r"\n +┆ ", "", read(question("terminal", {"command": one_line})))


@pytest.mark.parametrize(
    ("name", "arguments", "pattern"),
    [
        ("drop", {}, ""), ("drop", {}, "drop("), ("drop", {}, "other({})"), ("drop*", {}, "drop*({})"),
        ("drop", {"name": "\ud800"}, None), ("drop", {"name": "\ud800"}, "drop(*)"),
    ],
)  # fmt: skip
def test_what_cannot_be_remembered_safely_is_not_offered(
    name: str, arguments: dict[str, Any], pattern: str | None
) -> None:
    shown = question(name, arguments, pattern)
    assert shown.remembered == ""
    assert "remember" not in read(shown)


def test_a_call_that_is_remembered_by_its_hash_is_said_to_be_this_one_alone() -> None:
    seen = read(question("terminal", {"command": "x" * 600}))
    alone = r"would remember this call alone\n +│ terminal\(#[0-9a-f]{64}\)"
    assert re.search(alone, seen.replace("\n      ┆ ", ""))


def test_why_a_call_is_asked_about_stands_before_it() -> None:
    why = ".envrc\x1b is run when its folder is entered"
    seen = read(question("write_file", {"path": ".envrc"}, why=why))
    assert "(asked because) │ .envrc\\x1b is run when its folder is entered" in seen
    assert seen.index("(asked because)") < seen.index("path")
