"""What a round costs in calls, and what the first agent loads, does not grow (``benchmarks/counts.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fsm_agent import Agent

ROOT = Path(__file__).parents[2]


def test_a_round_and_the_first_agent_cost_no_more_than_they_did() -> None:
    """In a process of its own: in this one, other tests may follow what happens."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "states")))}
    command = [sys.executable, str(ROOT / "benchmarks" / "counts.py"), "30"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("at most") == 4, done.stderr
    assert done.returncode == 0, done.stdout


def test_making_an_agent_opens_no_database(tmp_path: Path) -> None:
    Agent("openai:m", api_key="k", home=tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix.startswith(".db")] == []
