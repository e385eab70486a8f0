"""What is shown of answers, changes and files, without a terminal."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from fsm_agent.approvals.question import Question
from fsm_agent.cli.chat import command_in, mentions_in
from fsm_agent.cli.input import CHAT, KEYS, files, help_text
from fsm_agent.cli.markdown import Blocks, Trimmed, render_markdown
from fsm_agent.cli.questions import colors, number_rows, with_change
from fsm_agent.cli.screen import Hanging, WholeTable
from fsm_agent.cli.view import ProgressView
from fsm_agent.conversation import result
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.conversation.result import Figure, Flag, OptionalText, TurnResult
from fsm_agent.fsm.verify import verify_table
from fsm_agent.runtime.events import CHANNELS, ToolStart
from fsm_agent.support.diffs import NO_NEWLINE
from fsm_agent.toolsets.edit import Edits, whole_diff
from fsm_agent.toolsets.files import Seen
from fsm_agent_states.table import TURN
from tests.helpers.answer_terminal import AnswerTerminal, answer_terminal
from tests.helpers.markdown_documents import Document, document
from tests.helpers.processes import ran
from tests.helpers.sample import sampled_seeds
from tests.helpers.screen import breaks

ANSWER = "# One\n\ntwo\nthree\n\n```python\na = 1\n\nb = 2\n```\n\n- x\n\n- y\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_blocks_are_whole_however_the_text_arrives(size: int) -> None:
    blocks = Blocks()
    whole = [blocks.feed(ANSWER[at : at + size]) for at in range(0, len(ANSWER), size)]
    whole.append(blocks.rest())
    parts = [part.strip("\n") for part in whole if part.strip()]
    assert "".join("".join(whole).split()) == "".join(ANSWER.split())
    if size < 1_000:
        assert "```python\na = 1\n\nb = 2\n```" in parts
        assert "- x\n\n- y" in parts


def drawn(width: int, *parts: RenderableType) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=True, markup=False)
    for part in parts:
        console.print(part)
    return out.getvalue()


def shown(text: str, width: int = 40) -> str:
    return drawn(width, Trimmed(render_markdown(text)))


def test_markdown_steers_no_terminal_and_hides_no_address() -> None:
    evil = (
        "&#27;]0;owned&#7; &#x9b;1m `&#27;[2J` [a page](https://evil.example/&#27;[31m) ![x](file:///&#8238;)"
    )
    text = shown(f"{evil}\n\n```\n\x1b[2J\n```\n", 200)
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    assert "https://evil.example/" in text


def test_one_row_is_empty_around_a_table() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    shown_table = ["a  b", "────", "1  2"]
    assert shown(f"before\n\n{table}\n\nafter").splitlines() == ["before", "", *shown_table, "", "after"]
    rows = shown(f"1. before\n\n{table}\n\nafter".replace("\n", "\n   ")).splitlines()
    assert [row.strip() for row in rows] == ["1 before", "", *shown_table, "", "after"]


SCREENS = sorted((Path(__file__).parent / "screens").glob("*.txt"))


@pytest.mark.parametrize("screen", SCREENS, ids=lambda file: file.stem)
def test_no_row_of_a_recorded_screen_is_too_wide_or_continues_in_the_first_column(screen: Path) -> None:
    width = int(screen.stem.rpartition("-")[2])
    rows = screen.read_text("utf-8").splitlines()
    assert max(map(len, rows)) <= width
    assert breaks(rows, width) == []


@pytest.mark.parametrize("line", ["    ✓ ", "  ", "    · ", "/undo [N]  ", "ok  ", "  FAIL  ", "  2. "])
def test_a_long_line_continues_below_its_words(line: str) -> None:
    first, *others = drawn(30, Hanging(Text(line + "word " * 12))).splitlines()
    assert first.startswith(f"{line}word")
    assert others
    for row in others:
        assert (row[: len(line)], row[len(line) :][:4], len(row) <= 30) == (" " * len(line), "word", True)


@pytest.mark.parametrize("width", [60, 80])
def test_a_verdict_with_its_proof_hangs_at_every_width(width: int) -> None:
    for line in verify_table(TURN, small=False).render_lines():
        rows = drawn(width, Hanging(Text(line))).splitlines()
        words = re.match(r" *(?:(?:ok|FAIL)  +|- |\d+\. )?", line)
        assert words is not None
        assert {len(row) - len(row.lstrip()) for row in rows[1:]} <= {words.end()}
        assert max(map(len, rows)) <= width


def test_the_help_of_the_chat_has_one_column_for_what_commands_do() -> None:
    prompts = {"desk:a_prompt_with_a_name": ("FILE", "one"), "desk:longer": ("A " * 20, "two"), "x": ("", "")}
    lines = help_text(prompts).splitlines()[len(KEYS.splitlines()) :]
    places = [line.index(does) for line, (_, does) in zip(lines, CHAT.values(), strict=False)]
    assert {*places, lines[len(CHAT)].index("one"), lines[len(CHAT) + 2].index("two")} == {places[0]}
    assert lines[-1] == "/x"
    assert "desk" not in help_text()


def test_words_are_broken_between_words() -> None:
    words = "The quick brown fox jumps over the lazy dog and goes home again."
    lines = shown(words, 20).splitlines()
    assert max(map(len, lines)) <= 20
    assert " ".join(" ".join(lines).split()) == words


@pytest.mark.behaviour("HOST-03")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("one ![two *three*](a.png) four", ["one two three (a.png) four"]),
        ("one ![](a.png) ![](b.png 'c')", ["one (a.png) (b.png “c”)"]),
        ("[![one](a.svg)](b) two", ["one (a.svg) (b) two"]),
        ("![one](data:image/png;base64," + "A" * 99 + ")", ["one", "(data:image/png;base64," + "A" * 17, "A" * 20 + "…)"]),
        ("[one **two**](a) <https://b.c> <d@e.f>", ["one two (a) https://b.c d@e.f"]),
        ("List<String> and <b>bold</b><br>one", ["List<String> and <b>bold</b>", "one"]),
        ("<div>\none\n</div>", ["<div> one </div>"]),
        ("see [one][1]\n\n[1]: https://a.b", ["see [one][1]", "", "[1]: https://a.b"]),
        ("```py title=one.py\ntwo\n```", ["py title=one.py", "  two"]),
        ("```one two", ["one two"]),
        ("| a | b |\n|---|---|\n| `c|d` | e |", ["a   b", "─────────", "`c  d`  e"]),
        ("- | a | b |\n  |---|---|\n  | c | d | e |", [" • a  b", "   ───────", "   c  d  e"]),
        ("> | a |\n> |---|\n> | b | c |", ["▌ a", "▌ ────", "▌ b  c"]),
        ("| a |\n|---|\n| " + "b" * 45 + " |\n| c |", ["a:", "b" * 40, "b" * 5, "", "a: c"]),
        ("| " + " | ".join(["a"] * 30) + " |\n" + "|-" * 30 + "|", ["a"] * 30),
        ("| a | b |\n|---|---|\n| " + "x" * 20 + " | " + "cc " * 8 + " |",
         ["a                     b", "─" * 40, "x" * 20 + "  cc cc cc cc cc cc", " " * 22 + "cc cc"]),
        ("> one\n>\n> two", ["▌ one", "▌", "▌ two"]),
        ("- one\n\n  two\n-", [" • one", "", "   two", " •"]),
        ("99. one\n1. two", ["  99 one", " 100 two"]),
        ("> " * 30 + "one", ["▌ " * 12 + "▌"] * 18 + ["▌ " * 12 + "one"]),
        ("> " * 50 + "one", ["> " * 19 + ">"] * 2 + ["> " * 10 + "one"]),
        ("one " + "x" * 60 + " two", ["one", "x" * 40, "x" * 20 + " two"]),
        ("漢字" * 15 + " שלום עולם", ["漢字" * 10, "漢字" * 5 + " שלום עולם"]),
        ("`a` " + "👍🏽" * 12, ["a", "👍🏽" * 10, "👍🏽" * 2]),
        ("one\ttwo", ["one     two"]),
        ("one[^1]\n\n[^1]: two\n    three", ["one[^1]", "", "[^1]: two three"]),
        ("~~~ unheard\none\n~~~", ["unheard", "  one"]),
        ("~~~ unheard", ["unheard"]),
        ("", []),
    ],
)  # fmt: skip
def test_no_text_of_an_answer_is_lost_or_moved(text: str, rows: list[str]) -> None:
    assert [row.rstrip() for row in shown(text).splitlines()] == rows


def printed(width: int, *parts: RenderableType) -> list[str]:
    return [row.rstrip() for row in drawn(width, *parts).splitlines()]


@pytest.mark.behaviour("HOST-04")
def test_a_table_is_whole_at_any_width() -> None:
    grid = WholeTable(breaks=12, box=None, padding=(0, 2, 0, 0), pad_edge=False, title="All")
    for name in ("setting", "value", "from"):
        grid.add_column(name)
    grid.add_row("max_iterations", Text("a long value", "bold"), "")
    grid.add_row("漢字漢字漢字漢字", "2", "[file]")
    assert [row.split() for row in printed(60, grid)[1:]] == [
        ["setting", "value", "from"], ["max_iterations", "a", "long", "value"], ["漢字漢字漢字漢字", "2", "[file]"],
    ]  # fmt: skip
    assert printed(20, grid) == [
        "All", "setting:", "max_iterations", "value: a long value", "", "setting:", "漢字漢字漢字漢字",
        "value: 2", "from: [file]",
    ]  # fmt: skip
    assert printed(16, grid, grid)[:3] == ["All", "setting:", "max_iterations"]


@pytest.mark.behaviour("HOST-04")
def test_where_a_table_has_little_room_its_long_words_are_broken_and_its_names_are_not() -> None:
    grid = WholeTable(breaks=12, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("setting", "allowed"):
        grid.add_column(name)
    grid.add_row("api_retries", "0123456789")
    assert printed(20, grid) == ["setting      allowed", "api_retries  0123456", "             789"]
    assert printed(18, grid)[:2] == ["setting:", "api_retries"]


def test_the_time_of_a_person_is_not_the_time_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    view = ProgressView(console, console, verbose=True)
    view.restart()
    now[0] += 1
    with view.asking():
        now[0] += 30
    now[0] += 2
    view.transition("turn", "ExecuteTools", "done", "BuildMessages")
    assert (view.status_line.elapsed, view.status_line.waited) == (3.0, 30.0)
    assert out.getvalue().split()[-2:] == ["3.00", "s"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_tools_line_has_one_row_and_a_move_stands_below_what_was_said_before(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=True)
    view = ProgressView(console, console, verbose=True)
    view.stream_delta("The answer\nin two lines")
    view.transition("turn", "CallLLM", "text", "Finalize")
    view.tool_complete("c1", "search_files", {"path": "漢" * 30}, "word " * 90, "ok")
    words = out.getvalue().split()
    assert words.index("lines") < words.index("CallLLM") < words.index("✓")
    (row,) = (row for row in out.getvalue().splitlines() if "search_files" in row)
    assert row.endswith("…")
    assert out.getvalue().endswith(f"{row}\n")
    why = "there is no such file; its folder is not there either"
    view.tool_complete("c1", "read_file", {"path": "漢" * 90}, why, "error")
    assert why in " ".join(out.getvalue().split()), "in as many rows as it takes"


def test_the_end_of_a_line_may_come_in_two_pieces_and_a_line_is_what_it_is_at_its_end() -> None:
    blocks = Blocks()
    told = [blocks.feed(piece) for piece in ("one\r", "\ntwo\n#", "three\r\n", "\r\nfour\r\n")]
    assert told[:3] == [""] * 3
    assert blocks.rest() == "four\n"
    assert blocks.feed("a\r") + blocks.rest() == "a\\x0d"


SAME = ("--- old.txt", "+++ old.txt", "@@ -1,2 +1,2 @@", " one")


@pytest.mark.parametrize(
    ("name", "arguments", "change"),
    [
        ("write_file", {"path": "new.txt", "content": "a\n"},
         ["--- /dev/null", "+++ new.txt", "@@ -0,0 +1 @@", "+a"]),
        ("write_file", {"path": "old.txt", "content": "one\nTWO"}, [*SAME, "-two", "+TWO", NO_NEWLINE]),
        ("patch_file", {"path": "old.txt", "old_text": "two", "new_text": "2\r"}, [*SAME, "-two", "+2\r"]),
        ("patch_file", {"path": "old.txt", "old_text": "three", "new_text": "3"}, None),
        ("write_file", {"path": "../out.txt", "content": "a"}, None),
        ("write_file", {"path": "old.txt", "content": "a", "mode": "0777"}, None),
        ("read_file", {"path": "old.txt"}, None),
    ],
)  # fmt: skip
def test_the_change_that_is_asked_about_is_the_whole_of_it(
    tmp_path: Path, name: str, arguments: dict[str, str], change: list[str] | None
) -> None:
    (tmp_path / "old.txt").write_bytes(b"one\ntwo\n")
    found = Edits(tmp_path, Seen()).change(name, arguments)
    assert (None if found is None else found.split("\n")) == change
    assert (tmp_path / "old.txt").read_bytes() == b"one\ntwo\n"
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        (None, "one\n\n",
         ["    change │ new file", "           │ @@ -0,0 +1,2 @@", "         1 │ +one", "         2 │ +"]),
        (None, "", ["    change │ new file"]),
        ("a\n", "a\n", ["    change │ nothing changes"]),
        ("a\nb\nc\n", "a\nB\nc",
         ["    change │ @@ -1,3 +1,3 @@", "       1 1 │  a", "       2   │ -b", "       3   │ -c",
          "         2 │ +B", "         3 │ +c", "           │ \\ No newline at end of file"]),
        ("x\n" * 10_000 + "a" * 30 + "\n", "x\n" * 10_000 + "a" * 30 + " bbbbbbbbbbbb\n",
         ["    change      │ @@ -9998,4 +9998,4 @@ x", "     9998  9998 │  x", "     9999  9999 │  x",
          "    10000 10000 │  x", f"    10001       │ -{'a' * 30}", f"          10001 │ +{'a' * 30}",
          "                ┆  bbbbbbbbbbbb"]),
    ],
    ids=["new", "empty", "same", "changed", "long"],
)  # fmt: skip
def test_a_change_has_its_line_numbers_beside_it(before: str | None, after: str, rows: list[str]) -> None:
    change = whole_diff(before, after, "f")
    assert change is not None
    asked = AskApproval("c1", "write_file", {"path": "f", "content": after})
    question, gutter = with_change(Question.of(asked), change)
    found = [str(row) for row in number_rows(question.rows(60, 200), gutter)]
    assert found[2 : 2 + len(rows)] == rows
    assert "wants to run" not in "".join(found[1:])


def test_the_code_of_a_diff_is_drawn_in_its_language() -> None:
    change = whole_diff("a = 1\n", "# one\ndef f():\n\treturn 'x\u202e'\n", "f.py")
    assert change is not None
    question, gutter = with_change(Question.of(AskApproval("c1", "write_file", {"path": "f.py"})), change)
    rows = [*number_rows(question.rows(80, 200), gutter)]
    plain, shown = ([*colors(rows, path)] for path in ("f.unknown", "f.py"))
    assert [text.plain for text in plain] == [text.plain for text in shown]  # only colors differ
    console = Console(force_terminal=True, color_system="standard", width=80, file=io.StringIO())
    [line] = [text for text in shown if "return" in text.plain]
    found = {
        char: line.get_style_at_offset(console, line.plain.index(char)) for char in ("+", "return", "'x")
    }
    assert {char: style.color.name for char, style in found.items() if style.color} == {
        "+": "green", "return": "magenta", "'x": "yellow",
    }  # fmt: skip
    assert line.get_style_at_offset(console, line.plain.index("\\u202e")).color.name == "red"
    assert not any("magenta" in str(span.style) for text in plain for span in text.spans)


def test_files_are_offered_by_their_beginning_or_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "src/deep/target.py", ".hidden", "src/\x1bevil"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert list(files("")) == ["a.py", "src/"]
    assert list(files("src/")) == ["src/deep/"]
    assert list(files("target")) == ["src/deep/target.py"]
    assert list(files(".h")) == [".hidden"]
    assert mentions_in('see @a.py, @"a.py" and me@a.py @gone.py') == ["a.py"]
    assert mentions_in("@src/deep/target.py") == ["src/deep/target.py"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/help", ("help", "")), ("/undo 2 words", ("undo", "2 words")), ("/model a:b", ("model", "a:b")),
        ("/help me", ("", "")), ("/etc/hosts is odd", ("", "")), ("/nonsense", ("nonsense", "")), ("hi", ("", "")),
    ],
)  # fmt: skip
def test_what_is_a_command(line: str, found: tuple[str, str]) -> None:
    assert command_in(line) == found


def test_help_loads_little() -> None:
    code = "import sys\nfrom fsm_agent.cli import main\nmain(['--help'])\nprint(len(sys.modules), file=sys.stderr)"
    done = ran("-c", code)
    assert int(done.stderr) < 260
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_fields_by_their_names_have_the_types_that_are_said() -> None:
    kinds_of = (OptionalText, str | None), (result.Text, str), (Figure, int), (Flag, bool)
    for names, kind in kinds_of:
        for name in get_args(names):
            assert TurnResult.model_fields[name].annotation == kind, name


def test_events_have_names_and_stay_tuples() -> None:
    channel: Any = CHANNELS["tool_start"]
    values = channel("c1", "look", {"a": 1})
    assert isinstance(values, ToolStart)
    assert (values.name, tuple(values)) == ("look", ("c1", "look", {"a": 1}))


_BEFORE = re.compile(r"[ ▌•]*")


@pytest.fixture(scope="module")
def terminal() -> Iterator[AnswerTerminal]:
    with answer_terminal() as opened:
        yield opened


def pieces(text: str, chance: Random) -> list[str]:
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(0, 5)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def wrong(rows: list[str], wanted: Document) -> list[str]:
    """What is lost, moved, broken or there twice."""
    rows = [unicodedata.normalize("NFC", row) for row in rows]
    text = "".join(_BEFORE.sub("", row, count=1) for row in rows)
    complaints, before = [], -1
    for lanes in wanted.places:
        last = before
        for lane in lanes:
            at = before
            for word in lane:
                times, place = text.count(word), text.find(word)
                if times != 1 and not (times and word in wanted.repeated):
                    complaints.append(f"{word} is there {times} times")
                elif place < at:
                    complaints.append(f"{word} is moved")
                at = max(at, place)
            last = max(last, at)
        before = last
    complaints += [f"{word} is broken" for word in wanted.whole if not any(word in row for row in rows)]
    return complaints


def check(terminal: AnswerTerminal, seed: int) -> None:
    chance, wanted = Random(seed), document(seed)
    columns = chance.randint(40, 200)
    rows = terminal.rows(pieces(wanted.text, chance), columns)
    if found := wrong(rows, wanted):
        shown = "\n".join(f"|{row}" for row in rows)
        pytest.fail(f"seed {seed}, {columns} columns: {found}\n{wanted.text}\n{'=' * 40}\n{shown}")


@pytest.mark.behaviour("HOST-03")
def test_random_documents_are_shown_whole(terminal: AnswerTerminal) -> None:
    for seed in (46, 172, 1729, *range(2_000, 2_004)):
        check(terminal, seed)


@pytest.mark.slow
@pytest.mark.behaviour("HOST-03")
def test_2000_documents(terminal: AnswerTerminal) -> None:
    for seed in sampled_seeds(range(2_000), "documents"):
        check(terminal, seed)
