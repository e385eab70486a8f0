"""What a commit chooses to play."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.processes import ran
from tests.helpers.sample import PART, one_of, sampled, sampled_seeds

ROOT = Path(__file__).parents[2]
COMMITS = [f"{number:040x}" for number in range(40)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 110])
def test_every_commit_plays_some_cases_and_together_they_play_all(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, ranges = set[tuple[int, ...]](), set[range]()
    for commit in COMMITS:
        monkeypatch.setenv("SAMPLE", commit)
        samples.add(tuple(sampled(range(count), "some")))
        ranges.add(sampled_seeds(range(count), "some"))
    assert sorted(case for sample in samples for case in sample) == list(range(count))
    assert {tuple(one) for one in ranges} == samples
    assert len(samples) == min(PART, count)
    monkeypatch.setenv("SAMPLE", "all")
    assert sampled(range(count), "some") == list(sampled_seeds(range(count), "some")) == list(range(count))


def test_a_case_that_found_a_bug_is_played_by_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    for commit in COMMITS:
        monkeypatch.setenv("SAMPLE", commit)
        assert {3, 6} <= {*sampled(range(9), "some", always=[3, 6])}
        assert one_of("ab", "some") in (["a"], ["b"])


@settings(max_examples=5)
@given(number=st.integers())
def test_a_number_is_drawn(number: int) -> None:
    with open(os.environ.get("DRAWN", os.devnull), "a", encoding="utf-8") as drawn:
        assert drawn.write(f"{number}\n")


@pytest.mark.slow
def test_the_examples_of_hypothesis_are_those_of_the_commit(tmp_path: Path) -> None:
    drawn = []
    for number, (commit, ci) in enumerate([(COMMITS[0], ""), (COMMITS[0], "true"), (COMMITS[1], "true")]):
        env = os.environ | {"SAMPLE": commit, "DRAWN": str(tmp_path / str(number)), "CI": ci}
        ran("-m", "tests.helpers.suite", "--workers", "1", "-k", "is_drawn", __file__, cwd=ROOT, env=env)
        drawn.append((tmp_path / str(number)).read_text())
    assert drawn[0] == drawn[1] != drawn[2]
