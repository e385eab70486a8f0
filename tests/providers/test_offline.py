"""The offline demo: calls by rule, and answers from the real results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.offline import NO_MODEL, OfflineDemo
from tests.helpers.ports import Seen

CORE = ("list_directory", "read_file", "search_files", "get_time", "calculate", "terminal")


class Sink(Seen):
    def reasoning(self, delta: str) -> None:
        raise AssertionError("it does not reason")


def body(messages: Sequence[dict[str, Any]], tools: Sequence[str] = CORE) -> bytes:
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    asked = {"model": "demo", "messages": messages} | ({"tools": offered} if offered else {})
    return json.dumps(asked).encode()


def ask(text: str, tools: Sequence[str] = CORE) -> tuple[ModelReply, Sink]:
    sink = Sink()
    request = ModelRequest(body([{"role": "user", "content": text}], tools))
    reply = asyncio.run(OfflineDemo().call(request, sink))
    assert isinstance(reply, ModelReply)
    return reply, sink


def calls(text: str, tools: Sequence[str] = CORE) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, json.loads(call.arguments)) for call in ask(text, tools)[0].tool_calls]


def turn(text: str, place: Path, **options: Any) -> TurnResult:
    return Agent("offline:demo", workdir=place, **options).run_conversation(text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "README.md").write_text("# A small project\n\nIt does little.\n\n## Use\n\n" + "More.\n" * 20)
    (root / "src" / "app.py").write_text("# TODO: begin\nprint('hello')\n# TODO: end\n")
    (root / "notes.txt").write_text("one\ntwo three\n\n")
    return root


LIST, READ, FIND, TIME, SUM, RUN = CORE[0], CORE[1], CORE[2], CORE[3], CORE[4], CORE[5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what is in this folder?", [(LIST, {"path": "."})]),
        ("ls src", [(LIST, {"path": "src"})]),
        ("list docs and list tests", [(LIST, {"path": "docs"}), (LIST, {"path": "tests"})]),
        ("show me the tests folder", [(LIST, {"path": "tests"})]),
        ("how many files are in tests", [(LIST, {"path": "tests"})]),
        ("List the files and read README.md", [(LIST, {"path": "."}), (READ, {"path": "README.md"})]),
        ("summarize the readme and read the license",
         [(READ, {"path": "README.md"}), (READ, {"path": "LICENSE"})]),
        ('open "my notes.txt"', [(READ, {"path": "my notes.txt"})]),
        ("count the lines of src/app.py", [(READ, {"path": "src/app.py"})]),
        ("find TODO", [(FIND, {"content": "TODO"})]),
        ("find all TODOs in src", [(FIND, {"content": "TODOs", "path": "src"})]),
        ('search for "a (b) and c" in docs/', [(FIND, {"content": r"a \(b\) and c", "path": "docs/"})]),
        ("where is Agent defined?", [(FIND, {"content": "Agent"})]),
        ("find *.py in src", [(FIND, {"name": "*.py", "path": "src"})]),
        ("what time is it in Tokyo", [(TIME, {"zone": "Asia/Tokyo"})]),
        ("the time in New York and the time in London?",
         [(TIME, {"zone": "America/New_York"}), (TIME, {"zone": "Europe/London"})]),
        ("What's the date today?", [(TIME, {})]),
        ("what is 12*(3+4)", [(SUM, {"expression": "12*(3+4)"})]),
        ("what is 7 * 8, and 2^10?", [(SUM, {"expression": "7 * 8"}), (SUM, {"expression": "2**10"})]),
        ("run `git status`", [(RUN, {"command": "git status"})]),
    ],
)  # fmt: skip
def test_it_plans_calls_by_rule(text: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "hello", "what happened on 2024-05-01?", "why?", "run the tests", "\x00", "?" * 5_000,
        " \t" * 1_000 + ".",
    ],
)  # fmt: skip
def test_what_it_does_not_understand_it_says(text: str) -> None:
    reply, _ = ask(text)
    assert not reply.tool_calls
    assert "OPENAI_API_KEY" in reply.text
    assert "local server" in reply.text
    assert NO_MODEL in reply.text


def test_it_calls_only_what_is_offered() -> None:
    assert calls("list the files and what is 1+1", tools=(SUM,)) == [(SUM, {"expression": "1+1"})]
    assert calls("what is 1+1", tools=()) == []
    assert "no tool is on offer" in ask("what is 1+1", tools=())[0].text


def test_then_means_later(place: Path) -> None:
    assert calls("list the files, then read README.md") == [(LIST, {"path": "."})]
    result = turn("list the files, then read README.md, then count the lines of notes.txt", place)
    assert result.api_calls == 4
    names = [call["function"]["name"] for row in result.messages for call in row.get("tool_calls", ())]
    assert names == [LIST, READ, READ]


def test_it_answers_from_the_real_results(place: Path) -> None:
    result = turn("list the files, read README.md and find TODO in src", place)
    answer = result.final_response or ""
    assert result.completed
    assert result.api_calls == 2
    assert "holds 3 entries" in answer
    assert "1 folder: src/" in answer
    assert "26 lines" in answer
    assert "“A small project”" in answer
    assert "2 matches in 1 file" in answer
    assert "src/app.py:3: # TODO: end" in answer
    assert answer.endswith(NO_MODEL)


def test_its_answer_is_markdown_that_shows_all_of_it(place: Path) -> None:
    badge = "# A `name` and __init__\n\n[![badge](a.svg)](b)\n<br>\n\n"
    (place / "README.md").write_text(f"{badge}One line.\nAnother.\n\n```\nno\n```\n" + "\n" * 9)
    (place / "__init__.py").write_text("```TODO``` *a* _b_\n")
    result = turn("list the files, read README.md, find TODO in __init__.py and what is 2*3*4?", place)
    answer = result.final_response or ""
    assert "`__init__.py`" in answer.splitlines()[2]
    assert "Its first heading is ``A `name` and __init__``." in answer
    assert "It begins:\n\n```\nOne line.\nAnother.\n```\n" in answer
    assert "\n````\n1: ```TODO``` *a* _b_\n````\n" in answer
    assert "`2*3*4` = 24" in answer


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("what is 12*(3+4)", "12*(3+4) = 84"),
        ("how many words are in notes.txt?", "`notes.txt` has 3 lines (1 of them blank) and 3 words."),
        ("what time is it in Tokyo?", "(Asia/Tokyo, UTC+09:00)"),
        ("read src", "The folder `src` holds 1 entry"),
        ("list src/app.py/", "`src/app.py/` has 3 lines."),
        ("find unicorns", "“unicorns” was not found."),
        ("read missing.txt", "read_file failed for “missing.txt”: missing.txt: no such file or directory."),
        ("what is 1/0", "calculate failed for “1/0”:"),
        ("what time is it in Atlantis?", "'Atlantis' is not an IANA time zone"),
        ("run `ls`", "denied: no person is there to approve it."),
    ],
)  # fmt: skip
def test_facts(text: str, fact: str, place: Path) -> None:
    result = turn(text, place)
    assert result.completed
    assert fact in (result.final_response or "")
    assert NO_MODEL in (result.final_response or "")


def test_a_long_file_is_counted_page_by_page(place: Path) -> None:
    (place / "long.txt").write_text("word\n" * 4_500)
    result = turn("count the lines of long.txt", place)
    assert "has 4,500 lines" in (result.final_response or "")
    assert result.api_calls == 4


def test_a_tool_of_the_users_own(place: Path) -> None:
    @tool(effect="pure")
    def lookup(city: str, days: int = 1) -> str:
        return f"{city} for {days} days"

    result = turn('please ask lookup("Bern", days=2)', place, tools=[lookup])
    assert "The tool lookup says: Bern for 2 days" in (result.final_response or "")


def test_the_newest_request_counts(place: Path) -> None:
    agent = Agent("offline:demo", workdir=place)
    assert "84" in agent.chat("what is 12*(3+4)")
    second = agent.run_conversation("what is 2+3")
    assert "2+3 = 5" in (second.final_response or "")
    assert "84" not in (second.final_response or "")


def test_the_last_word_without_tools_is_about_the_request(place: Path) -> None:
    result = turn("list the files, then what is 1+1", place, settings={"max_iterations": 1})
    assert result.turn_exit_reason == "max_iterations_summary"
    assert "holds 3 entries" in (result.final_response or "")
    assert "I did not get to “1+1”" in (result.final_response or "")


def test_it_streams_what_it_says() -> None:
    reply, sink = ask("hello")
    assert sink.beats == 1
    assert "".join(sink.texts) == reply.text
    assert len(sink.texts) > 20
    assert max(map(len, sink.texts)) < 40
    asked, sink = ask("what is 1+1 and 2+2")
    assert sink.tools == [SUM, SUM]
    assert len({call.id for call in asked.tool_calls}) == 2
    assert not asked.text


def test_it_is_deterministic_and_reports_no_usage() -> None:
    assert ask("list the files and read README.md")[0] == ask("list the files and read README.md")[0]
    assert ask("hello")[0].usage is None


def test_it_summarizes_by_rule() -> None:
    asked = "Summarize.\n\n<user>\nfirst question\n</user>\n\n<user>\nsecond\n</user>"
    rows = [{"role": "user", "content": asked}]
    request = ModelRequest(body(rows, ()), toolless=True, purpose="summary")
    reply = asyncio.run(OfflineDemo().call(request, Sink()))
    assert isinstance(reply, ModelReply)
    assert "first question" in reply.text
    assert NO_MODEL in reply.text


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user"', b'{"messages": 3}']
)
def test_a_body_that_is_no_request_is_a_failure(raw: bytes) -> None:
    reply = asyncio.run(OfflineDemo().call(ModelRequest(raw), Sink()))
    assert isinstance(reply, Failure)
    assert reply.kind == "shape"
