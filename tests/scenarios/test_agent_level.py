"""Turns with the agent's own tools; and what the final answer says
of failed changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.settings.model import GuardrailSettings
from fsm_agent.testing import blank, call, text, tools
from fsm_agent_states.logic.guardrails import REMEMBERED, Guardrails
from tests.helpers.harness import Played, echo, fail, play, table


def results(played: Played) -> list[str]:
    return [row["content"] for row in played.result.messages if row["role"] == "tool"]


@pytest.mark.behaviour("CONC-02")
def test_05_a_question_is_asked_alone_between_its_neighbours() -> None:
    order: list[str] = []

    @tool(concurrency="parallel", effect="pure", name="echo")
    def noted(text: str) -> str:
        """Give it back."""
        order.append(f"echo {text}")
        return text

    def clarify(question: str) -> str:
        order.append("asked")
        assert order == ["echo a", "asked"]
        return "blue"

    calls = (
        call("echo", {"text": "a"}),
        call("clarify", {"question": "Which?"}),
        call("echo", {"text": "b"}),
    )
    played = play(
        [tools(*calls), text("ok")], tools=[noted], toolsets=["clarify"], callbacks={"clarify": clarify}
    )
    assert order == ["echo a", "asked", "echo b"]
    assert results(played)[0] == "a"
    assert json.loads(results(played)[1])["answer"] == "blue"
    assert results(played)[2] == "b"
    assert played.server.completions == 2


@pytest.mark.parametrize("model", ["openai:gpt-x", "anthropic:claude-sonnet-4-5", "openai-responses:gpt-x"])
def test_32_text_beside_housekeeping_stands_when_nothing_follows(model: str) -> None:
    plan = call("todo", {"todos": [{"id": "a", "content": "rest", "status": "completed"}]})
    played = play([tools(plan, text="All is done: 42."), blank()], tools=[], toolsets=["todo"], model=model)
    assert (played.exit, played.result.final_response) == ("prior_content_used", "All is done: 42.")
    assert played.server.completions == 2
    assert json.loads(results(played)[0])["counts"]["completed"] == 1


def test_06_a_name_that_is_nearly_right_runs_the_agents_own_tool() -> None:
    played = play([tools(call("Todo_tool", {})), text("ok")], tools=[], toolsets=["todo"])
    assert json.loads(results(played)[0])["todos"] == []


@pytest.mark.behaviour("AGT-05c")
@pytest.mark.parametrize("model", ["openai:gpt-x", "anthropic:claude-sonnet-4-5", "openai-responses:gpt-x"])
def test_100_a_delegated_task_over_real_http(model: str) -> None:
    """Three requests: parent, child, parent. Only the summary is in the parent's; the child's begins anew."""
    script = [
        tools(call("delegate_task", {"goal": "find the cat"})),
        text("It sleeps in the barn."),
        text("The cat sleeps."),
    ]
    with table(script, tools=[echo], toolsets=["delegate"], model=model) as (agent, server, _, heard):
        result = agent.run_conversation("my private talk")
        assert server.completions == 3
        assert result.final_response == "The cat sleeps."
        assert (result.attempts, [child.attempts for child in result.children]) == (2, [1])
        assert result.total_tokens + result.children[0].usage.total == server.served_usage.total
        child, parent = server.bodies[1], server.bodies[2]
        assert "my private talk" not in json.dumps(child)
        assert "find the cat" in json.dumps(child)
        assert "It sleeps in the barn." in json.dumps(parent)
        names = json.dumps(child.get("tools"))
        assert "delegate_task" not in names
        assert "echo" in names
        assert [name for name, *_ in heard.of("event") if name.startswith("child:")] == [
            "child:start",
            "child:end",
        ]


# EXEC-33


@tool(effect="idempotent", path_arguments=("path",), concurrency="parallel")
def write(path: str, ok: bool = True) -> str:
    """Write a file."""
    if not ok:
        raise RuntimeError("the disk is full")
    return "written"


def writes(*calls: tuple[str, bool]) -> Any:
    return tools(*(call("write", {"path": path, "ok": ok}) for path, ok in calls))


@pytest.mark.behaviour("EXEC-33")
def test_files_that_a_failed_tool_left_unchanged_are_named_below_the_answer(tmp_path: Path) -> None:
    script = [
        writes(("a.txt", False), ("b.txt", False)),
        writes(("./b.txt", True)),
        text("All files are written."),
    ]
    played = play(script, tools=[write])
    said, _, footer = (played.result.final_response or "").partition("\n\n[")
    assert said == "All files are written."
    assert "a.txt (write: error)" in footer
    assert "b.txt" not in footer
    assert played.result.messages[-1]["content"] == said
    quiet = play(script, tools=[write], settings={"tool": {"failed_files_footer": False}})
    assert quiet.result.final_response == said


def test_a_denied_change_is_named_too_and_a_later_failure_counts_again() -> None:
    ask = tool(effect="unsafe", path_arguments=("path",), approval="ask", name="erase")(lambda path: "gone")
    played = play([tools(call("erase", {"path": "c.txt"})), text("Erased.")], tools=[ask])
    assert "c.txt (erase: denied)" in (played.result.final_response or "")
    script = [writes(("a.txt", True)), writes(("a.txt", False)), text("ok")]
    assert "a.txt (write: error)" in (play(script, tools=[write]).result.final_response or "")


def test_reading_tools_that_fail_are_no_unchanged_files() -> None:
    look = tool(effect="pure", path_arguments=("path",), name="peek")(lambda path: 1 / 0)
    played = play([tools(call("peek", {"path": "a"})), text("ok")], tools=[look])
    assert played.result.final_response == "ok"


# EXEC-12, GUARD-03, GUARD-08


@pytest.mark.behaviour("EXEC-12")
def test_a_read_before_and_one_after_a_change_both_run() -> None:
    seen: list[str] = []

    @tool(effect="pure")
    def read() -> str:
        """Read."""
        seen.append("read")
        return str(len(seen))

    @tool(effect="unsafe")
    def change() -> str:
        """Change."""
        seen.append("change")
        return "changed"

    played = play(
        [tools(call("read"), call("read"), call("change"), call("read")), text("ok")], tools=[read, change]
    )
    assert seen == ["read", "change", "read"]
    assert results(played)[1].startswith("(the same call as")


@pytest.mark.behaviour("GUARD-01", "GUARD-03")
def test_the_second_identical_result_of_a_reading_tool_is_pointed_out() -> None:
    script = [tools(call("echo", {"text": "a"})), tools(call("echo", {"text": "a"})), text("ok")]
    played = play(script, callbacks={"approval": lambda request: True})
    assert results(played)[0] == "a"
    assert "the same result 2 times" in results(played)[1]


def test_guardrails_remember_only_the_newest_calls() -> None:
    guard, limits = Guardrails(), GuardrailSettings()
    for number in range(3 * REMEMBERED):
        guard.note("fail", {"n": number}, False, "x", "pure", limits, False)
        guard.note("look", {"n": number}, True, "x", "pure", limits, False)
    assert len(guard.failed_calls) == len(guard.same_results) == REMEMBERED
    newest, oldest = {"n": 3 * REMEMBERED - 1}, {"n": 0}
    assert guard.note("look", newest, True, "x", "pure", limits, False)
    assert not guard.note("look", oldest, True, "x", "pure", limits, False)


# EXEC-27


@pytest.mark.behaviour("EXEC-27")
def test_a_round_with_only_a_program_is_not_charged() -> None:
    code = tool(name="execute_code")(lambda: "42")
    rounds = [tools(call("execute_code"))] * 3
    played = play([*rounds, text("done")], tools=[code], settings={"max_iterations": 2})
    assert (played.outcome, played.result.final_response) == ("completed", "done")
    mixed = [tools(call("execute_code"), call("echo"))] * 2
    played = play([*mixed, text("a last word")], tools=[code, echo], settings={"max_iterations": 2})
    assert played.outcome == "partial"


@pytest.mark.behaviour("GUARD-08")
def test_guardrails_know_a_call_by_tool_and_arguments() -> None:
    guard, limits = Guardrails(), GuardrailSettings()

    def noted(ok: bool, **arguments: int) -> str:
        return guard.note("put", arguments, ok, "x", "unsafe", limits, False)

    assert not noted(False, a=1, b=2)
    assert "2 times" in noted(False, b=2, a=1), "the order of keys says nothing"
    assert not noted(True, a=1, b=2)
    assert not noted(False, a=1, b=2), "a success sets the count back"
    script = [tools(call("fail")), text("one"), tools(call("fail")), text("two")]
    with table(script, tools=[fail]) as (agent, *_):
        for _ in range(2):
            agent.run_conversation("go")
        assert not any("loop warning" in row.text for row in agent._session().rows), "and so does a new turn"
