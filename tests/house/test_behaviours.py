"""docs/behaviours.md has every behaviour that is cited by its id, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "behaviours.md"
ROWS = re.findall(r"^\| ([A-Z]+-\d\d) \| (.+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
GROUPS = "|".join(sorted({row[0].partition("-")[0] for row in ROWS}))
CITED = re.compile(rf"\b({GROUPS})-(\d\d)(?:\.\.(\d\d))?")
"""One, or as in INV-01..08 all from the first to the last."""


def cited() -> Iterator[str]:
    """Every id that another file names."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path != PAGE]
    code = [path for room in ("fsm_agent", "states", "tests") for path in (ROOT / room).rglob("*.py")]
    for path in [*pages, *ROOT.glob("*.md"), *code]:
        if path != Path(__file__):
            for group, first, last in CITED.findall(path.read_text(encoding="utf-8")):
                yield from (f"{group}-{number:02}" for number in range(int(first), int(last or first) + 1))


def test_each_id_that_is_cited_has_one_row_and_each_row_is_cited() -> None:
    ids = [row[0] for row in ROWS]
    assert len(ids) == len(set(ids)) > 60
    assert set(cited()) == set(ids)


def test_what_is_cited_looks_like_nothing_else() -> None:
    """An id of a group that the page does not have would be overlooked."""
    others = {"UTF", "CRC", "ISO", "RFC", "SHA"}
    for path in [*(ROOT / "fsm_agent").rglob("*.py"), *(ROOT / "states").rglob("*.py")]:
        found = set(re.findall(r"\b([A-Z]{2,7})-\d\d\b", path.read_text(encoding="utf-8")))
        assert found <= others | set(GROUPS.split("|")), path


def test_the_files_that_it_names_are_there() -> None:
    for name, _, where in ROWS:
        for path in re.findall(r"`([^`]+)`", where):
            room = "states/fsm_agent_states" if path.startswith("states/") else "fsm_agent"
            assert (ROOT / room / path.removeprefix("states/")).is_file(), (name, path)
