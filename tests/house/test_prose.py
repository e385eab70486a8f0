"""The prose check finds what it must, reads only prose, and its counts can only fall."""

from __future__ import annotations

import re

from tests.helpers.prose import (
    findings,
    grown,
    lower,
    package_of,
    pages,
    prose_of_python,
    without_code,
    word_list,
)
from tests.helpers.sources import text


def messages(page: str) -> list[str]:
    return [f"{one.line}: {one.message}" for one in findings("page", without_code(page))]


def test_a_word_of_the_list_is_found_on_its_line_with_its_replacement() -> None:
    assert messages("One.\nThe turn\ngoes on.\n") == ["3: write “continues, resumes” instead of “goes on”"]
    assert messages("Nobody waits.\n")[0].startswith("1: write “no one")
    assert "-ize" in messages("a\n\n\nIt is normalised.\n")[0]


def test_a_word_that_is_written_twice_is_found() -> None:
    assert len(messages("Run the the tests.\n")) == 1


def test_code_links_and_quotations_are_not_prose() -> None:
    page = "`goes on` [here](docs/nobody.md) “nobody”\n```text\nnobody\n```\n<!-- nobody -->\n~~nobody~~\n"
    assert messages(page) == []
    assert without_code(page).count("\n") == page.count("\n")
    assert messages("value is None") == []


def test_docstrings_comments_and_messages_of_python_are_read_and_names_are_not() -> None:
    source = '"""First.\n\nIt goes on."""\n\nnobody = 1  # nobody calls it\nprint(f"{nobody} is told of it", "nobody")\n'
    found = [
        (one.line, one.message.rpartition(" instead of ")[2])
        for one in findings("a", prose_of_python(source))
    ]
    assert found == [(3, "“goes on”"), (5, "“nobody”"), (6, "“is told”"), (6, "“told of”")]


def test_half_a_surrogate_pair_in_a_string_does_not_stop_the_check() -> None:
    assert len(list(findings("a", prose_of_python('"\\ud800 nobody here"\n')))) == 1


def test_counts_may_fall_and_not_rise() -> None:
    assert grown({"a": 3, "b": 1}, {"a": 2, "b": 5}) == [
        "a: 3 findings of prose, 2 allowed (python -m tests.helpers.prose)"
    ]
    assert grown({"new": 1}, {}) != []
    assert re.findall(r'"(\w)" = (\d)', lower({"a": 3, "b": 1}, {"a": 2, "b": 5})) == [("a", "2"), ("b", "1")]
    assert package_of("fsm_agent/fsm/table.py") == "fsm_agent"


def test_every_entry_of_the_word_list_is_read() -> None:
    rows = [
        line for line in text("docs/style.md").partition("## Word list\n")[2].splitlines() if line[:2] == "| "
    ]
    assert len(word_list()) == len(rows) - 1 > 25
    assert {"README.md", "CONTRIBUTING.md", "examples/README.md", "docs/agent.md"} <= set(pages())
