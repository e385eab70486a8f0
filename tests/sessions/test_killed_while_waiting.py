"""Waiting for a person or for children is a pause that the end of the process does not end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.waiting import PLAN, SESSION, agent_of

ROOT = Path(__file__).parents[2]


def killed(home: Path, kind: str) -> Path:
    """Run a turn in a process of its own until it is killed; the file that says what it did."""
    mark = home / "mark"
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.waiting", str(home), str(mark), kind],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    return mark


def told(result: Any) -> list[str]:
    return [row["content"] for row in result.messages if row["role"] == "tool"]


pytestmark = pytest.mark.slow


def test_a_turn_killed_while_it_waits_for_approval_asks_again(tmp_path: Path) -> None:
    """With nobody there after the restart the answer is no."""
    mark = killed(tmp_path, "approval")
    assert mark.read_text() == "asked\n"
    shutil.copytree(tmp_path, tmp_path / "alone")
    result = agent_of(tmp_path, mark, dies=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\nran users\n"
    assert result.completed
    assert told(result)[1] == "dropped"
    assert json.loads(told(result)[0])["todos"] == PLAN
    alone = agent_of(tmp_path / "alone", mark, dies=False, attended=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\nran users\n"
    assert "nobody is there" in told(alone)[1]


def test_a_question_of_the_model_is_asked_again(tmp_path: Path) -> None:
    mark = killed(tmp_path, "clarify")
    result = agent_of(tmp_path, mark, dies=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\n"
    assert json.loads(told(result)[0])["answer"] == "once"


def test_children_that_had_ended_are_looked_up_and_the_others_resumed(tmp_path: Path) -> None:
    mark = killed(tmp_path, "children")
    one = agent_of(tmp_path, mark, dies=False)
    result = one.resume(SESSION).run()
    assert [entry["summary"] for entry in json.loads(told(result)[0])["results"]] == ["ONE", "TWO"]
    assert mark.read_text() == "looked\nlooked\n"
    assert [child.outcome for child in result.children] == ["completed"] * 2
    asked = [turn.asked for turn in one.journal.recent()]
    assert sorted(asked) == ["children", "one", "two"]


@pytest.mark.parametrize("kind", ["approval", "children"])
def test_the_session_can_also_go_on_without_resuming(tmp_path: Path, kind: str) -> None:
    mark = killed(tmp_path, kind)
    result = agent_of(tmp_path, mark, dies=False).run_conversation("clarify", conversation_history=[])
    assert result.completed
