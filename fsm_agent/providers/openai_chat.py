"""The chat-completions wire as a port."""

from __future__ import annotations

from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.openai_port import OpenAIPort
from fsm_agent.runtime.ports import StreamSink


class OpenAIChat(OpenAIPort):
    """One model at one chat-completions endpoint. See ``SdkPort`` for its arguments."""

    path = "/chat/completions"

    def _growing(self, sink: StreamSink) -> ChatReply:
        return ChatReply(sink)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_reply(body, sink, self._now(), self._secrets)
