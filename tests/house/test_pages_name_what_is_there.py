"""Pages name tests, files, decisions, words of the code and figures that there are, and all that they must;
docs/behaviours.md is what its lines and the marks of the tests make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.options import FILE_SERVERS
from fsm_agent.toolsets import TOOLSETS
from fsm_agent.toolsets.agent import AGENT_TOOLSETS
from fsm_agent_states.table import TURN
from tests.helpers.behaviours import MARK, PAGE, behaviours, counted, marked, page
from tests.helpers.page_glossary import WRITTEN, glossary_script
from tests.helpers.processes import ran
from tests.helpers.sources import ROOT, named_tests, product, text

SECURITY, VERIFY = text("SECURITY.md"), text("docs/verify.md")


def rows(part: str) -> list[list[str]]:
    """The cells of the tables in a part of a page, without their heads."""
    found = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in found][1:]


def section(page: str, heading: str) -> str:
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


# SECURITY.md


def test_the_tests_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", SECURITY))
    assert len(named) > 40
    assert sorted(named - frozenset().union(*named_tests().values())) == []


def test_each_promise_names_a_test_and_no_file_of_threats_is_forgotten() -> None:
    lines = re.findall(r"^\| .*$", section(SECURITY, "What is promised"), re.MULTILINE)
    promises = [line for line in lines if line != "| promise | test |"]
    assert len(promises) > 20
    assert [line for line in promises if not re.search(r"\| `test_\w+`", line)] == []
    named = set(re.findall(r"`(test_\w+)`", SECURITY))
    for path, names in named_tests().items():
        assert path.parent.name != "security" or names & named, path.name


# docs/verify.md


def test_every_assumption_names_its_enforcer_and_a_test() -> None:
    part = section(VERIFY, "What the proofs assume")
    assert len(rows(part)) >= 9
    for assumed, enforced, watched in rows(part):
        assert assumed
        assert enforced
        assert re.fullmatch(r"`tests/\S+::test_\w+`( `tests/\S+::test_\w+`)*", watched), assumed
    for path, name in re.findall(r"`(tests/[^`]+)::(\w+)`", part):
        assert name in named_tests()[ROOT / path], name
    named = re.findall(r"`([\w/]+\.py)`", part)
    assert "fsm_agent/fsm/runner.py" in named
    assert [path for path in named if not (ROOT / path).is_file()] == []


# docs/decisions.md

DECISIONS = text("docs/decisions.md")
CONTENTS, _, REST = DECISIONS.partition("## Contents\n")[2].partition("\n## ")
BODY, _, MOVED_PART = REST.partition("\n## Moved into the code\n")
TITLES = {int(number): title for number, title in re.findall(r"^### (\d+)\. (.*)$", BODY, re.MULTILINE)}
MOVED = {int(row[0]) for row in rows(MOVED_PART)}


def anchor(heading: str) -> str:
    """What a heading is linked by on the pages that are made of Markdown."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_decision_has_its_number_and_is_in_the_contents_with_its_date() -> None:
    assert len(re.findall(r"^### \d+\. ", DECISIONS, re.MULTILINE)) == len(TITLES) <= 40
    listed = re.findall(r"^\| (\d+) \| \[(.*)\]\((#.*)\) \| (\d{4}-\d{2}-\d{2}) \|$", CONTENTS, re.MULTILINE)
    assert [(int(number), title) for number, title, _, _ in listed] == list(TITLES.items())
    assert all(link == anchor(f"{number}. {title}") for number, title, link, _ in listed)
    rooms = re.findall(r"^\*\*\[(.*)\]\((#.*)\)\*\*$", CONTENTS, re.MULTILINE)
    assert [name for name, _ in rooms] == re.findall(r"^## (.*)$", "## " + BODY, re.MULTILINE)
    assert all(link == anchor(name) for name, link in rooms)


def test_each_decision_says_its_context_what_is_decided_and_what_follows() -> None:
    for part in re.split(r"^### ", BODY, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+)\.\*\*", part, re.MULTILINE) == [
            "Context", "Decision", "Consequences",
        ], part  # fmt: skip


def test_a_number_is_a_decision_or_has_moved_into_the_code() -> None:
    assert not MOVED & set(TITLES)
    assert len(MOVED) == len(rows(MOVED_PART))
    assert [row[2] for row in rows(MOVED_PART) if not (ROOT / row[2].strip("`")).is_file()] == []
    assert set(range(1, max(TITLES) + 1)) - MOVED - set(TITLES) == {67}  # struck out: decision 83 replaced it


def test_decisions_that_are_cited_are_there_and_the_code_cites_some() -> None:
    cited: dict[str, set[int]] = {}
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *product()):
        for words in re.findall(r"\b[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)", text(path)):
            cited.setdefault(path.suffix, set()).update(map(int, re.findall(r"\d+", words)))
    assert set().union(*cited.values()) <= set(TITLES) | MOVED
    assert len(cited[".py"] & set(TITLES)) >= 15


# docs/glossary.md

GLOSSARY = text("docs/glossary.md")


def explained(heading: str) -> list[str]:
    return [row[0] for row in rows(section(GLOSSARY, heading))]


def test_the_glossary_has_each_word_of_the_turn_once() -> None:
    assert explained("The counters of the turn") == [f"`{counter.name}`" for counter in TURN.counters]
    assert [state for state in TURN.states if f"`{state}`" not in GLOSSARY] == []
    assert [outcome for outcome in Outcome if outcome.value not in GLOSSARY] == []
    headings = (FIRST_WORDS, "The machine", "Conversations and the store", "Models")
    words = [word for heading in headings for word in explained(heading)]
    assert len(words) == len(set(words))
    # the page of the debugger explains them so, too
    assert WRITTEN.read_text(encoding="utf-8") == glossary_script(), "python -m tests.helpers.page_glossary"


FIRST_WORDS = "Ten words for your first table"


def test_ten_words_are_enough_for_a_first_table() -> None:
    known, further = explained(FIRST_WORDS), explained("The machine")
    assert len(known) == 10
    page = section(text("docs/tutorial.md"), "8. Write your own table").lower()
    words = [word for entry in further for word in re.findall(r"[a-z ]+", entry.lower())]
    assert [word for word in words if re.search(rf"\b{re.escape(word.strip())}s?\b", page)] == []


# docs/agent.md; its blocks are run by tests/docs


def test_the_tables_of_the_python_guide_are_whole() -> None:
    page = text("docs/agent.md")
    for reason in ExitReason:
        row = next(line for line in page.splitlines() if line.startswith(f"| {reason.outcome.value} |"))
        assert f"`{reason.value}`" in row
    named = re.search(r"Built-in toolsets \((.*?)\)", page, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == {*TOOLSETS, *AGENT_TOOLSETS, FILE_SERVERS}


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


MEASURED = ROOT / "benchmarks" / "measured" / "overhead.json"
WORSE = 1.5
"""A ratio is worse if it exceeds the stored one by this factor: a busy machine moves it by a third."""


def ratios(found: Any) -> dict[str, float]:
    return {row["what"]: row["cpu_ratio"] for row in found["rows"]}


def test_the_pages_have_the_figures_that_were_measured() -> None:
    done = ran("benchmarks/figures.py", "--check", cwd=ROOT)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.slow
def test_a_model_call_costs_no_more_beside_a_bare_loop_than_it_did(tmp_path: Path) -> None:
    """Processor time, as a ratio inside one run; the best of three runs counts."""
    before = ratios(json.loads(MEASURED.read_text()))
    best: dict[str, float] = {}
    for number in range(3):
        file = tmp_path / f"{number}.json"
        command = ["benchmarks/overhead.py", "--iterations", "10", "50", "--turns", "--deltas", "--runs", "3"]
        ran(*command, "--json", str(file), cwd=ROOT, timeout=900).check_returncode()
        for what, ratio in ratios(json.loads(file.read_text())).items():
            best[what] = min(ratio, best.get(what, ratio))
        if all(ratio <= WORSE * before[what] for what, ratio in best.items()):
            return
    assert {what: ratio for what, ratio in best.items() if ratio > WORSE * before[what]} == {}
