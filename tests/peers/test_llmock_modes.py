"""``llmock`` in all three API modes: the same fault has the same end, whichever wire it comes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.conversation.history_rules import violations
from fsm_agent.testing import FakeClock
from tests.helpers.wire_rows import chat_rows
from tests.peers.llmock import LLMock
from tests.peers.test_llmock import (
    IMPATIENT,
    NOTED,
    WORDS,
    Behaviour,
    bad_call,
    calls_note,
    fail,
    peer,
    says,
    stream_fault,
)

pytestmark = pytest.mark.slow

MODELS = ("openai:gpt-x", "openai-responses:gpt-x", "anthropic:claude-x")
OVERFLOW = {
    "status": 400,
    "code": "context_length_exceeded",
    "message": "This model's maximum context length was exceeded.",
}

FAULTS: dict[str, tuple[list[Behaviour], int, str, str | None]] = {
    "nothing": ([says()], 1, "text_response", None),
    "a tool": ([calls_note(), says()], 2, "text_response", None),
    "429 with Retry-After": ([fail(429, retry_after=7), says()], 2, "text_response", None),
    "401": ([fail(401)], 1, "non_retryable_error", "auth"),
    "500 twice": ([fail(500, 2), says()], 3, "text_response", None),
    "500 for ever": ([fail(500, 3)], 3, "api_retries_exhausted", "server_error"),
    "529 twice": ([fail(529, 2), says()], 3, "text_response", None),
    "529 for ever": ([fail(529, 3)], 3, "api_retries_exhausted", "overloaded"),
    "overflow": (
        [{"type": "fail", "times": 1, **OVERFLOW}],
        1,
        "overflow_uncompressible",
        "context_overflow",
    ),
    "disconnect before text": ([stream_fault("disconnect", 1), says(times=2)], 2, "text_response", None),
    "malformed before text": ([stream_fault("malformed", 1), says(times=2)], 2, "text_response", None),
    "truncate before text": ([stream_fault("truncate", 1), says(times=2)], 2, "text_response", None),
    "stall before text": ([stream_fault("stall", 1), says(times=2)], 2, "text_response", None),
    "malformed arguments": (
        [bad_call("malformed_arguments"), calls_note(times=2), says()],
        3,
        "text_response",
        None,
    ),
}


@pytest.fixture(scope="module")
def started() -> Iterator[LLMock]:
    with peer() as llmock:
        yield llmock


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_the_same_end_in_every_mode(started: LLMock, model: str, fault: str) -> None:
    behaviours, attempts, exit_reason, failure_class = FAULTS[fault]
    noted: list[str] = []

    @tool(effect="unsafe")
    def note(text: str = "nothing") -> str:
        """Note a text."""
        noted.append(text)
        return f"noted {text}"

    started.reset()
    started.queue(*behaviours)
    clock = FakeClock()
    url = started.url.removesuffix("/v1") + "/anthropic" if model.startswith("anthropic") else started.url
    agent = Agent(
        model, base_url=url, api_key="key", tools=[note], toolsets=[], clock=clock, settings=IMPATIENT
    )
    try:
        result = agent.run_conversation("go on")
        requests: list[dict[str, Any]] = started.requests()
    finally:
        agent.close()
    assert len(requests) == attempts
    assert result.turn_exit_reason.value == exit_reason
    assert result.failure_class == failure_class
    assert result.attempts == attempts
    assert all(violations(chat_rows(request["body"])) == [] for request in requests)
    assert noted == ([NOTED] if fault in ("a tool", "malformed arguments") else [])
    if exit_reason == "text_response":
        assert result.final_response == WORDS
    if "Retry-After" in fault:
        assert clock.sleeps == [7.0]
