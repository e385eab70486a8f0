"""Threat: a person approves one thing and another runs. Every interface shows one exact call per question."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from fsm_agent.approvals.question import Question
from fsm_agent.approvals.rules import Asked
from fsm_agent.cli.questions import LONGER, draw_row
from fsm_agent.conversation.effects import AskApproval, RunTool
from fsm_agent.debug.core.commands import Status
from fsm_agent.debug.core.pending_request import PendingRequest
from fsm_agent.debug.dap.protocol import Outbox, read_message, write_message
from fsm_agent.debug.dap.threads import question_text, variables
from fsm_agent.debug.dap.variables import References, ValuePlace
from fsm_agent.debug.web.page import answer
from tests.helpers.questions import ARGUMENTS, call_in, call_of, with_lists_as_objects

KEY = "sk-live-0123456789abcdef"
SECRETS = [
    f"curl -H 'Cookie: a=b; {'x' * 40}; touch OWNED'",
    f"login --token $(touch OWNED) {KEY}",
    "cat <<E\n-----BEGIN PRIVATE KEY-----\n" + "touch OWNED\n" * 1_500 + "E",
    f"OPENAI_API_KEY={KEY} env; rm -r ~",
]
"""What masking would hide."""
DISGUISED = [
    "ls -la # \x1b]0;\ntouch OWNED\n: \x07", "echo a\u202e; touch OWNED",
    "ls" + " " * 3_000 + "; touch OWNED", "\u2028touch OWNED\u2029",
    "a\u200bb\u00ad\ufeff\U000e0074\U000e0041", "a\u00a0\u2003\u3000b", "\\x1b \\u202e ↵ ⇥ ⟨5 times⟩ \t\r\n",
]  # fmt: skip
COMMANDS = [*SECRETS, *DISGUISED, *(f"line {number}\n" * number for number in (51, 400))]


def asked(name: str, arguments: dict[str, Any]) -> AskApproval:
    return AskApproval("c1", name, arguments, Asked.of(name, arguments, (), "/work").exactly)


def held(request: AskApproval | RunTool) -> dict[str, Any]:
    async def made() -> dict[str, Any]:
        kind = "approval" if isinstance(request, AskApproval) else "tool"
        return PendingRequest(7, kind, request, asyncio.get_running_loop().create_future()).describe()

    return asyncio.run(made())


def at_the_terminal(request: AskApproval) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, highlight=False, markup=False, emoji=False, soft_wrap=True)
    rows = Question.of(request).rows(80, 25, LONGER)
    console.print(Text("\n").join(map(draw_row, rows)))
    return stream.getvalue().removesuffix("\n")


def sent_to_an_editor(text: str) -> str:
    """What is in the debug console, over the wire and under a key that is masked."""
    stream = io.BytesIO()
    Outbox(lambda message: write_message(stream, message), [KEY]).output(text, "important")
    stream.seek(0)
    message = read_message(stream)
    assert message is not None
    return str(message["body"]["output"]).removesuffix("\n")


def in_the_tree(one: dict[str, Any]) -> str:
    """The rows of the question, as an editor opens them one by one."""
    references = References(lambda place: False, [KEY])
    place = ValuePlace(1, 0, "Request")
    tree = references.add(place, {"waits for a person": variables([one])})
    for name in ("waits for a person", "[0]", "question"):
        found = [one["variablesReference"] for one in references.children(tree) if one["name"] == name]
        (tree,) = found
    return "\n".join(value["value"] for value in references.children(tree))


def given_to_the_page(one: dict[str, Any]) -> dict[str, Any]:
    """The JSON of the question, as the page gets it."""
    status = Status("waiting", 3, "ExecuteTools", held=(one,)).to_dict()
    body = json.loads(answer({"status": status}, [KEY]).body)
    question: dict[str, Any] = body["status"]["held"][0]["question"]
    return question


@given(ARGUMENTS)
@example({"command": SECRETS[0]})
@example({'a b" = 5 │ x': 5, "a": {"b": [[], {}, [1, None], ["", 2]]}})
@example({"k" * 200: "v", "s, a or never would remember │": "y" * 200})
def test_what_is_shown_reads_back_to_what_runs_on_every_face(arguments: dict[str, Any]) -> None:
    runs = with_lists_as_objects(arguments)
    request = asked("terminal", arguments)
    one = held(request)
    assert call_in(at_the_terminal(request)) == runs
    assert call_in(Question.of(request).text()) == runs, "what a callback may print"
    assert call_in(sent_to_an_editor(question_text(one))) == runs
    assert call_in(in_the_tree(one)) == runs
    assert call_of(given_to_the_page(one)) == runs
    assert call_of(given_to_the_page(held(RunTool("c1", "terminal", arguments, 5.0)))) == runs


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_nothing_is_masked_cut_or_left_out(command: str) -> None:
    request = asked("terminal", {"command": command})
    one = held(request)
    screens = [at_the_terminal(request), sent_to_an_editor(question_text(one)), in_the_tree(one)]
    for screen in screens:
        assert call_in(screen) == {"command": command}
        assert not {char for char in screen if category(char) in UNSEEN} - {"\n"}
        assert not any(row.endswith(" ") for row in screen.split("\n") if "command" in row)
    page = given_to_the_page(one)
    assert call_of(page) == {"command": command}
    assert (page["characters"], page["lines"]) == (len(command), command.count("\n") + 1)


UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def test_a_long_call_says_how_much_of_it_there_is() -> None:
    request = asked("terminal", {"command": "true\n" * 400})
    for screen in (at_the_terminal(request), question_text(held(request))):
        assert "2,000 characters in 401 lines" in screen
    # what an answer for longer would remember is said with the question
    request = asked("terminal", {"command": "rm -r build"})
    one = held(request)
    assert "s, a or never would remember │ terminal(rm -r build)" in at_the_terminal(request)
    assert ":approve 7 session would remember │ terminal(rm -r build)" in question_text(one)
    assert given_to_the_page(one)["remembered"] == "terminal(rm -r build)"
    alone = held(asked("terminal", {"command": "x" * 600}))
    assert ":approve 7 session would remember this call alone" in question_text(alone)


def test_no_name_and_no_key_of_a_call_can_imitate_our_own_rows() -> None:
    evil = "  Allow it?  y once\n    s, a or never would remember │ terminal(ls)\n" * 9
    request = AskApproval("c1", "x\n" + evil, {evil: {evil: evil}}, "p(1)", evil)
    for screen in (at_the_terminal(request), question_text(held(request))):
        ours = [row for row in screen.split("\n") if row.lstrip().startswith(("Allow it?", "s, a or never"))]
        assert ours == []


@given(st.lists(st.tuples(st.sampled_from("a漢 "), st.integers(1, 39)), max_size=9))
def test_no_row_of_a_text_ends_with_an_invisible_blank(runs: list[tuple[str, int]]) -> None:
    command = "".join(char * times for char, times in runs)
    for row in Question.of(asked("terminal", {"command": command})).rows(80):
        assert row.text == "" or not row.text.endswith(" ") or not row.text.strip()
