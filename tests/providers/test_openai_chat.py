"""What only chat completions have, through the real SDK and a real HTTP server; the rest is in
``test_ports``."""

from __future__ import annotations

import json

from fsm_agent.testing import (
    json_reply,
    malformed_chunk,
)
from tests.helpers.ports import CHAT

reply_of, failure_of = CHAT.reply_of, CHAT.failure_of


def test_an_object_without_a_finish_reason_is_whole() -> None:
    got = reply_of(json_reply({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, "b"]}}]}))
    assert (got.text, got.finish, got.cut, got.usage) == ("a\nb", "stop", False, None)


def test_an_error_inside_a_stream() -> None:
    error = json.dumps({"error": {"code": 502, "type": "provider_down", "message": "upstream died"}})
    failure = failure_of(malformed_chunk(chunk=error))
    assert (failure.kind, failure.code, failure.message) == ("shape", "provider_down", "upstream died")
    assert reply_of(malformed_chunk("kept", chunk=error)).cut
