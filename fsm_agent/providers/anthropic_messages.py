"""Anthropic's Messages API as a port."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.anthropic_reply import MessagesReply, whole_message
from fsm_agent.providers.profiles import Auth
from fsm_agent.providers.sdk_port import NO_KEY, SdkPort
from fsm_agent.runtime.ports import StreamSink

HOST = "api.anthropic.com"


class AnthropicMessages(SdkPort):
    """One model at one Messages endpoint. ``base_url`` with or without the ``/v1`` that the SDK adds;
    ``auth``: the header that carries the key. See ``SdkPort`` for the other arguments."""

    sdk = "anthropic"
    path = "/v1/messages"

    def __init__(self, base_url: str, key: str = "", *, auth: Auth = "x-api-key", **options: Any) -> None:
        super().__init__(base_url.rstrip("/").removesuffix("/v1"), key, **options)
        self._auth = auth

    def _growing(self, sink: StreamSink) -> MessagesReply:
        return MessagesReply(sink, self._now(), self._secrets)

    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_message(body, sink, self._now(), self._secrets)

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
