"""Anthropic's models at Amazon Bedrock as a port: the Messages wire through ``AsyncAnthropicBedrock``, which
puts the model into the path, and signs a request with an AWS account where no key is given."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from importlib.util import find_spec
from typing import Any

from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.errors import ConfigError
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.keyless_environment import hide_from_children
from fsm_agent.providers.sdk_import import sdk_module
from fsm_agent.providers.sdk_port import EventReader
from fsm_agent.runtime.ports import TRACE_HEADERS
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

    def _alike(self) -> Hashable:
        return self, self._timeouts  # it has the key of the moment, so it is nobody else's

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
            options={"headers": {**TRACE_HEADERS.get(), "Accept": "*/*"}, "max_retries": 0},
        )

    def _events(self) -> EventReader:
        from fsm_agent.providers.aws_events import AwsEvents

        return AwsEvents()
