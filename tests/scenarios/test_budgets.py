"""Budgets, the last word, and stable prefixes."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from fsm_agent import tool
from fsm_agent.runtime.budget import IterationBudget, tree_budget
from fsm_agent.settings.model import Settings
from fsm_agent.testing import blank, call, repeat, status, text, tools
from tests.helpers.harness import echo, play


def rounds(count: int) -> list[object]:
    return [tools(call("echo", {"text": str(n)})) for n in range(count)]


@pytest.mark.behaviour("BUILD-02", "BUD-01", "BUD-04b", "LOOP-05")
def test_85_the_budget_ends_with_a_toolless_summary() -> None:
    played = play([*rounds(3), text("what I did")], settings={"max_iterations": 3})
    assert played.server.completions == 4
    assert (played.exit, played.outcome) == ("max_iterations_summary", "partial")
    assert played.result.final_response == "what I did"
    assert "tools" not in played.server.bodies[3]
    assert played.result.total_tokens == 4 * 15
    assert played.result.api_calls == 3


@pytest.mark.behaviour("BUD-04c")
def test_85_a_model_that_only_calls_tools_is_asked_twice() -> None:
    played = play(repeat(*rounds(10)), settings={"max_iterations": 3})
    assert (played.server.completions, played.exit) == (5, "budget_exhausted")
    assert "3 iterations" in (played.result.final_response or "")


def test_a_summary_that_fails_is_a_partial_result_with_the_error() -> None:
    played = play([*rounds(1), repeat(status(500))], settings={"max_iterations": 1})
    assert (played.exit, played.outcome) == ("budget_exhausted", "partial")
    assert "scripted status 500" in (played.result.final_response or "")


@pytest.mark.behaviour("BUD-04", "BUD-04c")
def test_without_the_grace_call_the_budget_just_ends() -> None:
    played = play(rounds(2), settings={"max_iterations": 2, "budget": {"grace_call": False}})
    assert (played.server.completions, played.exit) == (2, "budget_exhausted")


@pytest.mark.behaviour("BUILD-02", "BUD-04d", "BUD-02")
def test_88_text_on_the_last_iteration() -> None:
    played = play([*rounds(2), text("done")], settings={"max_iterations": 3})
    assert (played.server.completions, played.exit) == (3, "text_response")


def test_no_iterations_at_all() -> None:
    played = play([text("nothing was done")], settings={"max_iterations": 0})
    assert (played.server.completions, played.exit) == (1, "max_iterations_summary")


@pytest.mark.behaviour("BUD-02", "BUD-02b")
def test_a_shared_budget_is_used_and_ends_the_turn() -> None:
    budget = IterationBudget(2)
    played = play([*rounds(2), text("summary")], budget=budget)
    assert played.exit == "max_iterations_summary"
    assert played.server.completions == 3
    assert budget.remaining == 0


@pytest.mark.behaviour("LOOP-03")
def test_recoveries_are_not_charged_to_a_shared_budget() -> None:
    budget = IterationBudget(5)
    play([status(500), status(500), text("ok")], budget=budget)
    assert budget.remaining == 4


def test_the_cap_on_attempts_is_a_belt() -> None:
    played = play(repeat(blank()), settings={"max_attempts_per_turn": 2})
    assert (played.server.completions, played.exit, played.outcome) == (2, "attempt_cap_reached", "failed")


@pytest.mark.parametrize("iterations", [6])
def test_105_each_request_extends_the_one_before(iterations: int) -> None:
    played = play([*rounds(iterations), text("done")])
    bodies = [request.raw for request in played.server.requests]
    for before, after in pairwise(bodies):
        messages_before = before[: before.rindex(b"]")]
        assert after.startswith(messages_before)


@pytest.mark.behaviour("BUD-02c", "BUD-03b", "BUD-03c", "BUD-03d")
def test_budgets_of_a_tree() -> None:
    root = tree_budget(Settings(max_iterations=2, delegation={"budget": "tree_cap", "tree_cap_factor": 3}))
    child = root.child("tree_cap", 4)
    assert [child.take() for _ in range(5)] == [True] * 4 + [False]
    assert (root.used, root.remaining) == (4, 2)
    second = root.child("tree_cap", 4)
    assert [second.take() for _ in range(3)] == [True, True, False]
    assert root.child("shared", 4) is root
    assert root.child("independent", 4).take()
    assert root.used == 6


@pytest.mark.behaviour("BUD-02c", "BUD-02d")
def test_a_budget_taken_from_many_threads_is_never_overdrawn() -> None:
    root = IterationBudget(100)
    children = [root.child("tree_cap", 40) for _ in range(4)]
    taken: list[bool] = []

    def work(child: IterationBudget) -> None:
        taken.extend(child.take() for _ in range(60))

    threads = [threading.Thread(target=work, args=(child,)) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == root.used == 100


@pytest.mark.behaviour("BUD-04d")
def test_fin_01_an_answer_that_waits_for_its_check_is_used_when_the_budget_ends() -> None:
    @tool(effect="idempotent", path_arguments=("path",))
    def save(path: str) -> str:
        """Save a file."""
        return "saved"

    script = [tools(call("save", {"path": "a"})), text("I saved it."), tools(call("echo", {}))]
    settings = {"max_iterations": 3, "continuation": {"verify_enabled": True}}
    played = play(script, tools=[save, echo], settings=settings)
    assert (played.server.completions, played.exit) == (3, "budget_exhausted")
    assert (played.result.final_response or "").startswith("I saved it.")
