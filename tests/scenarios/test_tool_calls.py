"""Calls that are wrong in some way, and what is done about each."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.testing import bad_json, call, cut_tool_call, no_finish, repeat, text, tools
from tests.helpers.harness import play

READ, WRITE = call("echo", {"text": "a"}), call("put", {"key": "a"})
RESULTS: dict[str, tuple[list[Any], list[str]]] = {
    "12 empty arguments are none": ([tools(call("echo", ""))], ["x"]),
    "15 bad JSON once": ([bad_json(), tools(READ)], ["a"]),
    "bad JSON four times": ([bad_json()] * 4, ["not valid JSON"]),
    "d08 a slip": ([tools(call("echo", "{'text': 'a',}"))], ["a"]),
    "d08 damage": ([bad_json("echo", '{"text": nonsense here}')], []),
    "a stream that ends after a whole call": ([no_finish("", WRITE)], ["stored a"]),
    "d40 the same call twice": ([tools(WRITE, WRITE)], ["stored a"] * 2),
    "d40 unless it only reads": ([tools(READ, READ)], ["a", "the same call"]),
}


@pytest.mark.behaviour("EXEC-03", "EXEC-08", "EXEC-12")
@pytest.mark.parametrize("what", RESULTS)
def test_what_becomes_of_calls(what: str) -> None:
    script, results = RESULTS[what]
    played = play([*script, text("ok")])
    assert played.summary == f"{len(script) + 1} text_response completed: ok"
    assert len(played.results) == len(results)
    assert all(said in result for said, result in zip(results, played.results, strict=True))


def test_08_calls_that_cannot_run_for_ever_end_the_turn() -> None:
    for reply, requests, roles in (
        (tools(call("nope", {})), 3, "u a t a t a t a"),
        (bad_json(), 12, "u a t a t a"),
    ):
        played = play(repeat(reply))
        assert (played.summary, played.roles) == (f"{requests} invalid_tool_calls partial", roles)


@pytest.mark.behaviour("EXEC-01")
def test_06_a_name_that_can_be_repaired() -> None:
    played = play([tools(call("Todo_tool", {"items": ["a"]})), text("ok")])
    assert played.results == ["1 items"]
    assert played.result.messages[1]["tool_calls"][0]["function"]["name"] == "todo"


@pytest.mark.behaviour("EXEC-02")
def test_07_an_unknown_tool_is_told_which_there_are() -> None:
    played = play([tools(call("nope", {})), tools(call("echo", {"text": "a"})), text("ok")])
    assert played.server.completions == 3
    assert "echo, put, fail, todo" in played.results[0]
    assert played.outcome == "completed"


def test_a_mixed_batch_runs_what_it_can_and_is_no_strike() -> None:
    played = play([tools(call("nope", {}), call("echo", {"text": "a"})), text("ok")])
    assert played.results[1] == "a"
    assert "there is no tool 'nope'" in played.results[0]
    assert played.agent.settings.invalid_tool_strikes == 3
    assert not any("invalid_tool_rounds" in change for step in played.steps for change in step.changes)


def test_11_a_blank_name_gets_a_terse_error_and_stays_paired_on_the_wire() -> None:
    played = play([tools(call("", {})), text("ok")])
    assert played.server.completions == 2
    assert "echo" not in played.results[0]
    sent = played.server.bodies[1]["messages"]
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"]
    assert sent[2]["tool_calls"][0]["function"]["name"]


def test_13_array_arguments_are_not_executed() -> None:
    ran: list[object] = []

    @tool
    def take(anything: str = "") -> str:
        ran.append(anything)
        return "taken"

    played = play([tools(call("take", "[1, 2]")), text("ok")], tools=[take])
    assert played.server.completions == 2
    assert not ran
    assert "JSON object" in played.results[0]


@pytest.mark.behaviour("EXEC-15", "EXEC-15b")
def test_14_arguments_are_coerced_to_the_schema() -> None:
    seen: list[object] = []

    @tool
    def typed(n: int, b: bool, l: list[str]) -> str:  # noqa: E741
        seen.append((n, b, l))
        return "ok"

    play([tools(call("typed", {"n": "42", "b": "true", "l": "x"})), text("ok")], tools=[typed])
    assert seen == [(42, True, ["x"])]


@pytest.mark.behaviour("EXEC-08")
def test_15_bad_json_once_leaves_no_trace() -> None:
    played = play([bad_json(), tools(call("echo", {"text": "a"})), text("ok")])
    assert played.roles == "u a t a"
    assert played.server.bodies[0]["messages"] == played.server.bodies[1]["messages"]
    assert "max_completion_tokens" not in played.server.bodies[1], "d07: it is not relabelled as truncation"


def test_a_good_call_beside_bad_json_is_not_run_and_has_its_answer() -> None:
    reply = tools(call("echo", {"text": "a"}), call("echo", '{"text": nonsense here}'))
    played = play([*[reply] * 4, text("ok")])
    assert played.roles == "u a t t a"
    good, bad = played.results
    assert good == "not run: another call of the same reply could not be used"
    assert "not valid JSON" in bad
    assert played.heard.of("tool_start") == []


@pytest.mark.behaviour("LOOP-04", "RESP-07")
def test_17_a_truncated_call_is_never_run_and_the_cap_is_raised() -> None:
    played = play([cut_tool_call(), text("ok")])
    assert played.server.completions == 2
    assert not played.heard.of("tool_start")
    assert "max_completion_tokens" not in played.server.bodies[0]
    assert played.server.bodies[1]["max_completion_tokens"] == 8192
    assert played.result.api_calls == 1, "recoveries inside a call block are not charged"


@pytest.mark.behaviour("RESP-08")
def test_18_truncated_for_ever() -> None:
    played = play(repeat(cut_tool_call()))
    assert played.summary == "5 truncated_tool_call partial"
    caps = [body.get("max_completion_tokens") for body in played.server.bodies]
    assert caps == [None, 8192, 16384, 32768, 32768]


@pytest.mark.behaviour("RESP-09")
def test_a_call_cut_by_a_router_that_hides_the_reason_counts_as_cut() -> None:
    played = play([bad_json("put", '{"key": "a", "value": "lo'), text("ok")])
    assert [step.event for step in played.steps if step.source == "CallLLM"] == ["cut_call", "text"]


def test_a_stream_that_ends_inside_a_call_asks_for_smaller_pieces() -> None:
    played = play([no_finish("", call("put", '{"key": "a')), text("ok")])
    assert [step.event for step in played.steps if step.source == "CallLLM"] == ["dropped_call", "text"]
    assert "smaller pieces" in played.server.bodies[1]["messages"][-1]["content"]


@pytest.mark.behaviour("RESP-07")
def test_a_call_cut_before_its_arguments_does_not_run_with_its_defaults() -> None:
    wiped: list[str] = []

    @tool
    def wipe(folder: str = ".") -> str:
        wiped.append(folder)
        return "wiped"

    played = play([no_finish("", call("wipe", "")), text("ok")], tools=[wipe])
    assert not wiped
    assert played.result.final_response == "ok"


@pytest.mark.behaviour("INV-04")
def test_d09_ids_that_repeat_from_round_to_round_keep_their_results() -> None:
    rounds = [tools(call("echo", {"text": str(n)}, id="call_0")) for n in range(3)]
    played = play([*rounds, text("ok")])
    sent = played.server.bodies[-1]["messages"]
    assert [row["content"] for row in sent if row["role"] == "tool"] == ["0", "1", "2"]
    assert len({row["tool_call_id"] for row in sent if row["role"] == "tool"}) == 3
