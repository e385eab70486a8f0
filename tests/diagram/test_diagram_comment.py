"""The comment on a pull request: its text, and the action that posts it, tried on a repository of two
commits and a server that answers like GitHub's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fsm_agent.diagram.versions import Version
from fsm_agent.diagram.versions.compare import compare, proofs
from fsm_agent.diagram.versions.rendering import LONGEST, as_comment
from fsm_agent.fsm.table import Table, end
from tests.diagram.test_diagram_versions import TABLE_FILE
from tests.helpers.action_runner import PAGE, PERSON, ActionRunner, GitHub, github_server
from tests.helpers.diagram_tables import LIMITS, OTHER, SMALL, SMALL_LIMITS, proved, united_of

MARKER = "<!-- fsm-agent diagram diff loop:LOOP -->"


def comment_of(old: Table, new: Table) -> str:
    versions = Version("main", old, LIMITS), Version("working tree", new, LIMITS)
    return as_comment(*versions, compare(old, new), proved(old, new))


def test_a_comment_has_rows_proofs_and_both_maps() -> None:
    text = comment_of(SMALL, OTHER)
    assert "1 row removed, 1 row changed; every turn still ends." in text
    assert "| every turn ends | holds | holds |" in text
    assert "-   bad: fix › give back\n+   bad: give back" in text
    before, after = text.split("Map after (working tree)")
    assert "Map before (main)" in before
    for drawn in (before.partition("Map before")[2], after):
        assert "stateDiagram-v2" in drawn
        assert "[*] --> Start" in drawn
    assert "Act --> Act : fix\n" in before
    assert "Act --> Act" not in after
    assert "Act --> Think : ok, give back\n" in before
    assert "class Act changed" in after
    assert "changed" not in before.partition("Map before")[2]
    assert text.count("<details>") == text.count("</details>") == 3


def test_a_comment_begins_with_what_can_happen_now_and_one_picture() -> None:
    """The paragraph has new and lost moves, exits, and resets, the bounds, and the certificate's verdict."""
    versions = Version("main", OTHER, SMALL_LIMITS), Version("working tree", SMALL, SMALL_LIMITS)
    text = as_comment(*versions, compare(OTHER, SMALL), proofs(*versions), united_of(OTHER, SMALL))
    title, sentence, told, picture, *_ = (part for part in text.split("\n\n") if part.strip())
    assert title == "# The small table: main → working tree"
    assert "every turn still ends" in sentence
    assert told.startswith("**New:** Act may lead to Act. At most ")
    assert re.search(r"At most \d+ moves instead of \d+\.", told)
    assert told.endswith(
        "The certificate of the new version is accepted by `check_certificate.py`; before: accepted by `check_certificate.py`."
    )
    assert picture.startswith("```mermaid\n---\n")
    assert "+ fix" in picture
    back = comment_of(SMALL, OTHER)
    assert "**No longer:** Act may lead to Act." in back
    changed = replace(SMALL, lines=tuple(
        replace(line, resets=("acts",)) if line.event == "review" else replace(line, ladder=(end("tired", "Done"),))
        if line.event == "said" else line for line in SMALL.lines
    ))  # fmt: skip
    told = comment_of(SMALL, changed)
    assert "**New:** a turn may end with *tired*; *review* in Think gives back acts." in told
    assert "**No longer:** a turn may end with *answered*." in told


def test_what_is_not_proved_any_more_is_told_beside_what_was() -> None:
    lines = list(SMALL.lines)
    lines[1] = replace(lines[1], ladder=(replace(lines[1].ladder[0], spends=()), lines[1].ladder[1]))
    text = comment_of(SMALL, replace(SMALL, lines=tuple(lines)))
    assert "| every turn ends | holds | **fails** |" in text
    assert "**the new version is not proved any more**" in text


def test_a_comment_without_changes_is_short() -> None:
    assert comment_of(SMALL, SMALL).splitlines()[2:] == ["No row changed; every turn still ends."]


def test_a_comment_never_gets_too_long() -> None:
    why = "w" * 400
    of_check = [replace(one, why=why, resets=("asks",)) for one in SMALL.lines if one.source == "Check"]
    many = [replace(one, event=f"{one.event}_{number}") for number in range(150) for one in of_check]
    text = comment_of(OTHER, replace(SMALL, lines=(*SMALL.lines, *many)))
    assert len(text) <= LONGEST
    assert text.count("```") % 2 == 0
    assert "does not fit into a comment" in text


@pytest.fixture
def github() -> Iterator[GitHub]:
    with github_server() as state:
        yield state


class Runner(ActionRunner):
    """A repository with a table, and the action that compares it."""

    def __init__(self, folder: Path, github: GitHub) -> None:
        super().__init__(folder, github, "diagram-diff")
        self.base = self.commit(TABLE_FILE)
        self.inputs |= {"base": self.base, "table": "loop:LOOP"}

    def commit(self, table: str) -> str:
        return self.committed({"loop.py": table})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="runners have a bash")
def test_the_action_posts_a_comment_and_keeps_it_up_to_date(tmp_path: Path, github: GitHub) -> None:
    runner = Runner(tmp_path, github)
    github.comments = [{"id": n, "user": PERSON, "body": f"{MARKER} quoted"} for n in range(1, PAGE + 2)]
    theirs = list(github.comments)
    runner.play()
    assert [method for method, _ in github.asked] == ["GET", "GET"], "nothing changed, so nothing is said"
    runner.commit(TABLE_FILE.replace('"gave_up"', '"tired"'))
    runner.play()
    assert github.asked[-1] == ("POST", "/repos/o/r/issues/7/comments")
    mine = github.comments[-1]
    assert mine["body"].startswith(f"{MARKER}\n# The loop table: {runner.base[:10]} → working tree")
    assert "was ⇥ gave up" in mine["body"]
    assert "Map before" in mine["body"]
    assert mine["body"].partition("\n")[2] in (runner.folder / "summary").read_text()
    runner.commit(TABLE_FILE.replace('"gave_up"', '"exhausted"'))
    runner.play()
    assert github.asked[-1] == ("PATCH", f"/repos/o/r/issues/comments/{mine['id']}")
    assert "⇥ exhausted" in mine["body"]
    runner.commit(TABLE_FILE)
    runner.play()
    assert "No row changed" in mine["body"]
    assert (github.comments[:-1], github.tokens) == (theirs, {"Bearer t0ken"})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="runners have a bash")
def test_a_token_that_may_only_read_is_no_failure(tmp_path: Path, github: GitHub) -> None:
    runner, github.refuses = Runner(tmp_path, github), True
    runner.commit(TABLE_FILE.replace('"gave_up"', '"tired"'))
    said = runner.play()
    assert "::notice::The report is in the summary of this job" in said
    assert "403" in said
    assert "t0ken" not in said
    assert "was ⇥ gave up" in (runner.folder / "summary").read_text()
