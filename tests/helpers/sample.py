"""A part of what is exhaustive, another one at each commit.

``make test-slow`` plays a quarter of the cases that a test names here, chosen by the commit; ``make test-all``
plays all of them. So four runs in CI cost as much as one whole run, and a failure is found again at its commit, or
with ``SAMPLE=COMMIT``. What a test asserts of its sample as a whole has to hold of every sample."""

# CI plays a quarter of the exhaustive tests. The commit selects the quarter: the same commit repeats it, so a
# failure can be reproduced, and another commit plays another one. `make test-all` plays everything, `make
# explore` plays 20,000 fresh random turns; what fails there becomes an explicit example of the fast test.

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Collection, Iterable, Sized
from functools import cache
from pathlib import Path
from typing import TypeVar

PART = 4
"""One case in this many is played."""
Case = TypeVar("Case")


@cache
def commit() -> str:
    """The commit that is tested; what is not in a repository is always the same sample."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def everything() -> bool:
    """Whether all cases are played."""
    return os.environ.get("SAMPLE") == "all"


def seed(name: str) -> int:
    """A number that another commit makes another one, for the test of this name."""
    given = os.environ.get("SAMPLE", "all")
    of = commit() if given == "all" else given
    return int.from_bytes(hashlib.sha256(f"{of} {name}".encode()).digest()[:8], "big")


def most(whole: int) -> int:
    """How many of ``whole`` random cases are played."""
    return whole if everything() else max(1, whole // PART)


def at_least(whole: int) -> int:
    """How many of the cases that are played must be telling where ``whole`` of all of them are: chance may
    leave a part with half of its share."""
    return whole if everything() else whole // (2 * PART)


def first_of(cases: Sized, name: str) -> int:
    """The place of the first case that is played. There is one, however few they are."""
    return seed(name) % min(PART, len(cases))


def sampled_seeds(seeds: range, name: str) -> range:
    """One in ``PART`` of the seeds, from a first one that the commit chooses: all of them with ``SAMPLE=all``."""
    return seeds if everything() else seeds[first_of(seeds, name) :: PART]


def one_of(cases: Iterable[Case], name: str) -> list[Case]:
    """The one of some cases alike that the commit chooses: all of them with ``SAMPLE=all``."""
    listed = list(cases)
    return listed if everything() else [listed[seed(name) % len(listed)]]


def sampled(cases: Iterable[Case], name: str, *, always: Collection[Case] = ()) -> list[Case]:
    """One in ``PART`` of the cases, from a first one that the commit chooses, and those that found a bug
    before: all of them with ``SAMPLE=all``."""
    listed = list(cases)
    first = first_of(listed, name)
    return [case for n, case in enumerate(listed) if everything() or n % PART == first or case in always]
