"""Defects that loops of agents are known for, each by its number, unless a scenario has it.

Elsewhere: D-01, D-03, D-05 and D-45 in ``tests.helpers.harness.check`` (every scenario); D-04, D-11, D-14,
D-15 and D-46 in ``test_truncated_and_blank``; D-06, D-34 and D-54 in ``test_errors``; D-35 in
``test_modes``; D-52 in ``test_handoffs``; D-07, D-08, D-09 and D-40 in ``test_tool_calls``; D-33 and D-49
in ``test_fallback``; D-16 and D-37 in ``test_interrupts``; D-41 and D-42 in ``test_tool_calls``; D-44 in
``test_endings``; D-47 in ``test_endings``; D-18 in ``benchmarks/overhead.py``."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import fsm_agent_states
from fsm_agent import Agent
from fsm_agent.sessions.store import store_for
from fsm_agent.settings import Settings
from fsm_agent.support.texts import split_reasoning
from fsm_agent.testing import ScriptedModel, blank, call, overflow, reasoning, repeat, status, text, tools
from fsm_agent_states.replies import PROCESS_RESULTS
from fsm_agent_states.table import TURN
from tests.helpers.harness import play, table

SOURCES = sorted(Path(inspect.getfile(fsm_agent_states)).parent.rglob("*.py"))


@pytest.mark.behaviour("FSM-03")
def test_d02_counters_live_in_two_dataclasses_and_only_the_machine_moves_them() -> None:
    counters = {counter.name for counter in TURN.counters}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AugAssign):
                continue
            written = {target.attr for target in targets if isinstance(target, ast.Attribute)}
            assert not written & counters, f"{path.name} line {getattr(node, 'lineno', 0)} moves a counter"


@pytest.mark.behaviour("EMPTY-04")
def test_d10_the_prefill_sends_the_reasoning_and_keeps_alternation() -> None:
    played = play([reasoning("first thought"), reasoning("second thought"), text("ok")])
    assert (played.summary, played.roles) == ("3 text_response completed: ok", "u a")
    for body, thought in zip(played.server.bodies[1:], ("first thought", "second thought"), strict=True):
        assert body["messages"][-2] == {"role": "assistant", "content": thought}
        assert body["messages"][-1]["role"] == "user"


@pytest.mark.behaviour("RESP-12", "EMPTY-04")
def test_d12_after_empty_replies_the_tool_round_stays_and_no_placeholder_is_stored() -> None:
    played = play([tools(call("echo", {"text": "a"})), repeat(blank())])
    assert (played.server.completions, played.roles) == (6, "u a t a")
    assert [row["content"] for row in played.result.messages[:3]] == ["go", None, "a"]
    assert "(empty)" not in played.result.model_dump_json()


@pytest.mark.behaviour("EMPTY-03")
def test_d13_a_nudge_that_leads_to_tools_leaves_no_trace() -> None:
    script = [tools(call("echo", {"text": "a"})), blank(), tools(call("echo", {"text": "b"})), text("ok")]
    played = play(script)
    assert played.roles == "u a t a t a"
    assert PROCESS_RESULTS not in played.result.model_dump_json()
    assert not any(row["content"] == PROCESS_RESULTS for row in played.server.bodies[3]["messages"])


def test_d19_overflows_that_are_separated_by_successes_do_not_add_up() -> None:
    rounds = [(overflow(), tools(call("echo", {"text": f"{number}" * 4000}))) for number in range(4)]
    script = [reply for pair in rounds for reply in pair] + [text("done")]

    def reply(request: Any) -> Any:
        asks_for_summary = "<conversation>" in str(request.body["messages"][0]["content"])
        return text("a summary") if asks_for_summary else script.pop(0)

    history = [{"role": role, "content": f"{n} " * 800} for n in range(20) for role in ("user", "assistant")]
    played = play(repeat(reply), history=history, context_window=128_000)
    assert played.result.final_response == "done"
    assert [metrics["trigger"] for metrics in played.result.compressions].count("overflow") == 4


def test_d36_a_bug_in_our_own_code_ends_the_turn_at_once() -> None:
    def reply(body: dict[str, Any]) -> Any:
        raise TypeError("a bug")

    result = Agent(ScriptedModel([reply]), toolsets=[]).run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("local_processing_error", 1)
    assert not result.completed


def test_d39_the_last_word_is_streamed_counted_and_retried_like_any_other() -> None:
    script = [tools(call("echo", {})), status(503), text("a short but good summary")]
    played = play(script, settings={"max_iterations": 1})
    assert played.exit == "max_iterations_summary"
    assert played.result.final_response == "a short but good summary"
    assert "".join(d for d in played.heard.of("stream_delta") if d).endswith("a short but good summary")
    assert played.result.attempts == 3


@pytest.mark.behaviour("STR-10")
def test_d43_reasoning_tags_in_code_and_in_prose_are_text() -> None:
    for words in ("use `<think>` tags", "```\n<think>\nx\n</think>\n```", "see <think> in the middle"):
        assert split_reasoning(words) == (words, "", None)
        assert play([text(words)]).result.final_response == words


def test_d48_no_vendor_is_named_in_a_state() -> None:
    vendors = re.compile("openai|openrouter|deepseek|ollama|mistral|moonshot|gemini|qwen|groq|lmstudio")
    for path in SOURCES:
        code = path.read_text().lower()
        assert vendors.findall(code) == [], path.name


@pytest.mark.behaviour("BUILD-07", "BUILD-14b", "INV-06", "PREP-02c")
def test_d50_history_is_never_edited_in_place() -> None:
    bad = {"id": "c", "function": {"name": "echo", "arguments": "{bad"}}
    history = [
        {"role": "user", "content": "  spaces  "},
        {"role": "user", "content": "twice"},
        {"role": "assistant", "content": None, "tool_calls": [bad]},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
    ]
    copy = json.loads(json.dumps(history))
    played = play([text("ok")], history=history)
    assert history == copy, "nor the caller's"
    assert [row["content"] for row in played.result.messages[:2]] == ["  spaces  ", "twice"]
    assert played.result.messages[2]["tool_calls"][0]["function"]["arguments"] == "{bad"
    assert played.server.bodies[0]["messages"][1]["content"] == "spaces\n\ntwice"


def test_d56_tools_follow_each_other_without_a_pause() -> None:
    assert play([tools(*(call("put", {"key": str(n)}) for n in range(5))), text("ok")]).waits == []
    assert Settings().tool.delay == 0


def test_a_bug_between_calls_and_results_leaves_no_call_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the calls would not be sent, and the model would make them again, not knowing that they were made."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    with table([tools(call("put", {"key": "k"}, "call_1")), text("I see.")]) as (agent, server, _, _):
        with monkeypatch.context() as patched:
            patched.setattr("fsm_agent_states.execute_tools.store_results", broken)
            result = agent.run_conversation("go")
        assert result.turn_exit_reason == "local_processing_error"
        assert agent.chat("and now?") == "I see."
        sent = server.bodies[-1]["messages"]
        assert [row["role"] for row in sent[1:]] == ["user", "assistant", "tool", "user"]
        [told] = [row for row in sent if row["role"] == "tool"]
        assert told["tool_call_id"] == sent[-3]["tool_calls"][0]["id"] == "call_1"
        assert "not known whether the call took effect" in told["content"]
        stored = store_for(str(agent.home)).session(agent.session_id).rows
        assert [row.role for row in stored][:4] == ["user", "assistant", "tool", "assistant"]
