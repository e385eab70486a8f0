"""The two wires of the OpenAI SDK as ports, through its low-level door: they differ in their path and in how
a reply is read."""

from __future__ import annotations

from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.failures import body_failure
from fsm_agent.providers.profiles import Auth
from fsm_agent.providers.responses_reply import ResponsesReply, whole_response
from fsm_agent.providers.sdk_port import NO_KEY, SdkPort
from fsm_agent.runtime.ports import StreamSink

UNSAID = "An error occurred during streaming"
"""What is said of an error in a stream that has no words."""


class OpenAIPort(SdkPort):
    """A port over ``openai.AsyncOpenAI``. ``auth``: ``api-key`` for the header that Azure reads, a bearer for
    any other. Organisation and project of the environment are told to OpenAI only."""

    sdk = "openai"

    def __init__(self, base_url: str, key: str = "", *, auth: Auth = "bearer", **options: Any) -> None:
        super().__init__(base_url, key, **options)
        self._auth = auth

    def _key_headers(self) -> dict[str, Any]:
        if self._auth == "api-key":
            from openai import Omit

            return {"Api-Key": self._key or NO_KEY, "Authorization": Omit()}
        return {"Authorization": f"Bearer {self._key or NO_KEY}"}

    def _broken(self, event: Any) -> Failure | None:
        error = event.get("error") if isinstance(event, dict) else None
        return body_failure(error, self._now(), self._secrets, UNSAID) if error else None

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
