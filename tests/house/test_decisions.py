"""docs/decisions.md: numbers are given once, the contents have every decision, and what is cited is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
CONTENTS, _, TEXT = PAGE.partition("## Contents\n")[2].partition("\n## ")
DECISIONS = {int(number): title for number, title in re.findall(r"^### (\d+)\. (.*)$", TEXT, re.MULTILINE)}


def anchor(heading: str) -> str:
    """What a heading is linked by on the pages that are made of Markdown."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_number_is_given_once_and_none_is_left_out() -> None:
    assert len(re.findall(r"^### \d+\. ", PAGE, re.MULTILINE)) == len(DECISIONS)
    assert sorted(DECISIONS) == list(range(1, len(DECISIONS) + 1))


def test_the_contents_have_every_decision_with_its_date() -> None:
    listed = re.findall(r"^\| (\d+) \| \[(.*)\]\((#.*)\) \| (\d{4}-\d{2}-\d{2}) \|$", CONTENTS, re.MULTILINE)
    assert [(int(number), title) for number, title, _, _ in listed] == list(DECISIONS.items())
    assert all(link == anchor(f"{number}. {title}") for number, title, link, _ in listed)
    rooms = re.findall(r"^\*\*\[(.*)\]\((#.*)\)\*\*$", CONTENTS, re.MULTILINE)
    assert [name for name, _ in rooms] == re.findall(r"^## (.*)$", "## " + TEXT, re.MULTILINE)
    assert all(link == anchor(name) for name, link in rooms)


def test_what_is_cited_is_there_and_the_code_cites_some() -> None:
    cited: dict[str, set[int]] = {}
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "fsm_agent").rglob("*.py")]
    for path in [*files, *(ROOT / "states").rglob("*.py")]:
        for words in re.findall(
            r"\b[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)", path.read_text(encoding="utf-8")
        ):
            cited.setdefault(path.suffix, set()).update(map(int, re.findall(r"\d+", words)))
    assert set().union(*cited.values()) <= set(DECISIONS)
    assert len(cited[".py"]) >= 40
