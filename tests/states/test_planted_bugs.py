"""The tests that ``docs/testing.md`` tells people to write find the bugs that people make: each planted in a copy
of the tree. The figure stands in that page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.states.planted_bugs import BUGS, EXAMPLES, STATES, is_found, is_green

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_copy_without_a_bug_is_green() -> None:
    assert is_green(STATES)
    assert is_green(EXAMPLES)


@pytest.mark.slow
def test_planted_bugs_are_found() -> None:
    missed = [bug for bug in BUGS if not is_found(bug)]
    assert len(missed) <= 4, missed
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"at least {len(BUGS) - 4} of {len(BUGS)} planted bugs" in page


def test_there_are_twelve_in_the_turn_and_twelve_in_the_examples() -> None:
    assert Counter(bug.folder for bug in BUGS) == {STATES: 12, EXAMPLES: 12}
    assert {bug.kind for bug in BUGS} == {"effect", "data", "event", "counter"}
    for bug in BUGS:
        text = (ROOT / bug.folder / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, bug
