"""Budgets, the last word, and stable prefixes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.runtime.budget import IterationBudget, tree_budget
from fsm_agent.settings.model import Settings
from fsm_agent.testing import blank, call, repeat, status, text, tools
from tests.helpers.harness import echo, play


def rounds(count: int) -> list[Any]:
    return [tools(call("echo", {"text": str(n)})) for n in range(count)]


@pytest.mark.behaviour("BUILD-02", "BUD-01", "BUD-04b", "LOOP-05")
def test_85_the_budget_ends_with_a_toolless_summary() -> None:
    played = play([*rounds(3), text("what I did")], settings={"max_iterations": 3})
    assert played.summary == "4 max_iterations_summary partial"
    assert played.result.final_response == "what I did"
    assert "tools" not in played.server.bodies[3]
    assert (played.result.total_tokens, played.result.api_calls) == (4 * 15, 3)


def limited(most: int, **budget: bool) -> dict[str, Any]:
    return {"max_iterations": most, "budget": budget}


ENDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "calls for ever": (repeat(*rounds(10)), limited(3), "5 budget_exhausted partial|3 iterations"),
    "a summary that fails": (
        [*rounds(1), repeat(status(500))],
        limited(1),
        "4 budget_exhausted partial server_error|scripted status 500",
    ),
    "no grace call": (rounds(2), limited(2, grace_call=False), "2 budget_exhausted partial|"),
    "text at last": ([*rounds(2), text("done")], limited(3), "3 text_response completed: done|"),
    "none at all": ([text("no")], limited(0), "1 max_iterations_summary partial|no"),
    "d14 blanks": ([blank(), blank(), text("sorry")], limited(2), "3 max_iterations_summary partial|sorry"),
    "attempts": (repeat(blank()), {"max_attempts_per_turn": 2}, "2 attempt_cap_reached failed empty_reply|"),
}
"""Each with the summary of the turn, and words of its answer."""


@pytest.mark.behaviour("BUD-04", "BUD-04c", "BUILD-02", "BUD-04d", "BUD-02")
@pytest.mark.parametrize("what", ENDS)
def test_how_a_budget_ends(what: str) -> None:
    script, settings, ends = ENDS[what]
    played = play(script, settings=settings)
    summary, said = ends.split("|")
    assert played.summary == summary
    assert said in (played.result.final_response or "")


@pytest.mark.behaviour("BUD-02", "BUD-02b", "LOOP-03")
def test_a_shared_budget_is_used_and_ends_the_turn_and_recoveries_are_not_charged_to_it() -> None:
    budget = IterationBudget(2)
    played = play([*rounds(2), text("summary")], budget=budget)
    assert (played.summary, budget.remaining) == ("3 max_iterations_summary partial", 0)
    budget = IterationBudget(5)
    play([status(500), status(500), text("ok")], budget=budget)
    assert budget.remaining == 4


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
        return "saved"

    script = [tools(call("save", {"path": "a"})), text("I saved it."), tools(call("echo", {}))]
    settings = {"max_iterations": 3, "continuation": {"verify_enabled": True}}
    played = play(script, tools=[save, echo], settings=settings)
    assert played.summary == "3 budget_exhausted partial"
    assert (played.result.final_response or "").startswith("I saved it.")
