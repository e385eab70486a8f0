"""Compaction as pure functions: whatever the history, what comes out is valid, and no request is lost."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import starmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.compaction import (
    Division,
    Protection,
    assemble,
    divide,
    plan_insisted,
    prune,
    summary_prompt,
    summary_without_model,
)
from fsm_agent.conversation.compaction.plan import (
    LEAST_TAIL,
    cut_length,
    cut_row,
    is_longer,
    size_of,
    without_parts,
)
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.token_meter import CompactionGuard, ContextMeter, fault_of, threshold
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View
from fsm_agent.settings import Compression
from tests.helpers.wire_rules import RULES

WORD = ["short", "x" * 3_000, "你好" * 900, "line\n" * 400]
WORDS = st.sampled_from([*WORD, "exit code 3\n" + "y" * 400, "12 matches\n" + "z" * 900])
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}


@st.composite
def rounds(draw: st.DrawFn, number: int) -> list[Message]:
    """A user row, or an assistant row with all its results, as the engine stores them."""
    if draw(st.integers(0, 3)) == 0:
        content: Any = draw(WORDS)
        if draw(st.booleans()):
            content = [{"type": "text", "text": content}, IMAGE]
        return [Message("user", content)]
    if draw(st.integers(0, 3)) == 0:
        return [Message("assistant", draw(WORDS))]
    arguments = json.dumps({"path": f"f{number}.txt", "text": draw(WORDS)})
    calls = tuple(ToolCall(f"c{number}_{i}", "write", arguments) for i in range(draw(st.integers(1, 3))))
    results = [Message("tool", draw(WORDS), tool_call_id=call.id, name="write") for call in calls]
    return [Message("assistant", draw(st.none() | WORDS), tool_calls=calls), *results]


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    history = [Message("user", draw(WORDS))]
    for number in range(draw(st.integers(0, 14))):
        history += draw(rounds(number))
    return history


def valid_in_all_modes(history: list[Message]) -> None:
    for mode, faults in RULES.items():
        assert faults(json.loads(b"".join(WireCopy().messages("", history, (), View(mode))))) == [], mode


def compacted(history: list[Message], tail_chars: int = 4_000, front: int = 3) -> list[Message]:
    shorter, least = prune(history, 8), min(8, max(3, len(history) // 2))
    division = divide(shorter, front=front, tail_chars=tail_chars, tail_rows=least, soft_factor=1.5)
    return assemble(division, "what happened") if division.middle else shorter


def check(history: list[Message], shorter: list[Message]) -> None:
    """Valid in every mode; no call loses its result and no result its call; the newest request stays word for word,
    behind the summary."""
    valid_in_all_modes(shorter)
    calls = {call.id for row in shorter for call in row.tool_calls}
    assert calls == {row.tool_call_id for row in shorter if row.role == "tool"}
    request = [row for row in history if row.role == "user"][-1]
    summaries = [index for index, row in enumerate(shorter) if row.summary]
    asked = (index for index, row in enumerate(shorter) if row.role == "user" and not row.summary)
    kept = [index for index in asked if shorter[index].text == request.text]
    assert kept
    assert not summaries or kept[-1] > summaries[-1]


@pytest.mark.behaviour("COMP-19", "COMP-18e", "COMP-31")
@given(histories())
def test_whatever_goes_the_rest_is_valid_and_the_newest_request_stays_whole(history: list[Message]) -> None:
    check(history, compacted(history))


@pytest.mark.behaviour("COMP-28")
@given(histories())
def test_compacting_again_is_valid_and_leaves_one_summary(history: list[Message]) -> None:
    once = compacted(history)
    said = [("assistant", "done"), ("user", "and now?"), ("assistant", "y" * 9_000), ("user", "so")]
    twice = compacted([*once, *starmap(Message, said)], tail_chars=500, front=0)
    valid_in_all_modes(twice)
    assert sum(row.summary for row in twice) <= 1 + (not any(row.summary for row in once))


@given(histories())
def test_pruning_never_grows_keeps_every_row_and_leaves_valid_arguments(history: list[Message]) -> None:
    shorter = prune(history, 4)
    assert len(shorter) == len(history)
    assert size_of(shorter) <= size_of(history)
    texts = {row.text for row in history if row.role == "tool"}
    assert shorter[-4:] == history[-4:] or len(texts) < len(history)
    for row in shorter:
        for call in row.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)


USUAL = Protection(front=3, tail_rows=8, tail_chars=4_000, unpruned=8, soft_factor=1.5)


@given(histories(), st.integers(0, 12_000))
def test_a_compaction_that_is_insisted_on_fits_and_is_valid(history: list[Message], spare: int) -> None:
    request = [row for row in history if row.role == "user"][-1]
    room = 2_000 + size_of([request]) + spare
    plan = plan_insisted(history, USUAL, 6_000, room)
    tail = tuple(cut_row(row, plan.cut, "there") if plan.cut else row for row in plan.division.tail)
    division = replace(plan.division, tail=tail)
    shorter = assemble(division, "x" * (plan.summary or 0)) if division.middle else division.kept
    assert size_of(shorter) <= room
    assert plan.size <= room
    assert request in shorter
    valid_in_all_modes(shorter)
    assert all(isinstance(json.loads(call.arguments), dict) for row in shorter for call in row.tool_calls)


@pytest.mark.behaviour("COMP-18d")
def test_what_is_insisted_on_is_no_more_than_needed() -> None:
    history = [Message("user", "a" * 5_000), Message("assistant", "b" * 5_000)] * 4 + [Message("user", "go")]
    usual = replace(USUAL, tail_rows=3)
    left = [plan_insisted(history, usual, 20_000, room).division for room in (34_000, 20_000, 9_000, 3_000)]
    assert [(len(one.front), len(one.tail)) for one in left] == [(3, 3), (0, 3), (0, 1), (0, 0)]
    assert all(history[-1] in division.kept for division in left)


@pytest.mark.behaviour("BUILD-16")
def test_texts_that_are_cut_are_cut_to_one_length() -> None:
    long = ToolCall("b", "put", json.dumps({"value": "v" * 9_000}))
    calls = (ToolCall("a", "put", '{"value": "short"}'), long)
    results = [Message("tool", "r" * n, tool_call_id=str(n)) for n in (900, 7_000)]
    run = [Message("assistant", None, tool_calls=calls), *results]
    length = cut_length(run, 6_000)
    assert length is not None
    assert [is_longer(row, length) for row in run] == [True, False, True]
    cut = [cut_row(row, length, "the whole is elsewhere") for row in run]
    assert size_of(cut) <= 6_000
    assert cut[1].sent is None
    assert "[7,000 characters in all; the whole is elsewhere]" in (cut[2].sent or "")
    assert cut[2].content == run[2].content, "what is stored stays whole"
    assert cut[0].tool_calls[0] is calls[0]
    assert cut_length(run, 1_500) is None, "too little for any sense"


@pytest.mark.behaviour("COMP-14", "COMP-14b")
def test_an_old_result_becomes_one_line_that_says_what_it_was() -> None:
    call = ToolCall("c", "terminal", '{"command": "make test"}')
    history = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=(call,)),
        Message("tool", "some output\n" * 40 + "exit code 2", tool_call_id="c", name="terminal"),
        *[Message("assistant", "a"), Message("user", "b")] * 3,
    ]
    line = prune(history, 4)[2].sent
    assert line is not None
    assert "terminal(command='make test'): exit code 2, 41 lines" in line
    assert prune(history, 4)[2].content == history[2].content, "the store keeps all of it"


@pytest.mark.behaviour("COMP-13")
def test_only_the_newest_of_identical_results_is_shown() -> None:
    def result(number: int) -> list[Message]:
        call = ToolCall(f"c{number}", "read_file", '{"path": "a"}')
        said = Message("tool", "same " * 100, tool_call_id=call.id, name="read_file")
        return [Message("assistant", None, tool_calls=(call,)), said]

    shorter = prune([Message("user", "q"), *result(1), *result(2)], 8)
    assert "shown again further below" in (shorter[2].sent or "")
    assert shorter[4].sent is None


def test_images_before_the_newest_go_and_the_newest_stays() -> None:
    def seen(number: int) -> Message:
        return Message("user", [{"type": "text", "text": f"{number}"}, IMAGE])

    later = [Message("assistant", "b"), Message("user", "c")] * 5
    history = [seen(1), Message("assistant", "a"), seen(2), *later]
    contents = [row.content for row in prune(history, 4) if isinstance(row.content, list)]
    kinds = [[part["type"] for part in content] for content in contents]
    assert kinds == [["text", "text"], ["text", "image_url"]]
    assert sum(isinstance(row.content, list) and IMAGE in row.content for row in without_parts(history)) == 1


@pytest.mark.behaviour("COMP-22", "COMP-23")
def test_the_prompt_updates_an_earlier_summary_and_masks_keys() -> None:
    middle = [
        Message("user", "old facts", summary=True),
        Message("user", "the key is sk-proj-abcdefghijklmnop"),
        Message("assistant", "<think>secret thoughts</think>\nfine"),
    ]
    prompt = summary_prompt(middle, window=128_000, focus="the database")
    assert all(words in prompt for words in ("Update it", "old facts", "60 to 70 %"))
    assert not any(words in prompt for words in ("abcdefghijklmnop", "secret thoughts"))
    assert "old facts" in summary_without_model(middle)
    middle = [Message("user", "x" * 5_000) for _ in range(20)]
    assert len(summary_prompt(middle, window=4_000, most_chars=8_000)) < 12_000, "a smaller model sees less"


def test_two_thousand_messages_in_a_tenth_of_a_second() -> None:
    history = [Message("user", "go")]
    for number in range(666):
        call = ToolCall(f"c{number}", "read_file", json.dumps({"path": f"f{number}"}))
        said = Message("tool", f"{number} " * 200, tool_call_id=call.id)
        history += [Message("assistant", None, tool_calls=(call,)), said]
        history.append(Message("assistant", f"step {number}"))
    begun = time.process_time()
    shorter = compacted(history, tail_chars=40_000)
    assert time.process_time() - begun < 1.0, "the benchmark holds the figure; this only catches a square"
    check(history, shorter)
    assert len(shorter) < 600


@pytest.mark.behaviour("COMP-02", "COMP-02b")
@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        (32_000, 27_200), (64_000, 54_400), (128_000, 96_000), (200_000, 150_000), (512_000, 256_000),
        (1_000_000, 500_000),
    ],
)  # fmt: skip
def test_thresholds(window: int, tokens: int) -> None:
    assert threshold(window, Compression()) == tokens


@pytest.mark.behaviour("COMP-03b", "COMP-02c", "COMP-02d")
def test_the_meter_learns_what_a_token_is() -> None:
    meter = ContextMeter()
    assert meter.estimate(4_000) == 1_000
    meter.read(2_000, 4_000)
    assert meter.estimate(4_000) == 2_000
    assert meter.estimate(8_000) == 3_500, "1,000 more by the count, at a ratio between one and two"
    meter.forget()
    assert meter.estimate(4_000) == 1_500
    meter.read(3, 4_000)
    assert meter.estimate(4_000) == 1_500, "three tokens for four thousand characters is a mistake"


@pytest.mark.behaviour("COMP-08")
def test_the_guard_stops_what_does_not_help() -> None:
    guard = CompactionGuard()
    for _ in range(2):
        guard.record_success(with_model=True)
        guard.read(over=True)
        guard.read(over=True)
    assert "did not make room" in guard.why_blocked(0)
    guard.read(over=False)
    assert guard.why_blocked(0) == ""


@pytest.mark.behaviour("COMP-09", "COMP-10")
def test_the_guard_rests_after_failures() -> None:
    guard = CompactionGuard()
    rests = []
    for _ in range(4):
        guard.record_failure("timeout", 1_000)
        rests.append(guard.resting_until - 1_000)
    assert rests == [60, 300, 900, 900]
    guard.record_failure(fault_of("auth"), 0)
    assert guard.resting_until == 600
    assert "resting" in guard.why_blocked(599)
    assert guard.why_blocked(600) == ""
    for _ in range(2):
        guard.record_success(with_model=False)
    assert "without a model" in guard.why_blocked(1_000)
    guard.clear()
    assert guard.why_blocked(1_000) == ""


@pytest.mark.behaviour("COMP-15")
def test_long_arguments_are_shortened_and_stay_json() -> None:
    def shown(length: int) -> str:
        call = ToolCall("c", "write", json.dumps({"path": "a", "text": "x" * length}))
        run = [Message("assistant", None, tool_calls=(call,)), Message("tool", "r", tool_call_id="c")]
        shorter = prune([Message("user", "q"), *run, *[Message("user", "b")] * 4], 4)
        return str(json.loads(shorter[1].tool_calls[0].arguments)["text"])

    assert shown(500) == "x" * 500
    assert shown(501) == "x" * 200 + "… [501 characters]"


def round_of(number: int, result: str = "r") -> list[Message]:
    call = ToolCall(f"c{number}", "echo", "{}")
    return [Message("assistant", None, tool_calls=(call,)), Message("tool", result, tool_call_id=call.id)]


@pytest.mark.behaviour("COMP-17", "COMP-18", "COMP-18b", "COMP-18c")
def test_what_stays_before_and_behind_a_summary() -> None:
    talk = [Message(role, "x" * 1_000) for _ in range(20) for role in ("user", "assistant")]
    whole = [Message("user", "q"), Message("user", "w"), *round_of(1), *talk]

    def kept(history: list[Message], chars: int, least: int = LEAST_TAIL) -> tuple[int, int]:
        cut = divide(history, front=3, tail_chars=chars, tail_rows=least, soft_factor=1.5)
        return len(cut.front), len(cut.tail)

    assert kept(whole, 5_000)[0] == 4, "three rows, and the result of the third"
    assert kept(whole, 5_000)[1] < kept(whole, 10_000)[1] < kept(whole, 20_000)[1]
    assert kept(whole, 0)[1] >= 3
    assert kept(whole, 0, least=9)[1] >= 9
    budget = size_of(talk[-4:])
    for length, taken in ((1_000, True), (4_000, False)):
        behind = [*whole, *round_of(2, "y" * length), *talk[-3:]]
        assert (kept(behind, budget)[1] >= 5) is taken, "a round may exceed the budget by half"


@pytest.mark.behaviour("COMP-21", "COMP-21d", "COMP-21e", "COMP-28", "COMP-29")
def test_a_summary_has_headings_and_is_framed() -> None:
    prompt = summary_prompt([Message("user", "q")], window=128_000)
    first, *others = [line for line in prompt.splitlines() if line.startswith("## ")]
    assert first == "## Task: the user's newest request that is not yet met, word for word"
    assert "## Completed actions: numbered; tool, target, outcome" in others
    assert {"## Goal", "## Decisions", "## Remaining work"} <= set(others)
    before, behind = (Message("user", "a"),), (Message("user", "z"),)
    front, bridge, summary, another, tail = assemble(Division(before, (), None, behind), "what happened")
    assert [row.role for row in (front, bridge, summary, another, tail)] == ["user", "assistant"] * 2 + [
        "user"
    ]
    assert summary.summary
    assert "for reference only" in summary.text
    assert summary.text.endswith("[End of the summary]")


@pytest.mark.behaviour("COMP-23")
def test_a_row_is_shown_to_the_summary_up_to_a_length() -> None:
    call = ToolCall("c", "write", json.dumps({"text": "a" * 9_000}))
    row = Message("assistant", "b" * 4_000 + "m" * 9_000 + "e" * 1_500, tool_calls=(call,))
    prompt = summary_prompt([row], window=128_000)
    assert "b" * 4_000 + "\n… [14,500 characters] …\n" + "e" * 1_500 in prompt
    assert "m" * 10 not in prompt
    assert prompt.count("a" * 100) * 100 <= 1_500
