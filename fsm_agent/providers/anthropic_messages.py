"""Anthropic's Messages API as a port.

The SDK's own iteration over a stream is not used: it passes over every event without a name, which is all
that some gateways send, and it reports an error inside a stream with the status of its response, 200."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.nesting import json_of
from fsm_agent.providers.anthropic_reply import MessagesReply, whole_message
from fsm_agent.providers.sdk_port import NO_KEY, SdkPort
from fsm_agent.runtime.ports import StreamSink

HOST = "api.anthropic.com"
Auth = Literal["x-api-key", "bearer"]


class AnthropicMessages(SdkPort):
    """One model at one Messages endpoint. ``base_url`` with or without the ``/v1`` that the SDK adds;
    ``auth``: the header that carries the key. See ``SdkPort`` for the other arguments."""

    sdk: ClassVar[str] = "anthropic"

    def __init__(self, base_url: str, key: str = "", *, auth: Auth = "x-api-key", **options: Any) -> None:
        super().__init__(base_url.rstrip("/").removesuffix("/v1"), key, **options)
        self._auth = auth

    def _growing(self, sink: StreamSink) -> MessagesReply:
        return MessagesReply(sink, self._now(), self._secrets)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_message(body, sink, self._now(), self._secrets)

    async def _events(self, stream: Any) -> AsyncIterator[Any]:
        async for event in stream.raw_events(stream.response):
            if event.data:
                yield json_of(event.data)

    async def _send(self, client: Any, request: ModelRequest) -> Any:
        from anthropic import AsyncStream

        return await self._post(client, "/v1/messages", request, AsyncStream[object], self._key_headers())

    def _key_headers(self) -> dict[str, Any]:
        """The key in one header only: the SDK would send it as a bearer, which older gateways do not read.
        Raises ``UnicodeEncodeError`` for a key that no header can carry: the SDK would send it garbled."""
        from anthropic import Omit

        key = (self._key or NO_KEY).encode("ascii").decode()
        if self._auth == "bearer":
            return {"Authorization": f"Bearer {key}", "X-Api-Key": Omit()}
        return {"X-Api-Key": key, "Authorization": Omit()}

    def _make(self, sdk: Any) -> Any:
        client = sdk.AsyncAnthropic(**self._client_options(sdk))
        if not _is_own(self.base_url):
            client._custom_headers = {}
        return client


def _is_own(base_url: str) -> bool:
    """Are the headers that the environment names (``ANTHROPIC_CUSTOM_HEADERS``) meant for this address?"""
    named = os.environ.get("ANTHROPIC_BASE_URL", "")
    return (urlsplit(base_url).hostname or "") in (HOST, urlsplit(named).hostname)
