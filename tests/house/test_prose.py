"""The prose check finds what it must, reads only prose, and fails on any finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.prose import findings, main, pages, prose_of_python, without_code, word_list
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
    page = "`goes on` [here](docs/nobody.md) “nobody” python -m tests.behaviours\n```text\nnobody\n```\n<!-- nobody -->\n~~nobody~~\n"
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


def test_a_finding_in_any_file_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, source, script = tmp_path / "page.md", tmp_path / "source.py", tmp_path / "script.js"
    page.write_text("Nobody waits.\n", encoding="utf-8")
    source.write_text('"""One.\n\nIt goes on."""\n', encoding="utf-8")
    script.write_text('const a = 1;\nconst b = html`<p class="nobody">nobody</p>`;\n', encoding="utf-8")
    for path, line in ((page, 1), (source, 3), (script, 2)):
        assert main(["--check", str(path)]) == 1
        assert capsys.readouterr().out.startswith(f"{path}:{line}: write ")
    clean = tmp_path / "clean.py"
    clean.write_text('"""It continues."""\n', encoding="utf-8")
    assert main(["--check", str(clean)]) == 0
    assert capsys.readouterr().out == "prose: 0 findings in 1 files\n"


def test_every_entry_of_the_word_list_is_read() -> None:
    rows = [
        line for line in text("docs/style.md").partition("## Word list\n")[2].splitlines() if line[:2] == "| "
    ]
    assert len(word_list()) == len(rows) - 1 > 25
    assert {"README.md", "CONTRIBUTING.md", "examples/README.md", "docs/agent.md"} <= set(pages())
