"""What a request is taken to have used when its provider did not say."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.conversation.effects import Cancelled, Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, ToolCall, Usage
from fsm_agent.conversation.token_meter import assumed_usage

REQUEST = ModelRequest(estimate=1_000)


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        (ModelReply("x" * 400, "y" * 40), Usage(1_000, 110)),
        (ModelReply(tool_calls=(ToolCall("1", "look", "z" * 36),)), Usage(1_000, 10)),
        (Cancelled("x" * 40), Usage(1_000, 10)),
        (Cancelled(sent=False), NO_USAGE),
        (Failure("transport", "broken"), Usage(1_000)),
        (Failure("lost", "its process ended"), Usage(1_000)),
        (Failure("transport", "refused", sent=False), NO_USAGE),
        (Failure("http", "too many", status=429), NO_USAGE),
    ],
)
def test_a_request_that_left_counts_with_what_had_arrived(reply: Any, usage: Usage) -> None:
    assert assumed_usage(REQUEST, reply) == usage
