"""A model port that answers from a script, without any network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, Usage
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.failures import failure_from, http_failure, shape_failure
from fsm_agent.providers.scripted import wire
from fsm_agent.providers.scripted.clock import FakeClock
from fsm_agent.providers.scripted.replies import Repeat, Reply
from fsm_agent.providers.scripted.script import ReplyScript, entries_of
from fsm_agent.runtime.ports import Clock, StreamSink

USED_UP = "the scripted model has no reply left: the turn asked more often than the test foresaw"
_GONE = Failure(
    "transport",
    "RemoteProtocolError: the scripted connection broke",
    exception="RemoteProtocolError",
    detail="remoteprotocolerror: server disconnected without sending a complete message",
)


class ScriptedModel:
    """A ``ModelPort`` fed with replies, ``ModelReply`` and ``Failure`` values, or callables of the decoded
    request.

    Replies of ``fsm_agent.testing`` go through the same reader as those that come over HTTP. A script that is
    used up answers with a ``Failure`` of kind ``local``. ``requests``: the bodies received, decoded;
    ``sent``: the requests as they came; ``keys``: what ``use_key`` was given. Pauses between deltas go
    through ``clock``."""

    def __init__(
        self, script: Iterable[Any] | Repeat | Reply | Callable[[Any], Any] = (), clock: Clock | None = None
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.sent: list[ModelRequest] = []
        self.keys: list[str] = []
        self.rebuilt = 0
        self.closed = False
        self.served_usage: Usage = NO_USAGE
        self._script = ReplyScript(entries_of(script))
        self._clock = clock or FakeClock()

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Play the next entry of the script, and keep the request."""
        body = json.loads(request.body)
        self.requests.append(body)
        self.sent.append(request)
        entry = self._script.take(body)
        if entry is None:
            return Failure("local", USED_UP, exception="AssertionError", detail=USED_UP)
        answer = await self._play(entry, request, sink) if isinstance(entry, Reply) else _tell(entry, sink)
        self.served_usage += answer.usage or NO_USAGE
        return answer

    def use_key(self, key: str) -> None:
        self.keys.append(key)

    async def rebuild(self) -> None:
        self.rebuilt += 1

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.closed = True

    async def _play(self, reply: Reply, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        number = len(self.requests)
        if reply.on_request is not None:
            reply.on_request(self.requests[-1])
        if reply.shape == "status":
            return http_failure(
                reply.status, reply.body, reply.headers, self._clock.now(), exception="APIStatusError"
            )
        if reply.shape == "drop":
            return _GONE
        if reply.shape == "verbatim":
            return whole_reply(reply.body, sink, self._clock.now())
        if (reply.whole or not request.stream) and reply.shape != "mute" and reply.end != "hold":
            return _whole(reply, number, sink)
        return await self._stream(reply, number, sink)

    async def _stream(self, reply: Reply, number: int, sink: StreamSink) -> ModelReply | Failure:
        growing = ChatReply(sink)
        for chunk in wire.chunks(reply, number) if reply.shape == "message" else ():
            if reply.delay and any(choice["delta"] for choice in chunk["choices"]):
                await self._clock.sleep(reply.delay)
            growing.feed(chunk)
        if reply.end == "hold" or reply.shape == "mute":
            if reply.on_hold is not None:
                reply.on_hold()
            await asyncio.Event().wait()
        try:
            for line in reply.raw:
                growing.feed(json.loads(line))
        except ValueError as error:
            return growing.end(failure_from(error, self._clock.now()))
        return growing.end(_GONE if reply.end == "cut" else None)


def _whole(reply: Reply, number: int, sink: StreamSink) -> ModelReply | Failure:
    """A reply that was not streamed."""
    if reply.end == "cut":
        return _GONE
    if reply.raw or reply.shape == "empty":
        return shape_failure("the response is not JSON", "".join(reply.raw))
    return whole_reply(wire.completion(reply, number), sink)


def _tell(entry: Any, sink: StreamSink) -> ModelReply | Failure:
    """A value from the script as it is; what a reply says is reported first."""
    if isinstance(entry, ModelReply):
        sink.alive()
        if entry.reasoning:
            sink.reasoning(entry.reasoning)
        if entry.text:
            sink.text(entry.text)
        for call in entry.tool_calls:
            sink.tool(call.name)
            sink.arguments(call.name, call.arguments)
        return entry
    if not isinstance(entry, Failure):
        raise TypeError(f"a script serves replies, model replies and failures, not {type(entry).__name__}")
    return entry
