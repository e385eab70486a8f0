"""The process kills itself at every point of a turn, and another one continues."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from fsm_agent.conversation.effects import Point, Runtime
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View
from fsm_agent.testing.wires import chat_rows
from fsm_agent_states.table import TURN
from tests.crash.mutants import MUTANTS
from tests.crash.waiting import PLAN, SESSION, agent_of
from tests.helpers.families import told
from tests.helpers.processes import printed, ran
from tests.helpers.sample import most, one_of, sampled

SIGKILL = 9
MODES = ("chat_completions", "codex_responses", "anthropic_messages")
STATES = set(TURN.states)
BUILT: Point = "BuildMessages.built"


def run(*arguments: str, module: str = "tests.crash.driver") -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed("-m", module, *arguments, timeout=1_500).splitlines()]


def check(case: dict[str, Any], base: dict[str, Any]) -> None:
    """What holds of every turn that was killed and continued."""
    where = f"killed at {case['point']}, then at {case['then']}"
    assert "error" not in case, f"{where}: {case['error']}"
    assert (case["final"], case["exit"]) == (base["final"], base["exit"]), where
    assert case["messages"] == case.get("stored", case["messages"]), (
        f"{where}: the store has other rows than the turn"
    )
    said, summed = case.get("tokens", (0, 0))
    assert said == summed, f"{where}: {said} tokens, and {summed} in the store"
    sent = [line for line in case["world"] if line[0] == "sent"]
    assert len(sent) <= case["paid"], (
        f"{where}: {len(sent)} requests, {case['paid']} of them paid for by rows"
    )
    begun = [line[2] for line in case["world"] if line[:2] == ["begin", "put"]]
    ended = [line[2] for line in case["world"] if line[:2] == ["end", "put"]]
    assert len(begun) <= 1, f"{where}: an unsafe tool ran twice"
    assert len({line[2] for line in case["world"] if line[1] == "mark"}) <= 1, (
        f"{where}: one call had two keys"
    )
    check_rows(case["messages"], base["messages"], known=bool(ended), where=where)
    in_doubt = [row for row in case["messages"] if "Unknown outcome" in str(row.get("content"))]
    if in_doubt and not case.get("ended"):
        assert len(case["signals"]) > 2 or any(
            "may or may not have taken effect" in line for line in case["heard"]
        ), f"{where}: the doubt was not reported"
    check_wires(case["messages"], where)


def check_all(cases: Iterable[dict[str, Any]], base: dict[str, Any]) -> None:
    for case in cases:
        assert_reached(case)
        check(case, base)


def check_rows(rows: list[dict[str, Any]], wanted: list[dict[str, Any]], known: bool, where: str) -> None:
    """The transcript of the turn that was not killed, but for the result of an unsafe tool that did not
    end."""
    for row, other in zip(rows, wanted, strict=True):
        if row != other:
            assert (row["role"], row["name"]) == ("tool", "put"), f"{where}: {row} instead of {other}"
            assert str(row["content"]).startswith("Unknown outcome"), f"{where}: {row}"


def check_wires(rows: list[dict[str, Any]], where: str) -> None:
    history = [Message.from_dict(row) for row in rows]
    for mode in MODES:
        runtime = Runtime("test", "m", api_mode=mode)
        written = b"".join(WireCopy().messages("prompt", history, (), View.of(runtime, frozenset())))
        key = "input" if mode == "codex_responses" else "messages"
        body: dict[str, Any] = {key: json.loads(written)}
        if mode == "anthropic_messages":
            body["max_tokens"] = 1
        assert not violations(chat_rows(body)), f"{where}: {mode}"


def test_a_turn_survives_being_killed_at_some_points() -> None:
    """Every point and every recovery is the slow one's; this is one in six."""
    base, *cases = run("matrix", "full", "late", "once", "6")
    assert set(base["base"]["states"]) == STATES
    check_all(cases, base["base"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("durability", "how", "least"),
    [("full", "late", 400), *one_of([("full", "prompt", 1000), ("normal", "prompt", 1000)], "durability")],
)
def test_a_turn_survives_being_killed_anywhere_and_its_recovery_too(
    durability: str, how: str, least: int
) -> None:
    """All pairs of a point of the turn and a point of the recovery from there. What no caller waits for is
    written as late as can be, or at once."""
    base, *cases = run("matrix", durability, how, "twice", "1")
    assert set(base["base"]["states"]) == STATES
    once = [case for case in cases if case["then"] is None]
    twice = [(case["point"], case["then"]) for case in cases if case["then"] is not None]
    assert_all_points(once, base["base"]["counts"])
    assert twice == [(case["point"], point) for case in once for point in all_points(case.get("counts", {}))]
    assert len(twice) > most(least)
    check_all(cases, base["base"])


def all_points(counts: dict[str, int]) -> list[list[Any]]:
    """Before and after each commit, and in the middle of each call of the model and of a tool."""
    return [
        [what, number]
        for what in ("before", "after", "model", "tool")
        for number in range(1, counts.get(what, 0) + 1)
    ]


def assert_all_points(cases: list[dict[str, Any]], counts: dict[str, int]) -> None:
    """It was killed once at each point, of which there is a sample."""
    points = [case["point"] for case in cases if case.get("then") is None]
    assert points == sampled(all_points(counts), "killed")


def assert_reached(case: dict[str, Any]) -> None:
    signals = [SIGKILL, *[SIGKILL] * (case.get("then") is not None), 0]
    assert case["signals"] == signals, f"not every point was reached: {case['point']}, {case.get('then')}"


def check_suspended(case: dict[str, Any], base: dict[str, Any]) -> None:
    """An open question is asked again, an answer counts, and the tool ran once, or its outcome is unknown."""
    check(case, base)
    begun = [line for line in case["world"] if line[:2] == ["begin", "put"]]
    [said] = [row["content"] for row in case["messages"] if row.get("name") == "put"]
    assert begun or said.startswith("Unknown outcome"), case["point"]
    assert said.startswith("Unknown outcome") or said == "put a", case["point"]


@pytest.mark.slow
def test_a_suspended_turn_survives_being_killed_anywhere_and_its_recovery_too() -> None:
    """Before and after the question is stored, before and after its answer is, while the turn continues; each
    by a process of its own."""
    base, *cases = run("suspended")
    assert_all_points(cases, base["base"]["counts"])
    assert len(cases) > most(1000)
    for case in cases:
        assert_reached(case)
        check_suspended(case, base["base"])


@pytest.mark.slow
def test_a_session_whose_turn_was_killed_anywhere_continues_without_it() -> None:
    """No process resumes the turn: it is abandoned, even by a process killed while it does so, and the
    session stays usable."""
    base, *cases = run("given up")
    assert_all_points(cases, base["base"]["counts"])
    for case in cases:
        where = f"killed at {case['point']}, then at {case['then']}"
        assert "error" not in case, f"{where}: {case['error']}"
        assert_reached(case)
        assert (case["final"], case["left"]) == ("all done", 0), where
        assert case["messages"] == case["stored"], f"{where}: the store has other rows than the turn"
        begun = [line for line in case["world"] if line[:2] == ["begin", "put"]]
        assert len(begun) <= 1, f"{where}: nothing of the turn that was given up is done"
        check_wires(case["messages"], where)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "final"),
    [("asking", "all done"), ("hooked", "all done!"), ("typed", '"all done"'), ("limited", "all done")],
)
def test_a_turn_of_another_kind_of_agent_survives_being_killed_anywhere(kind: str, final: str) -> None:
    """One in which a person is asked, one whose hooks and guardrails change all that they may, one whose
    answer is of a type, and one that is limited in money, tokens and time."""
    base, *cases = run("once", kind)
    assert_all_points(cases, base["base"]["counts"])
    assert base["base"]["final"] == final
    check_all(cases, base["base"])


@pytest.mark.slow
def test_what_extensions_ask_for_survives_being_killed_anywhere() -> None:
    """At each named point one request that is performed once, and one that may be performed again under its
    key; before each request to the model the replies of the point that led there are the newest."""
    base, *cases = run("once", "extended")
    asked = [line[2] for line in base["base"]["world"] if line[:2] == ["asked", "stamp"]]
    assert set(asked) == set(get_args(Point))
    assert_all_points(cases, base["base"]["counts"])
    check_all(cases, base["base"])
    doubted = 0
    for case in cases:
        where = f"killed at {case['point']}"
        keys: dict[str, list[tuple[str, str]]] = {"stamp": [], "tally": []}
        for _, what, at, key in (line for line in case["world"] if line[0] == "asked" and len(line) == 4):
            keys[what].append((at, key))
        assert len(keys["stamp"]) == len(set(keys["stamp"])), f"{where}: an unsafe request was made twice"
        lost = len(set(keys["tally"])) - len(asked)
        assert lost in (0, 1), f"{where}: a request was left out, or had two keys"
        lost_at = sorted(at for at, _ in set(keys["tally"]))
        assert lost_at == sorted([*asked, *[BUILT] * lost]), "only a lost request to the model is built again"
        replies = [line[1:] for line in case["world"] if line[0] == "read"]
        assert {tuple(reply) for reply in replies} <= {("1", BUILT), ("-1", BUILT)}, where
        doubted += any("may have taken effect, which is unknown" in line for line in case.get("heard", ()))
    assert doubted


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(sorted(MUTANTS), "engines with a fault"))
def test_an_engine_with_a_fault_is_noticed(name: str) -> None:
    base, *cases = run("mutant", name)
    with pytest.raises((AssertionError, ValueError)):
        check_all(cases, base["base"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "puts", "least"), [("run again", 2, 200), ("taken over", 1, 50), ("by hand", 1, 50)]
)
def test_a_fork_survives_being_killed_anywhere_and_its_recovery_too(edit: str, puts: int, least: int) -> None:
    """``puts``: how often the unsafe tool may have begun, once of them in the old turn; what a person
    answered, or what ran before, is not run in the fork, whatever ends it."""
    base, *cases = run("forks", edit)
    assert_all_points(cases, base["base"]["forked"]["counts"])
    assert len(cases) > most(least)
    for case in cases:
        where = f"fork killed at {case['point']}, then at {case['then']}"
        assert_reached(case)
        assert "error" not in case, f"{where}: {case['error']}"
        assert case["final"] == "all done", where
        assert case["old"] == base["base"]["messages"], f"{where}: the old turn has changed"
        check_rows(case["messages"], base["base"]["forked"]["messages"], known=True, where=where)
        check_wires(case["messages"], where)
        begun = [line for line in case["world"] if line[:2] == ["begin", "put"]]
        assert len(begun) <= puts, f"{where}: put ran once too often"
        if edit != "run again":
            assert case["messages"] == base["base"]["forked"]["messages"], where


@pytest.mark.slow
def test_fifty_turns_that_are_killed_together_all_continue() -> None:
    for case in run("many", "50", "0", "0.1", "0.25", "0.4", "0.55", "0.7"):
        where = f"killed at commit {case['commit']}"
        assert "error" not in case, f"{where}: {case.get('error')}"
        assert case["signal"] == SIGKILL, where
        assert set(case["found"]) <= {"all done", "not begun"}, where
        assert len([line for line in case["world"] if line[:2] == ["begin", "put"]]) <= 50, where


def killed(home: Path, kind: str) -> Path:
    """Run a turn in a process of its own until it is killed; the file that says what it did."""
    mark = home / "mark"
    done = ran("-m", "tests.crash.waiting", home, mark, kind)
    assert done.returncode == -9, done.stderr
    return mark


@pytest.mark.slow
def test_a_turn_killed_while_it_waits_for_approval_asks_again(tmp_path: Path) -> None:
    """Without a person after the restart the answer is no."""
    mark = killed(tmp_path, "approval")
    assert mark.read_text() == "asked\n"
    shutil.copytree(tmp_path, tmp_path / "alone")
    result = agent_of(tmp_path, mark, dies=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\nran users\n"
    assert result.completed
    assert told(result)[1] == "dropped"
    assert told(result)[0]["todos"] == PLAN
    alone = agent_of(tmp_path / "alone", mark, dies=False, attended=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\nran users\n"
    assert "no person is there" in told(alone)[1]


@pytest.mark.slow
def test_a_question_of_the_model_is_asked_again(tmp_path: Path) -> None:
    mark = killed(tmp_path, "clarify")
    result = agent_of(tmp_path, mark, dies=False).resume(SESSION).run()
    assert mark.read_text() == "asked\nasked\n"
    assert told(result)[0]["answer"] == "once"


@pytest.mark.slow
def test_children_that_had_ended_are_looked_up_and_the_others_resumed(tmp_path: Path) -> None:
    mark = killed(tmp_path, "children")
    one = agent_of(tmp_path, mark, dies=False)
    result = one.resume(SESSION).run()
    assert [entry["summary"] for entry in told(result)[0]["results"]] == ["ONE", "TWO"]
    assert mark.read_text() == "looked\nlooked\n"
    assert [child.outcome for child in result.children] == ["completed"] * 2
    asked = [turn.asked for turn in one.journal.recent()]
    assert sorted(asked) == ["children", "one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["approval", "children"])
def test_the_session_can_also_continue_without_resuming(tmp_path: Path, kind: str) -> None:
    mark = killed(tmp_path, kind)
    result = agent_of(tmp_path, mark, dies=False).run_conversation("clarify", conversation_history=[])
    assert result.completed
