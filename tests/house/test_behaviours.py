"""docs/behaviours.md is what its lines and the marks of the tests make; each claim that holds has a test, and no
fewer hold than before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.behaviours import MARK, PAGE, behaviours, counted, marked, page
from tests.helpers.sources import ROOT, named_tests, product, text

BEHAVIOURS = behaviours()
IDS = [line.id for line in BEHAVIOURS]
GROUPS = "|".join(sorted({id.partition("-")[0] for id in IDS}))
CITED = re.compile(rf"\b({GROUPS})-(\d\d)([a-z]?)(?:\.\.(\d\d))?")
"""One, or as in INV-01..08 all from the first to the last."""

CLAIMS, HOLD = 299, 290
"""Claims of the specification, and how many of them hold. The second only grows."""


def test_the_page_is_what_the_lines_and_the_marks_make_and_no_fewer_claims_hold_than_before() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.helpers.behaviours"
    states = counted(BEHAVIOURS)
    assert (states.total(), states["holds"]) == (CLAIMS, HOLD)


def test_each_line_that_holds_has_a_test_and_no_other() -> None:
    assert len(IDS) == len(set(IDS))
    assert set(marked()) == {line.id for line in BEHAVIOURS if line.state in ("holds", "partly")}


def cited() -> Iterator[str]:
    """Every id that another file names."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path != PAGE]
    for path in [*pages, *ROOT.glob("*.md"), *product(), *(ROOT / "tests").rglob("*.py")]:
        if path != Path(__file__):
            for group, first, letter, last in CITED.findall(text(path)):
                for number in range(int(first), int(last or first) + 1):
                    yield f"{group}-{number:02}{letter}"


def test_each_id_that_is_cited_has_a_line() -> None:
    assert set(cited()) <= set(IDS)


def test_what_is_cited_looks_like_nothing_else() -> None:
    """An id of a group that the page does not have would be overlooked."""
    others = {"UTF", "CRC", "ISO", "RFC", "SHA"}
    for path in product():
        found = set(re.findall(r"\b([A-Z]{2,7})-\d\d\b", text(path)))
        assert found <= others | set(GROUPS.split("|")), path


def test_the_files_that_it_names_are_there() -> None:
    for line in BEHAVIOURS:
        for path in line.where:
            room = "states/fsm_agent_states" if path.startswith("states/") else "fsm_agent"
            assert (ROOT / room / path.removeprefix("states/")).is_file(), (line.id, path)


def test_marks_are_written_so_that_they_are_found() -> None:
    """One of a variable, or of a parameter of a test, would count for nothing."""
    for path in named_tests():
        if path != Path(__file__):
            written = re.findall(rf'^@{re.escape(MARK)}\(("|$)', text(path), re.MULTILINE)
            assert len(written) == text(path).count("mark.behaviour"), path
