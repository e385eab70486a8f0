"""What a round costs in calls, and what the first agent loads, does not grow (``benchmarks/counts.py``)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.counts import CEILINGS, calls, modules
from fsm_agent import Agent


def test_a_round_and_the_first_agent_cost_no_more_than_they_did() -> None:
    found = calls(30) | modules()
    assert found.keys() == CEILINGS.keys()
    assert {name: value for name, value in found.items() if value > CEILINGS[name]} == {}


def test_making_an_agent_opens_no_database(tmp_path: Path) -> None:
    Agent("openai:m", api_key="k", home=tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix.startswith(".db")] == []
