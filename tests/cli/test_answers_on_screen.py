"""No text of an answer is lost or moved on a real pseudo terminal, however it arrives."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from random import Random

import pytest

from tests.helpers.answer_terminal import AnswerTerminal, answer_terminal
from tests.helpers.markdown_documents import Document, document

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
def test_no_text_of_an_answer_is_lost_or_moved(terminal: AnswerTerminal) -> None:
    for seed in (46, 172, 1729, *range(2_000, 2_004)):
        check(terminal, seed)


@pytest.mark.slow
@pytest.mark.behaviour("HOST-03")
def test_2000_documents(terminal: AnswerTerminal) -> None:
    for seed in range(2_000):
        check(terminal, seed)
