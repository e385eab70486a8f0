"""Names of tools as models misspell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.name_repair import repair_name

KNOWN = ("todo", "read_file", "list_directory", "web_search", "getWeather", "mcp-fetch")


@pytest.mark.behaviour("EXEC-01")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("todo", "todo"),
        ("Todo_tool", "todo"),
        ("TodoTool", "todo"),
        ("todo_tool_tool", "todo"),
        ("READ_FILE", "read_file"),
        ("read-file", "read_file"),
        ("read file", "read_file"),
        ("readFile", "read_file"),
        ("ReadFileTool", "read_file"),
        ('read_file"}', "read_file"),
        ("read_file<|channel|>", "read_file"),
        ('"read_file"', "read_file"),
        ("<read_file>", "read_file"),
        ("read_fiel", "read_file"),
        ("list_dir", "list_directory"),
        ("get_weather", "getWeather"),
        ("mcp_fetch", "mcp-fetch"),
        ("nope", None),
        ("", None),
        ("   ", None),
        ('"', None),
        ("<>", None),
        ("tool", "todo"),
        ("x" * 10_000, None),
    ],
)
def test_repair(name: str, meant: str | None) -> None:
    assert repair_name(name, KNOWN) == meant


def test_an_exact_name_wins_over_its_spellings() -> None:
    assert repair_name("Echo", ("echo", "Echo")) == "Echo"
    assert repair_name("echo_tool", ("echo", "echo_tool")) == "echo_tool"


def test_two_equally_good_answers_are_none() -> None:
    assert repair_name("ECHO", ("eCho", "e-cho")) is None
    assert repair_name("put_c", ("put_a", "put_b")) is None


def test_the_cutoff_is_an_argument() -> None:
    assert repair_name("list_dir", KNOWN, cutoff=0.95) is None


def test_without_tools_there_is_no_answer() -> None:
    assert repair_name("todo", ()) is None


@given(st.text(), st.lists(st.text(min_size=1), unique=True, max_size=5))
def test_the_answer_is_always_a_known_name(name: str, known: list[str]) -> None:
    answer = repair_name(name, known)
    assert answer is None or answer in known
