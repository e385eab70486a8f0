"""Answers and tools when nothing goes wrong."""

from __future__ import annotations

import asyncio
import json

import pytest

from fsm_agent import TurnFailed, tool
from fsm_agent.testing import call, json_reply, length, status, text, tools
from tests.helpers.harness import echo, play, table
from tests.helpers.waiting import PATIENCE


@pytest.mark.behaviour("FSM-05", "LOOP-02", "RESP-13")
def test_01_a_plain_answer() -> None:
    played = play([text("hi")])
    assert (played.result.final_response, played.exit, played.outcome) == ("hi", "text_response", "completed")
    assert (played.roles, played.states) == ("u a", ["Prepare", "BuildMessages", "CallLLM", "Finalize"])


@pytest.mark.behaviour("LOOP-01", "LOOP-02", "INV-07b", "EXEC-18b", "RESP-12", "EXEC-16", "EXEC-18c")
def test_02_one_tool() -> None:
    played = play([tools(call("echo", {"text": "abc"})), text("done")])
    assert (played.roles, played.result.messages[2]["content"]) == ("u a t a", "abc")
    assert played.result.api_calls == 2
    started, completed = played.heard.of("tool_start"), played.heard.of("tool_complete")
    assert started[0][1:] == ("echo", {"text": "abc"})
    assert completed[0][3:] == ("abc", "ok")


@pytest.mark.behaviour("EXEC-17", "EXEC-18")
def test_03_parallel_tools_keep_the_order_of_the_calls() -> None:
    """Each of them waits for the one behind it."""
    awake = [asyncio.Event() for _ in range(4)]
    awake[3].set()

    @tool(concurrency="parallel", effect="pure")
    async def nap(number: int) -> str:
        async with asyncio.timeout(PATIENCE):
            await awake[number + 1].wait()
        awake[number].set()
        return f"slept {number}"

    played = play([tools(*(call("nap", {"number": n}) for n in range(3))), text("done")], tools=[nap])
    assert played.results == ["slept 0", "slept 1", "slept 2"]


@pytest.mark.behaviour("CONC-02")
def test_05_a_question_is_a_barrier() -> None:
    order: list[str] = []

    @tool(concurrency="parallel", effect="pure")
    async def note(text: str) -> str:
        order.append(f"+{text}")
        await asyncio.sleep(0.02)
        order.append(f"-{text}")
        return text

    def clarify(question: str) -> str:
        order.append("asked")
        return "blue"

    calls = (
        call("note", {"text": "a"}), call("clarify", {"question": "Which?"}), call("note", {"text": "b"}),
    )  # fmt: skip
    options = {"tools": [note], "toolsets": ["clarify"], "callbacks": {"clarify": clarify}}
    played = play([tools(*calls), text("done")], **options)
    assert order == ["+a", "-a", "asked", "+b", "-b"]
    assert json.loads(played.results[1])["answer"] == "blue"


@pytest.mark.behaviour("EXEC-17c", "CONC-01")
def test_serial_tools_never_overlap_parallel_ones() -> None:
    order: list[str] = []
    b_began = asyncio.Event()

    @tool(concurrency="parallel", effect="pure")
    async def read(name: str) -> str:
        order.append(f"+{name}")
        if name == "a":
            await b_began.wait()
        else:
            b_began.set()
            await asyncio.sleep(0.02)
        order.append(f"-{name}")
        return name

    @tool(concurrency="serial", effect="unsafe")
    async def write(name: str) -> str:
        order.append(f"={name}")
        return name

    calls = [
        call(name, {"name": n}) for n, name in {"a": "read", "b": "read", "w": "write", "c": "read"}.items()
    ]
    play([tools(*calls), text("done")], tools=[read, write])
    assert [*order[:2], *sorted(order[2:4])] == ["+a", "+b", "-a", "-b"]
    assert order[4:] == ["=w", "+c", "-c"]


@pytest.mark.behaviour("EXEC-17c")
def test_path_tools_run_together_only_on_different_paths() -> None:
    running: set[str] = set()
    together: list[set[str]] = []
    both = asyncio.Event()

    @tool(concurrency="parallel", effect="idempotent", path_arguments=("path",))
    async def save(path: str, text: str = "") -> str:
        running.add(path)
        if running == {"a/x", "b/x"}:
            both.set()
        await both.wait()
        await asyncio.sleep(0.02)
        together.append(set(running))
        running.discard(path)
        return path

    paths = ("a/x", "b/x", "a", "c")
    play([tools(*(call("save", {"path": p}) for p in paths)), text("done")], tools=[save])
    assert together[0] == {"a/x", "b/x"}
    assert {"a", "a/x"} not in [both & {"a", "a/x"} for both in together]


@pytest.mark.behaviour("CALL-05b", "CALL-07", "STR-07")
def test_text_is_streamed_and_a_boundary_ends_it() -> None:
    played = play([tools(call("echo", {}), text="Let me see."), text("All is well.")])
    deltas = played.heard.of("stream_delta")
    assert "".join(d for d in deltas[: deltas.index(None)]) == "Let me see."
    assert "".join(d for d in deltas if d is not None) == "Let me see.\n\nAll is well."
    assert played.heard.of("interim_assistant") == ["Let me see."]
    assert played.heard.of("tool_gen") == ["echo"]


@pytest.mark.behaviour("BUILD-09b", "CALL-08", "CALL-08b", "CALL-05", "STR-10", "STR-10b")
def test_reasoning_is_told_and_kept_but_not_sent() -> None:
    played = play([text("<think>let me see</think>\nanswer")])
    assert (played.result.final_response, played.result.last_reasoning) == ("answer", "let me see")
    assert "".join(played.heard.of("reasoning")) == "let me see"
    assert "think" not in "".join(d or "" for d in played.heard.of("stream_delta"))
    both = play([text("<think>in tags</think>\nanswer", reasoning="of its own")])
    assert (both.result.last_reasoning, both.result.final_response) == ("of its own", "answer")


def test_a_whole_reply_to_a_streaming_request_is_accepted() -> None:
    played = play([json_reply(text("whole"))])
    assert played.result.final_response == "whole"
    assert played.heard.of("stream_delta")[0] == "whole"


def test_chat_raises_the_failure_of_a_turn_and_gives_what_there_is_of_an_answer_that_was_cut() -> None:
    script, settings = [status(401), text("hello"), length("half")], {"length": {"max_continuations": 0}}
    with table(script, settings=settings) as (agent, server, _, _):
        with pytest.raises(TurnFailed, match=r"The provider refused the request.*API key") as failure:
            agent.chat("first")
        result = failure.value.result
        assert (result.turn_exit_reason, result.failed) == ("non_retryable_error", True)
        assert str(failure.value) == result.error == result.final_response
        assert agent.chat("second") == "hello"
        assert len(server.bodies) == 2
        assert agent.chat("third").startswith("half")


@pytest.mark.behaviour("BUILD-03", "EXEC-19b")
def test_the_callbacks_tell_the_rounds_and_the_progress_of_each_tool() -> None:
    told: list[tuple[str, ...]] = []
    ran = tool(name="look")(lambda: told.append(("runs",)) or "seen")
    progress = {"tool_progress": lambda *values: told.append(values)}
    played = play([tools(call("look")), text("ok")], tools=[ran], callbacks=progress)
    assert told == [("started", "look", "{}"), ("runs",), ("completed", "look", "seen")]
    steps = played.heard.of("step")
    assert [number for number, _ in steps] == [1, 2]
    assert (steps[1][1][0].name, steps[1][1][0].result) == ("look", "seen")


@pytest.mark.behaviour("SESS-02", "BUILD-09b", "BUILD-09c")
def test_reasoning_beside_tools_does_not_become_text() -> None:
    played = play([tools(call("echo", {}), reasoning="hm"), text("done")], tools=[echo])
    assert played.result.messages[1]["reasoning"] == "hm"
    assert "reasoning" not in played.server.bodies[1]["messages"][2]


def test_a_supplied_call_without_an_id_may_have_half_a_character_in_it() -> None:
    """Its id is made from the arguments."""
    made = {"id": "", "type": "function", "function": {"name": "echo", "arguments": "half \udd6a"}}
    history = [
        {"role": "assistant", "content": "a", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "", "content": "half"},
    ]
    played = play([text("hi")], history=history)
    assert (played.result.final_response, played.exit) == ("hi", "text_response")


@pytest.mark.parametrize("before", range(6))
def test_half_a_character_of_a_model_can_be_printed(before: int) -> None:
    """Models write surrogates as JSON escapes: a pair may arrive in two pieces, and a half may stay alone."""
    said = "x" * before + " \ud83d\ude00 or \ud83d half \ud83d"
    played = play([text(said)])
    assert played.result.final_response == "x" * before + " \U0001f600 or \ufffd half \ufffd"
    shown = "".join(piece for piece in played.heard.of("stream_delta") if piece)
    assert shown == played.result.messages[-1]["content"] == played.result.final_response


@pytest.mark.behaviour("PREP-02c", "PREP-03")
def test_a_system_message_and_a_task_id_are_the_callers() -> None:
    with table([text("one"), text("two"), text("three")]) as (agent, server, _, _):
        mine = agent.run_conversation("go", "Speak Latin.", [], "task-7")
        assert mine.task_id == "task-7"
        assert "Speak Latin." in server.bodies[0]["messages"][0]["content"]
        first, second = agent.run_conversation("go").task_id, agent.run_conversation("go").task_id
        assert len({None, "", first, second}) == 4
