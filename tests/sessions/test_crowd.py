"""Real processes on one session of one home, troubled at random: see ``tests/crash/crowd.py``. Seeded, and
bounded in time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 30
"""Of each of the 18 runs: nine minutes in all."""


def crowd(
    processes: int, seconds: float, seed: int, mode: str, trouble: str, mutant: str = ""
) -> dict[str, Any]:
    words = [str(processes), str(seconds), str(seed), mode, trouble, mutant]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.crowd", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds + 240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def told(found: dict[str, Any]) -> str:
    return "\n\n".join(
        [f"{name}: {value}" for name, value in found.items() if name != "wrong"] + found["wrong"][:3]
    )


@pytest.mark.slow
def test_processes_that_wait_and_try_again_lose_nothing() -> None:
    found = crowd(3, 3, 1, "plain", "kill")
    assert not found["wrong"], told(found)
    assert found["turns"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["none", "kill", "locks"])
@pytest.mark.parametrize("mode", ["plain", "rotate"])
@pytest.mark.parametrize("processes", [2, 3, 5])
def test_every_turn_that_was_called_completed_is_stored_in_order_and_whole(
    processes: int, mode: str, trouble: str
) -> None:
    found = crowd(processes, SECONDS, 100 * processes, mode, trouble)
    assert not found["wrong"], told(found)
    assert found["turns"] >= 20
    assert found["rotations"] > 3 if mode == "rotate" else found["undone"]
    assert {"none": 1, "kill": found["kills"], "locks": found["removed"]}[trouble]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "trouble", "mutant"),
    [
        ("plain", "none", "no revision"),
        ("rotate", "none", "no revision"),
        ("plain", "locks", "no fence"),
        ("rotate", "locks", "no fence"),
    ],
)
def test_an_engine_with_one_fault_is_caught(mode: str, trouble: str, mutant: str) -> None:
    """Chance decides when the fault does harm: up to six crowds are watched for it."""
    assert any(crowd(3, 12, seed, mode, trouble, mutant)["wrong"] for seed in range(7, 13))
