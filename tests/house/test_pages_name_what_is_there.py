"""Pages name tests, files, decisions and words of the code that there are, and all that they must."""

from __future__ import annotations

import re

from fsm_agent.composition.options import FILE_SERVERS
from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.toolsets import TOOLSETS
from fsm_agent.toolsets.agent import AGENT_TOOLSETS
from fsm_agent_states.table import TURN
from tests.helpers.page_glossary import WRITTEN, glossary_script
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


def test_every_assumption_says_who_enforces_it_and_names_a_test() -> None:
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
CONTENTS, _, BODY = DECISIONS.partition("## Contents\n")[2].partition("\n## ")
TITLES = {int(number): title for number, title in re.findall(r"^### (\d+)\. (.*)$", BODY, re.MULTILINE)}


def anchor(heading: str) -> str:
    """What a heading is linked by on the pages that are made of Markdown."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_decision_has_its_number_and_is_in_the_contents_with_its_date() -> None:
    assert len(re.findall(r"^### \d+\. ", DECISIONS, re.MULTILINE)) == len(TITLES)
    assert sorted(TITLES) == list(range(1, len(TITLES) + 1))
    listed = re.findall(r"^\| (\d+) \| \[(.*)\]\((#.*)\) \| (\d{4}-\d{2}-\d{2}) \|$", CONTENTS, re.MULTILINE)
    assert [(int(number), title) for number, title, _, _ in listed] == list(TITLES.items())
    assert all(link == anchor(f"{number}. {title}") for number, title, link, _ in listed)
    rooms = re.findall(r"^\*\*\[(.*)\]\((#.*)\)\*\*$", CONTENTS, re.MULTILINE)
    assert [name for name, _ in rooms] == re.findall(r"^## (.*)$", "## " + BODY, re.MULTILINE)
    assert all(link == anchor(name) for name, link in rooms)


def test_decisions_that_are_cited_are_there_and_the_code_cites_some() -> None:
    cited: dict[str, set[int]] = {}
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *product()):
        for words in re.findall(r"\b[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)", text(path)):
            cited.setdefault(path.suffix, set()).update(map(int, re.findall(r"\d+", words)))
    assert set().union(*cited.values()) <= set(TITLES)
    assert len(cited[".py"]) >= 40


# docs/glossary.md

GLOSSARY = text("docs/glossary.md")


def explained(heading: str) -> list[str]:
    return [row[0] for row in rows(section(GLOSSARY, heading))]


def test_the_glossary_has_each_word_of_the_turn_once() -> None:
    assert explained("The counters of the turn") == [f"`{counter.name}`" for counter in TURN.counters]
    assert [state for state in TURN.states if f"`{state}`" not in GLOSSARY] == []
    assert [outcome for outcome in Outcome if outcome.value not in GLOSSARY] == []
    headings = ("The machine", "Conversations and the store", "Models")
    words = [word for heading in headings for word in explained(heading)]
    assert len(words) == len(set(words))
    # the page of the debugger explains them so, too
    assert WRITTEN.read_text(encoding="utf-8") == glossary_script(), "python -m tests.helpers.page_glossary"


# docs/agent.md; its blocks are run by tests/docs


def test_the_tables_of_the_python_guide_are_whole() -> None:
    page = text("docs/agent.md")
    for reason in ExitReason:
        row = next(line for line in page.splitlines() if line.startswith(f"| {reason.outcome.value} |"))
        assert f"`{reason.value}`" in row
    named = re.search(r"Built-in toolsets \((.*?)\)", page, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == {*TOOLSETS, *AGENT_TOOLSETS, FILE_SERVERS}
