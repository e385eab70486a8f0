"""The process is killed at every point of a conversation that goes from agent to agent; it continues exactly
once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import ConfigError
from tests.crash.handing_over import crew
from tests.crash.scene import SESSION, Crash, CrashingDatabase, world
from tests.helpers.processes import printed, ran
from tests.helpers.sample import sampled
from tests.sessions.test_kill_matrix import SIGKILL, all_points

ANSWER = "You paid 12 francs."


def check(case: dict[str, Any], base: dict[str, Any]) -> None:
    where = f"killed at {case.get('point')}: {case}"
    assert "error" not in case, where
    assert [turn[:3] for turn in case["turns"]] == [
        ["triage", "handed_over", 1], ["billing", "text_response", 1], ["clerk", "text_response", 0],
    ], where  # fmt: skip
    acts = [line for line in case["world"] if line[1:2] == ["put"]]
    assert len([line for line in acts if line[0] == "begin"]) <= 1, where
    rows = [[role, "put a" if "Unknown outcome" in text else text] for role, text in case["rows"]]
    assert rows == base["rows"], where
    assert len(case["world"]) <= len(base["world"]) + 1, where  # the request that was out is made again


@pytest.mark.slow
def test_killed_at_every_point_the_next_turn_is_begun_exactly_once() -> None:
    """At each point of a sample, with what no caller waits for written as late as can be, or at once."""
    told = printed("-m", "tests.crash.handing_over", timeout=900)
    base: dict[str, Any] = {}
    reached, wanted = list[Any](), list[Any]()
    for case in map(json.loads, told.splitlines()):
        if "base" in case:
            base = case
            wanted += sampled(all_points(base["counts"]), "killed")
        else:
            reached.append(case["point"])
            assert case["signals"] == [SIGKILL, 0]
        check(case, base)
        assert base["rows"][-1] == ["assistant", ANSWER]
    assert reached == wanted


@pytest.mark.slow
def test_killed_between_the_two_turns_the_second_one_is_begun_by_another_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from tests.crash.handing_over import crew\n"
        "from tests.crash.scene import Crash, CrashingDatabase\n"
        f"agent = crew(Path({str(tmp_path)!r}), Crash(), CrashingDatabase)\n"
        "agent.start('What did I pay?').run()\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    assert ran("-c", program).returncode == -9
    agent = crew(tmp_path, Crash(), CrashingDatabase)
    [info] = agent.journal.recent(session=SESSION)
    assert info.exit == "handed_over"
    result = agent.resume(SESSION).run()
    assert (result.agent, result.final_response) == ("billing", ANSWER)
    with pytest.raises(ConfigError, match="nothing to resume"):
        agent.resume(SESSION)
    asked = [line[2] for line in world(tmp_path) if line[0] == "sent"]
    assert asked == ["triage", "billing", "clerk", "billing"]
