"""The action that plays recorded turns under the change of a pull request: on a repository with recordings,
and against a server that answers as GitHub's does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_turn
from tests.helpers.action_runner import ActionRunner, GitHub, StepFailed, github_server
from tests.helpers.recorded_turns import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="runners have a bash"),
]


@pytest.fixture
def github() -> Iterator[GitHub]:
    with github_server() as state:
        yield state


@pytest.fixture
def runner(tmp_path: Path, github: GitHub) -> ActionRunner:
    """A repository with a prompt and the recordings of six turns."""
    turns, store = record(tmp_path / "recorded", 6, seed=2, each=1), Store(tmp_path / "recorded")
    made = ActionRunner(tmp_path, github, "backtest", FSM_AGENT_HOME=str(tmp_path / "empty"))
    exports = {
        f"recordings/{turn}.jsonl": "\n".join([*export_turn(store.database, turn), ""]) for turn in turns
    }
    made.committed({"prompt.txt": "{recorded}", **exports})
    made.inputs |= {"recordings": "recordings/*.jsonl", "arguments": "--prompt prompt.txt --jobs 1"}
    return made


def test_a_change_of_the_prompt_is_reported_and_kept_up_to_date(runner: ActionRunner, github: GitHub) -> None:
    assert "All recorded turns take the same moves." in runner.play()
    assert github.comments == [], "nothing changed, so nothing is said"
    runner.committed({"prompt.txt": "{recorded} Be brief."})
    runner.play()
    [comment] = github.comments
    assert comment["body"].startswith(
        "<!-- fsm-agent backtest --prompt prompt.txt --jobs 1 -->\n### Backtest: "
    )
    assert "| 6 | the same moves, different requests |" in comment["body"]
    assert comment["body"].partition("\n")[2] in (runner.folder / "summary").read_text()
    runner.committed({"prompt.txt": "{recorded}"})
    runner.play()
    assert github.comments == [comment]
    assert "**All recorded turns take the same moves.**" in comment["body"]


def test_a_change_that_moves_too_many_turns_fails_the_job_after_its_comment(
    runner: ActionRunner, github: GitHub
) -> None:
    runner.inputs["arguments"] = "--set max_iterations=1 --most 0 --jobs 1"
    with pytest.raises(StepFailed, match="Gate: "):
        runner.play()
    assert "different moves" in github.comments[0]["body"]
    runner.inputs["arguments"] = "--set max_iterations=1 --most 100% --jobs 1"
    runner.play()


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"recordings": "nothing/*.jsonl"}, "no recording matches: nothing"),
        ({"arguments": "--set max_iterations=many"}, "max_iterations"),
        ({"recordings": ""}, "there is no recorded turn to play"),
    ],
)
def test_wrong_inputs_fail_the_job_in_a_line(
    inputs: dict[str, str], says: str, runner: ActionRunner, github: GitHub
) -> None:
    runner.inputs |= inputs
    with pytest.raises(StepFailed, match=f"^Play: .*{says}"):
        runner.play()
    assert github.comments == []
