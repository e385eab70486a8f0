"""The three model ports over HTTP, each with its wire, and a way to ask them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.openai_port import OpenAIChat, OpenAIResponses
from fsm_agent.testing import Reply, ScriptedServer
from tests.helpers.leaping import LeapingLoop
from tests.helpers.waiting import until_so

KEY = "sk-test-0123456789abcdef"


@dataclass(frozen=True)
class Wire:
    """A port with the names and words of its SDK and its provider.

    ``rows`` is the key of the messages in a body, ``auth`` the header of a key and ``bearer`` its prefix.
    ``empty`` are bodies of a 200 without a reply in them, with words of the message and the code.
    ``broken`` is a chunk that is not JSON."""

    name: str
    port: type[Any]
    path: str
    rows: str = "messages"
    auth: str = "authorization"
    bearer: str = "Bearer "
    options: Mapping[str, Any] = field(default_factory=dict)
    no_arguments: str = ""
    refused: str = "stop"
    overloaded: str = "InternalServerError"
    too_long: str = "maximum context length is 4096 tokens"
    rate: str = "x-ratelimit-remaining-requests"
    broken: str | None = None
    empty: tuple[tuple[Any, str, str], ...] = ()
    account: tuple[str, ...] = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")

    def make(self, *args: Any, **options: Any) -> Any:
        return self.port(*args, **{**self.options, **options})

    def request(self, stream: bool = True) -> ModelRequest:
        return ModelRequest(
            json.dumps({"model": "m", self.rows: [], "stream": stream}).encode(), stream=stream
        )

    async def call(self, url: str, *key: str, stream: bool = True, **options: Any) -> ModelReply | Failure:
        """One call of a port of its own."""
        port = self.make(url, *key, **options)
        try:
            got: ModelReply | Failure = await port.call(self.request(stream), Seen())
            return got
        finally:
            await port.aclose()

    def ask(
        self,
        *script: Reply,
        stream: bool = True,
        loop: LeapingLoop | None = None,
        sink: Seen | None = None,
        **options: Any,
    ) -> tuple[ModelReply | Failure, Seen, ScriptedServer]:
        """Serve the script to one call for each entry; returns what the last one brought, which ``sink``
        saw."""

        async def play(server: ScriptedServer) -> tuple[ModelReply | Failure, Seen]:
            port = self.make(server.url, KEY, **options)
            try:
                for _ in script:
                    seen = sink or Seen()
                    got = await port.call(self.request(stream), seen)
                await until_so(
                    lambda: server.completions == len(script), "the last request"
                )  # a client may give up before
                return got, seen
            finally:
                await port.aclose()

        with (
            ScriptedServer(script) as server,
            asyncio.Runner(loop_factory=lambda: loop or asyncio.new_event_loop()) as runner,
        ):
            got, seen = runner.run(play(server))
        assert (server.errors, server.overrun, server.completions) == ([], [], len(script))
        assert all(received.path == self.path for received in server.requests)
        return got, seen, server

    def reply_of(self, *script: Reply, stream: bool = True) -> ModelReply:
        got, _, _ = self.ask(*script, stream=stream)
        assert isinstance(got, ModelReply)
        return got

    def failure_of(self, *script: Reply, stream: bool = True, **options: Any) -> Failure:
        got, _, _ = self.ask(*script, stream=stream, **options)
        assert isinstance(got, Failure)
        return got


GONE = {"message": "quota gone", "code": "insufficient_quota"}
CHAT = Wire(
    "chat",
    OpenAIChat,
    "/v1/chat/completions",
    empty=(({"choices": []}, "no choices", ""), ({"choices": [{"message": None}]}, "no choices", ""),
           ({"error": GONE}, "quota gone", "insufficient_quota"),
           ({"error": "plain words", "choices": None}, "plain words", "")),
)  # fmt: skip
ANTHROPIC = Wire(
    "messages",
    AnthropicMessages,
    "/v1/messages",
    auth="x-api-key",
    bearer="",
    no_arguments="{}",
    refused="content_filter",
    overloaded="OverloadedError",
    too_long="prompt is too long: 5000 tokens > 4096 maximum",
    rate="anthropic-ratelimit-requests-remaining",
    empty=(({"choices": []}, "no content", ""), ({"content": None}, "no content", ""),
           ({"error": GONE}, "quota gone", "insufficient_quota"),
           ({"error": "plain words", "content": None}, "plain words", "")),
    account=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
)  # fmt: skip
RESPONSES = Wire(
    "responses",
    OpenAIResponses,
    "/v1/responses",
    rows="input",
    broken='{"type": "resp',
    empty=(
        ({"status": "completed", "output": []}, "no output", ""),
        ({"status": "completed", "output": None}, "no output", ""),
        ({"status": "cancelled", "output": [{"type": "message"}]}, "was cancelled", ""),
        ({"status": "failed", "output": []}, "no output", ""),
        ({"status": "failed", "error": GONE}, "quota gone", "insufficient_quota"),
        ({"error": "plain words"}, "plain words", ""),
        ({"choices": [{"message": {"content": "hi"}}]}, "api_mode", ""),
    ),
)
WIRES = (CHAT, ANTHROPIC, RESPONSES)


class Seen:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tools: list[str] = []
        self.argued: dict[str, str] = {}
        self.beats = 0
        self.never_left = False
        self.notices: list[str] = []

    def alive(self) -> None:
        self.beats += 1

    def text(self, delta: str) -> None:
        self.texts.append(delta)

    def reasoning(self, delta: str) -> None:
        self.thoughts.append(delta)

    def tool(self, name: str) -> None:
        self.tools.append(name)

    def arguments(self, name: str, delta: str) -> None:
        self.argued[name] = self.argued.get(name, "") + delta

    def notice(self, words: str) -> None:
        self.notices.append(words)

    def unsent(self) -> None:
        self.never_left = True
