"""Anthropic's models at Amazon Bedrock as a port: the Messages wire through ``AsyncAnthropicBedrock``, which
puts the model into the path, and signs a request with an AWS account where no key is given.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Hashable, Iterator
from importlib.util import find_spec
from typing import Any

from botocore.eventstream import EventStreamBuffer, ParserError

from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.conversation.json_reading import json_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.credentials import hide_from_children
from fsm_agent.providers.reply_values import EVENT_BYTES
from fsm_agent.providers.sdk_port import EventReader, sdk_module
from fsm_agent.providers.transport import BadBody
from fsm_agent.support.installation import install_command

SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")


def check_installed() -> None:
    """Raise ``ConfigError`` when what signs requests, and reads their streams, is not installed. From now on
    no command of this process sees the secrets of the account."""
    if find_spec("boto3") is None:
        raise ConfigError("provider 'bedrock' needs boto3", None, install_command("bedrock"))
    hide_from_children(SECRETS, [os.environ.get(name, "") for name in SECRETS])


class BedrockMessages(AnthropicMessages):
    """One model at one Bedrock endpoint. ``key``: a Bedrock API key; with none, the AWS account of the
    environment, of a profile or of the machine signs. See ``SdkPort`` for the other arguments."""

    def _make(self, sdk: Any) -> Any:
        options = {**self._client_options(sdk), "api_key": self._key or None}
        client = sdk.AsyncAnthropicBedrock(**options)
        client._custom_headers = {}
        return client

    def _pool_key(self) -> Hashable:
        return self, self._timeouts  # it holds the current key, so it is not shared

    async def ready(self) -> Any:
        """The client of this event loop. Raises ``ImportError`` when the SDK cannot be imported."""
        await sdk_module("boto3")
        return await super().ready()

    async def _send(self, client: Any, request: ModelRequest) -> Any:
        """The SDK takes the model and the kind of reply out of the body; a beta that is asked for by a header
        goes into it."""
        import httpx2

        client.api_key = self._key or None
        betas = next((text for name, text in self._headers.items() if name.lower() == "anthropic-beta"), "")
        return await client.post(
            self.path,
            body=json.loads(request.body) | ({"anthropic_beta": betas.split(",")} if betas else {}),
            cast_to=httpx2.Response,
            stream=True,
            options={"headers": {"Accept": "*/*"}, "max_retries": 0},
        )

    def _events(self) -> EventReader:

        return AwsEvents()


# Events of a stream in Amazon's own form. Loaded with the first of them.


PRELUDE = 12
"""Bytes of a frame's head: two lengths and a checksum."""


class AwsEvents:
    """Finds the events in a stream of Amazon's own form: each is JSON in base64 in a binary frame, which
    begins with its length; an error is a frame of another kind."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; yield the data of the events that are whole with them. Raises ``BadBody``."""
        self._rest += piece
        while len(self._rest) >= PRELUDE:
            size = int.from_bytes(self._rest[:4])
            if not PRELUDE < size <= EVENT_BYTES:
                raise BadBody(f"it sent an event of {size:,} bytes, which no provider does")
            if len(self._rest) < size:
                return
            frame = bytes(self._rest[:size])
            del self._rest[:size]
            if data := _data_of(frame):
                yield data


def _data_of(frame: bytes) -> str:
    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    try:
        event = next(buffer)
        told: Any = json_of(event.payload.decode() or "{}")
        if event.headers.get(":message-type") == "event":
            return base64.b64decode(told.get("bytes") or "").decode()
    except (ParserError, StopIteration, AttributeError, TypeError, ValueError) as error:
        raise BadBody(f"its answer is damaged: {error}") from None
    name = event.headers.get(":exception-type") or event.headers.get(":error-code") or "error"
    words = told.get("message") or event.headers.get(":error-message") or ""
    return json.dumps({"type": "error", "error": {"type": name, "message": words}})
