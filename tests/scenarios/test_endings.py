"""How a turn ends, whatever it ends with: one Finalize, one result, nothing lost; budgets, and the last word."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.runtime.budget import IterationBudget, tree_budget
from fsm_agent.settings import Settings
from fsm_agent.testing import FakeClock, blank, call, repeat, silence, slow, status, text, tools
from tests.helpers.harness import Interrupt, echo, play, table


def test_fin_10_the_transform_callback_changes_what_is_delivered_and_nothing_else() -> None:
    played = play([text("hello")], callbacks={"transform": lambda words: words.upper()})
    assert played.result.final_response == "HELLO"
    assert played.result.response_transformed
    assert played.result.messages[-1]["content"] == "hello"
    assert play([text("hello")], callbacks={"transform": lambda words: None}).result.final_response == "hello"


@pytest.mark.parametrize("script", [[text("ok")], [status(400)], repeat(status(500))])
def test_fin_14_the_end_is_told_on_every_exit(script: Any) -> None:
    ends = [data for name, data in play(script).heard.of("event") if name == "turn:end"]
    assert len(ends) == 1


def test_err_24_a_request_that_failed_is_kept_for_a_look_with_keys_masked(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    played = play([status(400)], "my key is sk-proj-abcdefghijklmnop", home=home)
    (dump,) = (home / "dumps").iterdir()
    assert "abcdefghijklmnop" not in dump.read_text()
    assert json.loads(dump.read_text())["messages"][0]["role"] == "system"
    assert dump.stat().st_mode & 0o077 == 0
    assert any(str(dump) in line for line in played.heard.of("status"))
    play([status(400)], home=tmp_path / "off", settings={"dump_failed_requests": False})
    assert not (tmp_path / "off" / "dumps").exists()


@pytest.mark.behaviour("ERR-26")
def test_err_26_a_refused_message_does_not_grow_a_large_session() -> None:
    history = [{"role": role, "content": "x"} for _ in range(45) for role in ("user", "assistant")]
    message = "Invalid value for 'messages[90]': this content is not understood"
    refused = status(400, {"error": {"message": message}})
    played = play([refused], history=history)
    assert played.result.messages[-2]["wire"] is False
    with table([refused, text("ok")]) as (agent, server, _, _):
        agent.run_conversation("the bad one", conversation_history=history)
        agent.run_conversation("the next")
        assert not any(row["content"] == "the bad one" for row in server.bodies[1]["messages"])


@pytest.mark.behaviour("INV-06")
def test_d44_after_a_failure_the_next_turn_joins_the_messages() -> None:
    with table([status(400), text("ok")]) as (agent, server, _, _):
        agent.run_conversation("first")
        agent.run_conversation("second")
        assert [row["content"] for row in server.bodies[1]["messages"][1:]] == ["first\n\nsecond"]


def test_never_a_silent_minute() -> None:
    """The turn continues until the line has arrived."""
    clock, interrupt = FakeClock(), Interrupt()
    told: list[str] = []

    def status(line: str) -> None:
        told.append(line)
        interrupt()

    script = [silence("connect", hook=lambda: clock.advance(65))]
    settings = {"poll": {"control": 0.05}, "stale": {"stream": 300}}
    play(script, clock=clock, settings=settings, callbacks={"status": status}, before=interrupt.aim)
    (line,) = told
    seconds = re.fullmatch(r"the model has not answered yet \((\d+) s\)", line)
    assert seconds is not None
    assert 65 <= int(seconds[1]) < 300


@pytest.mark.behaviour("ERR-29")
def test_status_lines_are_one_a_failure_and_one_a_wait() -> None:
    told = play([status(503), status(503), text("ok")]).heard.of("status")
    assert [line.split()[0] for line in told] == ["attempt", "waiting"] * 2


@pytest.mark.behaviour("CALL-06")
def test_thinking_turns_on_and_off() -> None:
    assert play([slow("hi", 0.01)]).heard.of("thinking") == [True, False]
    assert play(repeat(status(429))).heard.of("thinking") == [True, False] * 3


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
    "calls forever": (repeat(*rounds(10)), limited(3), "5 budget_exhausted partial|3 iterations"),
    "a summary that fails": ([*rounds(1), repeat(status(500))], limited(1),
        "4 budget_exhausted partial server_error|scripted status 500"),
    "no grace call": (rounds(2), limited(2, grace_call=False), "2 budget_exhausted partial|"),
    "text in the end": ([*rounds(2), text("done")], limited(3), "3 text_response completed: done|"),
    "none at all": ([text("no")], limited(0), "1 max_iterations_summary partial|no"),
    "d14 blanks": ([blank(), blank(), text("sorry")], limited(2), "3 max_iterations_summary partial|sorry"),
    "attempts": (repeat(blank()), {"max_attempts_per_turn": 2}, "2 attempt_cap_reached failed empty_reply|"),
}  # fmt: skip
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
