"""The tables between a turn and an editor are whole, and nothing that others wrote leads out of its frame."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, get_args

import pytest
from acp.schema import AllowedOutcome, RequestPermissionResponse, StopReason
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.acp.updates import (
    KINDS,
    OPTIONS,
    STOPS,
    EditorView,
    changes_of,
    code_block,
    inline,
    kind_of,
    plan_of,
    raw,
    replay_updates,
    title_of,
)
from fsm_agent.cli.questions import ANSWERS
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.result import ExitReason, Outcome
from fsm_agent.testing import ScriptedModel, text
from fsm_agent.toolsets import TOOLSETS, toolset
from fsm_agent.toolsets.agent import AGENT_LEVEL


def test_every_exit_reason_has_a_stop_reason_or_is_an_error() -> None:
    assert set(STOPS) == set(ExitReason)
    assert {stop for stop in STOPS.values() if stop} == set(get_args(StopReason))
    for reason, stop in STOPS.items():
        assert (stop == "cancelled") == (reason.outcome is Outcome.INTERRUPTED)
        assert stop is not None or reason.outcome is Outcome.FAILED


def test_every_built_in_tool_has_a_kind_and_the_options_are_those_of_the_terminal(tmp_path: Path) -> None:
    named = {one.spec.name for group in TOOLSETS for one in toolset(group, tmp_path, home=tmp_path)}
    assert named | AGENT_LEVEL <= set(KINDS)
    assert kind_of("a_tool_of_mine") == "other"
    assert set(OPTIONS) == set(ANSWERS.values())


@given(st.text())
def test_code_in_markdown_ends_only_where_it_ends(words: str) -> None:
    block = code_block(words)
    ticks = block[: len(block) - len(block.lstrip("`"))]
    assert block == f"{ticks}\n{words}\n{ticks}"
    assert ticks not in words
    assert title_of("x", {"command": words}).count("\n") == 0


def test_a_title_is_one_line_of_code() -> None:
    assert title_of("terminal", {"command": "ls\n-la"}) == r"terminal `ls\x0a-la`"
    assert title_of("terminal", {"command": "echo `x`"}) == "terminal `` echo `x` ``"
    assert title_of("time", {}) == "time"
    assert inline("a") == "`a`"
    # arguments that cannot be written down are shown all the same
    assert raw({"a": "\ud800", "b": [float("inf"), object]}) is not None


def test_a_file_outside_is_not_read_for_a_diff(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("secret")
    for path in ("../secret", str(tmp_path / "secret")):
        [change] = changes_of("write_file", {"path": path, "content": "x"}, tmp_path / "work", begins=True)
        assert change.old_text is None


def test_a_plan_is_the_list_without_what_was_cancelled() -> None:
    items = '{"todos": [{"content": "a", "status": "cancelled"}, {"content": "b", "status": "completed"}]}'
    plan: Any = plan_of(items)
    assert [(entry.content, entry.status) for entry in plan.entries] == [("b", "completed")]
    assert [plan_of(other) for other in ("", "[]", '{"todos": 1}', '{"todos": [{}]}')] == [None] * 4


def test_a_transcript_is_replayed_in_its_order(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    rows = [
        Message("user", [{"type": "text", "text": "look"}, image]),
        Message("assistant", "I look.", (ToolCall("1", "read_file", '{"path": "a"}'), ToolCall("2", "x", "{")),
                reasoning="Hm."),
        Message("tool", "words", tool_call_id="1"),
        Message("user", "before", summary=True),
    ]  # fmt: skip
    updates: list[Any] = list(replay_updates(rows, tmp_path))
    assert [one.session_update for one in updates] == [
        "user_message_chunk", "user_message_chunk", "agent_thought_chunk", "agent_message_chunk",
        "tool_call", "tool_call", "agent_thought_chunk",
    ]  # fmt: skip
    assert updates[1].content.data == "AAAA"
    assert [(one.status, one.kind) for one in updates[4:6]] == [("completed", "read"), ("failed", "other")]


class Quiet:
    """A client that records updates and answers requests."""

    def __init__(self, answer: str = "") -> None:
        self.told: list[str] = []
        self.answer = answer

    async def request_permission(self, *_: Any) -> RequestPermissionResponse:
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.answer))

    async def session_update(self, session_id: str, update: Any) -> None:
        if update.session_update == "agent_message_chunk":
            self.told.append(update.content.text)


@pytest.mark.parametrize("streaming", [True, False])
async def test_each_answer_is_sent_once(tmp_path: Path, streaming: bool) -> None:
    client: Any = Quiet()
    view = EditorView(client, tmp_path)
    model = ScriptedModel([text("The answer.")])
    agent = Agent(model, callbacks=view if streaming else None, toolsets=[])
    view.finish(await agent.arun("go"))
    await view.flush()
    view.close()
    assert "".join(client.told) == "The answer."


@pytest.mark.parametrize(
    ("choices", "taken", "answer"),
    [(["red", "blue"], "1", "blue"), (["red"], "none", None), (["red"], "7", None), ([], "0", None)],
)
def test_a_question_is_answered_with_one_of_its_choices(
    tmp_path: Path, choices: list[str], taken: str, answer: str | None
) -> None:
    async def work() -> str | None:
        client: Any = Quiet(taken)
        view = EditorView(client, tmp_path)
        try:
            return await view.clarify("Which color?", choices)
        finally:
            view.close()

    assert asyncio.run(work()) == answer
