"""The two wires of the OpenAI SDK as ports, through its low-level door: they differ in their path and in how
a reply is read."""

from __future__ import annotations

from typing import Any, ClassVar

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.responses_reply import ResponsesReply, whole_response
from fsm_agent.providers.sdk_port import NO_KEY, SdkPort
from fsm_agent.runtime.ports import StreamSink


class OpenAIPort(SdkPort):
    """A port over ``openai.AsyncOpenAI``. Organisation and project of the environment are told to OpenAI
    only."""

    sdk = "openai"
    path: ClassVar[str]

    async def _send(self, client: Any, request: ModelRequest) -> Any:
        import openai

        key = {"Authorization": f"Bearer {self._key or NO_KEY}"}
        return await self._post(client, self.path, request, openai.AsyncStream[object], key)

    def _make(self, sdk: Any) -> Any:
        client = sdk.AsyncOpenAI(**self._client_options(sdk))
        if "api.openai.com" not in self.base_url:
            client.organization = client.project = None
        client.admin_api_key = None
        return client


class OpenAIChat(OpenAIPort):
    """One model at one chat-completions endpoint. See ``SdkPort`` for its arguments."""

    path = "/chat/completions"

    def _growing(self, sink: StreamSink) -> ChatReply:
        return ChatReply(sink)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_reply(body, sink, self._now(), self._secrets)


class OpenAIResponses(OpenAIPort):
    """One model at one Responses endpoint. See ``SdkPort`` for its arguments."""

    path = "/responses"

    def _growing(self, sink: StreamSink) -> ResponsesReply:
        return ResponsesReply(sink, self._now(), self._secrets)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_response(body, sink, self._now(), self._secrets)
