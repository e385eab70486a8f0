"""A port for Anthropic's Messages API, at Anthropic's own address and at Amazon Bedrock."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import Finish, ModelReply, ToolCall, Usage
from fsm_agent.conversation.vendors import HOSTED, words_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.chat_reply import EMPTY, read_calls
from fsm_agent.providers.credentials import hide_from_children
from fsm_agent.providers.failures import event_failure, shape_failure
from fsm_agent.providers.profiles import Auth
from fsm_agent.providers.reply_values import (
    EVENT_BYTES,
    NAME_CHARACTERS,
    id_of,
    mapping_of,
    mappings_of,
    messages_usage,
    place_of,
    text_of,
)
from fsm_agent.providers.sdk_port import NO_KEY, EventReader, SdkPort, omitted, sdk_module
from fsm_agent.providers.transport import BadBody, PreparedRequests
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.support.installation import install_command
from fsm_agent.support.texts import clean, json_of

# Assemble a reply of Anthropic's Messages API from events or from one object. No SDK, no network.


_FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "incomplete",
}
_KIND_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
THOUGHTS = ("thinking", "redacted_thinking")


@dataclass(slots=True)
class ReplyBlock:
    """A content block that is arriving. ``first``: its opening fields; ``pieces``: added by its deltas."""

    first: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    citations: list[Any] = field(default_factory=list)
    closed: bool = False

    @property
    def kind(self) -> str:
        """Return the block's type."""
        return text_of(self.first.get("type"))

    @property
    def text(self) -> str:
        """Return the text received so far."""
        return clean("".join(self.pieces))

    @property
    def arguments(self) -> str:
        """Return the input of a tool call as JSON text. Servers that send it whole put it into the first
        event. An empty input becomes ``{}`` only when the block is closed: until then, arguments may still be
        on their way."""
        given = self.first.get("input")
        if self.pieces or not given:
            return self.text or ("{}" if self.closed else "")
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

    @property
    def whole(self) -> dict[str, Any]:
        """Return the block in the form that is sent back to its issuer."""
        own = {**self.first, "type": self.kind}
        if self.kind == "thinking":
            own |= {"thinking": self.text, "signature": "".join(self.signature)}
        elif self.kind == "text":
            own |= {"text": self.text} | ({"citations": self.citations} if self.citations else {})
        elif self.kind == "server_tool_use":
            own["input"] = _object(self.arguments)
        return own


class MessagesReply:
    """A growing reply. ``feed`` takes events in order and reports deltas to the sink; ``end`` builds the
    result.

    ``now`` (wall time in seconds) and ``secrets`` are for the failure of an error event."""

    def __init__(self, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()) -> None:
        self._sink = sink
        self._now, self._secrets = now, secrets
        self._failure: Failure | None = None
        self._blocks: dict[Any, ReplyBlock] = {}
        self._stop: str | None = None
        self._refusal: str | None = None
        self._model: str | None = None
        self._counts: dict[str, Any] = {}
        self._torn = False

    @property
    def usage(self) -> Usage | None:
        """Return the token usage reported so far; ``None`` without a report."""
        return messages_usage(self._counts)

    @property
    def finished(self) -> bool:
        """Whether a stop reason or an error has arrived; nothing of interest follows."""
        return self._stop is not None or self._failure is not None

    def feed(self, event: Any) -> None:
        """Process one decoded event. Ignores pings and anything that is not an event."""
        if not isinstance(event, Mapping) or event.get("type") in ("ping", None):
            return
        self._sink.alive()
        match event["type"]:
            case "message_start":
                self._begin(mapping_of(event.get("message")))
            case "content_block_start":
                self._open(place_of(event.get("index")), mapping_of(event.get("content_block")))
            case "content_block_delta":
                self._grow(place_of(event.get("index")), mapping_of(event.get("delta")))
            case "content_block_stop":
                self._close(place_of(event.get("index")))
            case "message_delta":
                self._note_stop(mapping_of(event.get("delta")))
                self._count(event.get("usage"))
            case "error":
                self._failure = event_failure(event, self._now, self._secrets)

    def _begin(self, message: Mapping[str, Any]) -> None:
        self._model = text_of(message.get("model")) or None
        self._count(message.get("usage"))

    def _open(self, index: Any, first: Mapping[str, Any]) -> None:
        block = self._blocks[index] = ReplyBlock(first)
        block.signature = [text_of(first.get("signature"))]
        block.citations = mappings_of(first.get("citations"))
        self._add(block, first.get("text") if block.kind == "text" else first.get("thinking"))
        if block.kind == "tool_use":
            self._sink.tool(text_of(first.get("name"))[:NAME_CHARACTERS])

    def _grow(self, index: Any, delta: Mapping[str, Any]) -> None:
        block = self._blocks.get(index)
        if block is None:
            # the block's start was lost: show what is left of it, but do not treat the reply as complete
            self._torn = True
            kind = _KIND_OF_DELTA.get(text_of(delta.get("type")), "lost")
            block = self._blocks[index] = ReplyBlock({"type": kind})
        if isinstance(signature := delta.get("signature"), str):
            block.signature.append(signature)
        if isinstance(part := delta.get("partial_json"), str):
            block.pieces.append(part)
            self._sink.arguments(text_of(block.first.get("name")), part)
        if citation := mapping_of(delta.get("citation")):
            block.citations.append(citation)
        self._add(block, delta.get("text") or delta.get("thinking"))

    def _add(self, block: ReplyBlock, text: Any) -> None:
        if isinstance(text, str) and text and block.kind in ("text", "thinking"):
            block.pieces.append(text)
            (self._sink.text if block.kind == "text" else self._sink.reasoning)(text)

    def _close(self, index: Any) -> None:
        if index in self._blocks:
            self._blocks[index].closed = True
            if words := words_of(self._blocks[index].whole):
                self._sink.notice(words)

    def _note_stop(self, delta: Mapping[str, Any]) -> None:
        if isinstance(reason := delta.get("stop_reason"), str) and reason:
            self._stop = reason
        details = mapping_of(delta.get("stop_details"))
        if isinstance(words := details.get("explanation"), str) and words:
            self._refusal = words

    def _count(self, usage: Any) -> None:
        """Update the token counts, which are running totals. A zero never replaces a count: some gateways
        report the input only at the start."""
        for name, value in mapping_of(usage).items():
            if value or name not in self._counts:
                self._counts[name] = value

    def whole(self, message: Mapping[str, Any]) -> None:
        """Process a complete message."""
        self._sink.alive()
        self._begin(message)
        for index, block in enumerate(message.get("content") or ()):
            self._open(index, mapping_of(block))
            self._close(index)
        self._note_stop(
            {"stop_reason": "end_turn", **{k: v for k, v in message.items() if k.startswith("stop_") and v}}
        )

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """Return the reply or a failure once the stream has ended; ``failure`` is the error that broke it
        off, if any.

        A stop reason makes a reply complete only if every block was closed: otherwise a lost event would go
        unnoticed. Without a stop reason, text is a cut reply: asking again would show it twice. Nothing
        delivered, or a tool call in flight when the connection broke, is a failure."""
        failure = self._failure or failure
        whole = (
            self._stop is not None and not self._torn and all(block.closed for block in self._blocks.values())
        )
        has_text = any(block.kind == "text" and block.pieces for block in self._blocks.values())
        called = any(block.kind == "tool_use" for block in self._blocks.values())
        if whole or (has_text and not called) or (failure is None and called):
            return self._reply(whole)
        if failure is None:
            failure = Failure("transport", EMPTY, exception="EmptyStream", detail=EMPTY)
        return replace(failure, usage=self.usage)

    def _reply(self, whole: bool) -> ModelReply:
        finish: Finish | None = _FINISH.get(self._stop or "", "stop") if whole else None
        calls = self._calls()
        if finish in ("stop", "tool_calls"):
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            text=self._block_text("text"),
            reasoning=self._block_text("thinking"),
            tool_calls=tuple(calls.values()),
            finish=finish,
            cut=finish is None,
            refusal=self._refusal,
            usage=self.usage,
            model=self._model,
            blocks=tuple(self._opaque(calls)),
        )

    def _block_text(self, kind: str) -> str:
        return "".join(block.text for block in self._blocks.values() if block.kind == kind)

    def _calls(self) -> dict[Any, ToolCall]:
        """Return the tool calls by block, each with a unique id."""
        used = {index: block for index, block in self._blocks.items() if block.kind == "tool_use"}
        given = (
            (id_of(block.first.get("id")), text_of(block.first.get("name")), block.arguments)
            for block in used.values()
        )
        return dict(zip(used, read_calls(given), strict=True))

    def _opaque(self, calls: Mapping[Any, ToolCall]) -> Iterable[Mapping[str, Any]]:
        """Yield the blocks that only the issuer of the reply can read."""
        if hosted := self._hosted_blocks():
            yield {"type": HOSTED, "content": [block.whole for block in hosted.values()]}
        yield from (thought for index, thought in self._thoughts(calls) if index not in hosted)

    def _hosted_blocks(self) -> dict[Any, ReplyBlock]:
        """Return the blocks of a reply in which hosted tools ran: all except calls and the thoughts after the
        first call."""
        kept, called = {}, False
        for index, block in self._blocks.items():
            called = called or block.kind == "tool_use"
            if block.closed and block.kind != "tool_use" and not (called and block.kind in THOUGHTS):
                kept[index] = block
        return kept if any(block.kind == "server_tool_use" for block in kept.values()) else {}

    def _thoughts(self, calls: Mapping[Any, ToolCall]) -> Iterable[tuple[Any, Mapping[str, Any]]]:
        """Return the thinking blocks in order, each with its position. A block after the leading ones names
        the call that follows it in ``before``, which is empty if no call follows."""
        kinds = ((index, block.kind in THOUGHTS) for index, block in self._blocks.items())
        leading = {index for index, _ in takewhile(lambda pair: pair[1], kinds)}
        following = ""
        kept: list[tuple[Any, dict[str, Any]]] = []
        for index, block in reversed(self._blocks.items()):
            following = calls[index].id if index in calls else following
            if block.kind not in THOUGHTS or not (block.closed or any(block.signature)):
                continue
            if block.kind == "redacted_thinking" and not text_of(block.first.get("data")):
                continue
            place = {} if index in leading else {"before": following}
            kept.append((index, block.whole | place))
        return kept[::-1]


def _object(text: str) -> Any:
    """Parse the input of a hosted tool, which arrived in pieces."""
    try:
        return json_of(text)
    except ValueError:
        return {}


def whole_message(
    body: Any, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()
) -> ModelReply | Failure:
    """Parse a complete response object. Reports its text to the sink once; a missing stop reason counts as
    end of turn.

    ``now`` (wall time in seconds) and ``secrets`` are for the failure of a body without content.
    """
    if not isinstance(body, Mapping):
        return shape_failure("the response is not a JSON object", body, secrets)
    reply = MessagesReply(sink, now, secrets)
    if isinstance(body.get("content"), list):
        reply.whole(body)
        return reply.end()
    if body.get("error"):
        return replace(event_failure(body, now, secrets), usage=messages_usage(body.get("usage")))
    return replace(
        shape_failure("the response has no content", body, secrets), usage=messages_usage(body.get("usage"))
    )


HOST = "api.anthropic.com"


class AnthropicMessages(SdkPort):
    """One model at one Messages endpoint. ``base_url``: with or without the ``/v1`` that the SDK adds.
    ``auth``: the header that carries the key. See ``SdkPort`` for the other arguments."""

    sdk = "anthropic"
    path = "/v1/messages"

    def __init__(self, base_url: str, key: str = "", *, auth: Auth = "x-api-key", **options: Any) -> None:
        super().__init__(base_url.rstrip("/").removesuffix("/v1"), key, **options)
        self._auth = auth

    def _stream_parser(self, sink: StreamSink) -> MessagesReply:
        return MessagesReply(sink, self._now(), self._secrets)

    def _parse_body(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_message(body, sink, self._now(), self._secrets)

    def _key_headers(self) -> dict[str, Any]:
        """Return the key in one header only: the SDK would also send it as a bearer token, which older
        gateways do not accept. Raises ``UnicodeEncodeError`` for a key that a header cannot carry: the SDK
        would send it garbled."""
        import anthropic

        omit = omitted(anthropic)
        key = (self._key or NO_KEY).encode("ascii").decode()
        if self._auth == "bearer":
            return {"Authorization": f"Bearer {key}", "X-Api-Key": omit}
        return {"X-Api-Key": key, "Authorization": omit}

    def _make(self, sdk: Any) -> Any:
        client = PreparedRequests.of(sdk, "AsyncAnthropic")(**self._client_options(sdk))
        if not _is_own(self.base_url):
            client._custom_headers = {}
        return client


def _is_own(base_url: str) -> bool:
    """Return whether the headers in ``ANTHROPIC_CUSTOM_HEADERS`` are meant for this address."""
    named = os.environ.get("ANTHROPIC_BASE_URL", "")
    return (urlsplit(base_url).hostname or "") in (HOST, urlsplit(named).hostname)


# The same API at Amazon Bedrock, through ``AsyncAnthropicBedrock``, which puts the model into the path, and
# signs requests with an AWS account if no key is given.


SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")


def check_installed() -> None:
    """Raise ``ConfigError`` if the package that signs requests and decodes their streams is not installed.
    From now on, commands of this process do not see the secrets of the AWS account."""
    if find_spec("boto3") is None:
        raise ConfigError("provider 'bedrock' needs boto3", None, install_command("bedrock"))
    hide_from_children(SECRETS, [os.environ.get(name, "") for name in SECRETS])


class BedrockMessages(AnthropicMessages):
    """One model at one Bedrock endpoint. ``key``: a Bedrock API key; without one, requests are signed with
    the AWS account of the environment, a profile, or the machine. See ``SdkPort`` for the other arguments."""

    def _make(self, sdk: Any) -> Any:
        options = {**self._client_options(sdk), "api_key": self._key or None}
        client = sdk.AsyncAnthropicBedrock(**options)
        client._custom_headers = {}
        return client

    def _pool_key(self) -> Hashable:
        return self, self._timeouts  # the client holds the current key, so it is not shared

    async def ready(self) -> Any:
        """Return the client of this event loop. Raises ``ImportError`` if the SDK cannot be imported."""
        await sdk_module("boto3")
        return await super().ready()

    async def _send(self, client: Any, request: ModelRequest) -> Any:
        """Send the request. The SDK takes the model and the stream flag out of the body; betas requested by a
        header go into the body."""
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


PRELUDE = 12
"""Bytes of a frame's prelude: two lengths and a checksum."""


class AwsEvents:
    """Extracts the events from a stream in Amazon's event-stream format: binary frames that begin with their
    length and contain the event as base64 in JSON. Errors are frames of another message type."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[str]:
        """Process the next bytes and yield the data of each completed event. Raises ``BadBody``."""
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
    from botocore.eventstream import EventStreamBuffer, ParserError

    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    try:
        event = next(buffer)
        payload: Any = json_of(event.payload.decode() or "{}")
        if event.headers.get(":message-type") == "event":
            return base64.b64decode(payload.get("bytes") or "").decode()
    except (ParserError, StopIteration, AttributeError, TypeError, ValueError) as error:
        raise BadBody(f"its answer is damaged: {error}") from None
    name = event.headers.get(":exception-type") or event.headers.get(":error-code") or "error"
    words = payload.get("message") or event.headers.get(":error-message") or ""
    return json.dumps({"type": "error", "error": {"type": name, "message": words}})
