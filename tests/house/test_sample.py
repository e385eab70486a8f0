"""What a commit chooses to play."""

from __future__ import annotations

import pytest

from tests.helpers.sample import PART, one_of, sampled, sampled_seeds

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
