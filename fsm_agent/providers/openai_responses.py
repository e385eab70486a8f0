"""The Responses wire as a port."""

from __future__ import annotations

from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.openai_port import OpenAIPort
from fsm_agent.providers.responses_reply import ResponsesReply, whole_response
from fsm_agent.runtime.ports import StreamSink


class OpenAIResponses(OpenAIPort):
    """One model at one Responses endpoint. ``issuer``: whose encrypted reasoning its replies carry. See
    ``SdkPort`` for the other arguments."""

    path = "/responses"

    def __init__(self, base_url: str, key: str = "", *, issuer: str = "", **options: Any) -> None:
        super().__init__(base_url, key, **options)
        self._issuer = issuer

    def _growing(self, sink: StreamSink) -> ResponsesReply:
        return ResponsesReply(sink, self._issuer, self._now(), self._secrets)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_response(body, sink, self._issuer, self._now(), self._secrets)
