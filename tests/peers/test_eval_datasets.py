"""The datasets of two evaluation libraries, read and written by them and by us: each in an environment of its
own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fsm_agent.evaluation import Case, Dataset, read_cases, write_cases
from tests.peers.environment import PeerUnavailable, peer_python

pytestmark = [pytest.mark.slow]
PEERS = {"pydantic-evals": "2.62.0", "inspect-ai": "0.3.285"}
CALL = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"city":"Oslo"}'}}
HISTORY = (
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "One moment.", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "1"},
    {"role": "assistant", "content": "Sunny."},
)
OURS = Dataset(
    "capitals",
    (Case("a", "The capital of Norway?", "Oslo", (), {"tools": ["lookup"], "hard": True}),
     Case("b", "And of Italy?", ["Rome", "Roma"]), Case("c", "And now?", "Warm.", HISTORY)),
)  # fmt: skip
PYDANTIC = """
import sys
from typing import Any
from pydantic_evals import Dataset
from pydantic_evals.evaluators import EqualsExpected

ours = Dataset[Any, Any, Any].from_file(sys.argv[1])
for case in ours.cases:
    print(case.name, len(case.inputs), case.expected_output, case.metadata, sep="|")


def task(inputs):
    return "Oslo" if "Norway" in str(inputs) else "Warm."


ours.add_evaluator(EqualsExpected())
print(sum(one.assertions["EqualsExpected"].value for one in ours.evaluate_sync(task, progress=False).cases))
ours.to_file(sys.argv[2], schema_path=None)
"""
INSPECT = """
import json, sys
from inspect_ai.dataset import json_dataset

ours = json_dataset(sys.argv[1])
for one in ours:
    print(one.id, len(one.input), one.target, one.metadata, sep="|")
calls = ours[2].input[1].tool_calls
print(calls[0].function, calls[0].arguments, calls[0].id)
with open(sys.argv[2], "w") as file:
    for one in ours:
        file.write(one.model_dump_json(exclude_none=True) + "\\n")
"""


def printed(peer: str, program: str, *files: Path) -> list[str]:
    try:
        python = peer_python(peer, PEERS[peer])
    except PeerUnavailable as error:
        pytest.skip(f"{peer} {PEERS[peer]} cannot be used here: {error}")
    done = subprocess.run(
        [python, "-c", program, *files], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def same(found: Dataset) -> None:
    assert [(one.id, one.input, one.expected, dict(one.metadata)) for one in found.cases] == [
        (one.id, one.input, one.expected, dict(one.metadata)) for one in OURS.cases
    ]
    assert [one.digest for one in found.cases] == [one.digest for one in OURS.cases]


@pytest.mark.parametrize("name", ["ours.yaml", "ours.json"])
def test_pydantic_evals_reads_runs_and_writes_what_we_read(tmp_path: Path, name: str) -> None:
    write_cases(OURS, tmp_path / name)
    theirs = tmp_path / f"theirs{(tmp_path / name).suffix}"
    said = printed("pydantic-evals", PYDANTIC, tmp_path / name, theirs)
    assert said[0] == "a|22|Oslo|{'tools': ['lookup'], 'hard': True}"
    assert said[2].startswith("c|5|Warm.|None")
    assert said[3] == "2", "two of three answers are right"
    same(found := read_cases(theirs))
    assert found.left_out == ("evaluators",)


def test_inspect_ai_reads_and_writes_what_we_read(tmp_path: Path) -> None:
    write_cases(OURS, tmp_path / "ours.jsonl")
    said = printed("inspect-ai", INSPECT, tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl")
    assert said[0] == "a|22|Oslo|{'tools': ['lookup'], 'hard': True}"
    assert said[1].startswith("b|13|['Rome', 'Roma']|")
    assert said[3] == "lookup {'city': 'Oslo'} 1"
    assert (
        json.loads((tmp_path / "theirs.jsonl").read_text().splitlines()[2])["input"][1]["source"] == "input"
    )
    same(read_cases(tmp_path / "theirs.jsonl"))
