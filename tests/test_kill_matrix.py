"""The process kills itself at every point of a turn, and another one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.invariants import violations
from fsm_agent.messages import messages_from
from fsm_agent.requests import Runtime
from fsm_agent.wire import View, WireCopy
from tests.crash.mutants import MUTANTS
from tests.wire_rows import chat_rows

ROOT = Path(__file__).parent.parent
SIGKILL = 9
MODES = ("chat_completions", "codex_responses", "anthropic_messages")
STATES = {"Prepare", "BuildMessages", "CallLLM", "ClassifyError", "Compress", "ExecuteTools", "EmptyRecovery", "Finalize"}


def run(*arguments: str, module: str = "tests.crash.driver") -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(case: dict[str, Any], base: dict[str, Any]) -> None:
    """What holds of every turn that was killed and continued."""
    where = f"killed at {case['point']}, then at {case['then']}"
    assert "error" not in case, f"{where}: {case['error']}"
    assert case["signals"][-1] == 0, where
    assert (case["final"], case["exit"]) == (base["final"], base["exit"]), where
    assert case["messages"] == case.get("stored", case["messages"]), f"{where}: the store has other rows than the turn"
    begun = [line[2] for line in case["world"] if line[:2] == ["begin", "put"]]
    ended = [line[2] for line in case["world"] if line[:2] == ["end", "put"]]
    assert len(begun) <= 1, f"{where}: an unsafe tool ran twice"
    assert len({line[2] for line in case["world"] if line[1] == "mark"}) <= 1, f"{where}: one call had two keys"
    check_rows(case["messages"], base["messages"], known=bool(ended), where=where)
    in_doubt = [row for row in case["messages"] if "Unknown outcome" in str(row.get("content"))]
    if in_doubt and not case.get("ended"):
        assert len(case["signals"]) > 2 or any("took effect" in line for line in case["heard"]), f"{where}: nobody was told"
    check_wires(case["messages"], where)


def check_rows(rows: list[dict[str, Any]], wanted: list[dict[str, Any]], known: bool, where: str) -> None:
    """The transcript of the turn that was not killed, but for the result of an unsafe tool that nobody saw the end of."""
    for row, other in zip(rows, wanted, strict=True):
        if row != other:
            assert (row["role"], row["name"]) == ("tool", "put"), f"{where}: {row} instead of {other}"
            assert str(row["content"]).startswith("Unknown outcome"), f"{where}: {row}"


def check_wires(rows: list[dict[str, Any]], where: str) -> None:
    history = messages_from(rows)
    for mode in MODES:
        runtime = Runtime("test", "m", api_mode=mode)  # type: ignore[arg-type]
        written = b"".join(WireCopy().messages("prompt", history, (), View.of(runtime, frozenset())))
        key = "input" if mode == "codex_responses" else "messages"
        body: dict[str, Any] = {key: json.loads(written)}
        if mode == "anthropic_messages":
            body["max_tokens"] = 1
        assert not violations(chat_rows(body)), f"{where}: {mode}"


def test_a_turn_survives_being_killed_at_some_points() -> None:
    """Every point and every recovery is the slow one's; this is one in eight."""
    base, *cases = run("matrix", "full", "0", "8")
    assert set(base["base"]["states"]) == STATES
    for case in cases:
        assert case["signals"][0] == SIGKILL
        check(case, base["base"])


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "second"), [("full", 4), ("normal", 6)])
def test_a_turn_survives_being_killed_anywhere(durability: str, second: int) -> None:
    base, *cases = run("matrix", durability, str(second), "1")
    assert set(base["base"]["states"]) == STATES
    assert len(cases) > 200
    for case in cases:
        assert case["signals"][0] == SIGKILL, "every point was reached"
        check(case, base["base"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_an_engine_with_a_fault_is_noticed(name: str) -> None:
    base, *cases = run("mutant", name)
    noticed = [case["point"] for case in cases if not _passes(case, base["base"])]
    assert noticed


def _passes(case: dict[str, Any], base: dict[str, Any]) -> bool:
    try:
        check(case, base)
    except (AssertionError, ValueError):
        return False
    return True


@pytest.mark.slow
def test_a_fork_survives_being_killed_anywhere() -> None:
    base, *cases = run("forks")
    assert len(cases) > 30
    for case in cases:
        where = f"fork killed at {case['point']}"
        assert case["signals"] == [SIGKILL], where
        assert "error" not in case, f"{where}: {case['error']}"
        assert case["final"] == "all done", where
        assert case["old"] == base["base"]["messages"], f"{where}: the old turn has changed"
        check_rows(case["messages"], base["base"]["forked"]["messages"], known=True, where=where)
        check_wires(case["messages"], where)
        begun = [line for line in case["world"] if line[:2] == ["begin", "put"]]
        assert len(begun) <= 2, f"{where}: once in the old turn, at most once in the fork"


@pytest.mark.slow
def test_fifty_turns_that_are_killed_together_all_go_on() -> None:
    for case in run("many", "50", "0", "0.1", "0.25", "0.4", "0.55", "0.7"):
        where = f"killed at commit {case['commit']}"
        assert "error" not in case, f"{where}: {case.get('error')}"
        assert case["signal"] == SIGKILL, where
        assert set(case["found"]) <= {"all done", "not begun"}, where
        assert len([line for line in case["world"] if line[:2] == ["begin", "put"]]) <= 50, where
