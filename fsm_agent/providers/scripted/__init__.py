"""A model port that answers from a script, without a network: for tests, for scripts in files, and for
``fsm_agent.testing``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, Usage
from fsm_agent.errors import ConfigError
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.failures import failure_from, http_failure, shape_failure
from fsm_agent.providers.scripted import replies
from fsm_agent.providers.scripted.replies import Repeat, Reply, call, status
from fsm_agent.runtime.ports import Clock, StreamSink

# An ordered list of answers, one per request.


class ReplyScript:
    """The entries of a script, in order. A ``Repeat`` never ends; a callable receives the request and returns
    an answer.

    Raises ``ValueError`` for entries after a ``Repeat``: they could never be served.
    """

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = list(entries)
        self._position = 0
        self._repeated = 0
        for entry in self._entries[:-1]:
            if isinstance(entry, Repeat):
                raise ValueError("repeat(…) must be the last entry of a script")

    def take(self, request: Any) -> Any:
        """Return the next answer, or ``None`` if the script is exhausted."""
        if self._position == len(self._entries):
            return None
        entry = self._entries[self._position]
        if isinstance(entry, Repeat):
            entry = entry.entries[self._repeated % len(entry.entries)]
            self._repeated += 1
        else:
            self._position += 1
        return entry(request) if isinstance(entry, Callable) else entry  # type: ignore[arg-type]

    @property
    def left(self) -> int:
        """Entries not yet served; a ``Repeat`` always counts as one."""
        return len(self._entries) - self._position


REPLIES = "text(…), tools(call(…)), or another reply of fsm_agent.testing; a function of the request"


def entries_of(script: Iterable[Any] | Repeat | Reply | Callable[[Any], Any]) -> list[Any]:
    """Return the entries of a script, which may be a list or a single answer. Raises ``ConfigError`` for an
    entry that is not a reply."""
    if not (isinstance(script, Iterable | Reply | Repeat) or callable(script)):
        raise ConfigError("a script has the wrong type", script, f"a list of replies: {REPLIES}")
    entries = [script] if isinstance(script, (str, Repeat, Reply)) or callable(script) else list(script)
    for entry in entries:
        if not (isinstance(entry, Repeat | Reply | ModelReply | Failure) or callable(entry)):
            raise ConfigError("a script has an entry that is not a reply", entry, REPLIES)
    return entries


# A clock that moves only when it is advanced or a caller sleeps on it.


class FakeClock:
    """Simulated time in seconds. ``sleep`` advances at once and lets other tasks run; ``sleeps`` records each
    wait.

    ``advance`` may be called from any thread, for example from a hook of ``ScriptedServer``.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.sleeps: list[float] = []
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the simulated time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Record the wait, advance the clock by it, and yield once to the event loop."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move time forward. Raises ``ValueError`` for a negative step: time does not go backwards."""
        if seconds < 0:
            raise ValueError(f"a clock does not go backwards; given: {seconds}")
        with self._lock:
            self._now += seconds


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

    Replies of ``fsm_agent.testing`` are parsed by the same reader as replies over HTTP. An exhausted script
    answers with a ``Failure`` of kind ``local``. ``requests``: the bodies received, decoded; ``sent``: the
    original requests; ``keys``: the arguments of ``use_key``. Pauses between deltas go through ``clock``."""

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
        """Record the request and play the next entry of the script."""
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
        """Record that the port was closed."""
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
        for chunk in replies.chunks(reply, number) if reply.shape == "message" else ():
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
    """Return a reply that is not streamed."""
    if reply.end == "cut":
        return _GONE
    if reply.raw or reply.shape == "empty":
        return shape_failure("the response is not JSON", "".join(reply.raw))
    return whole_reply(replies.completion(reply, number), sink)


def _tell(entry: Any, sink: StreamSink) -> ModelReply | Failure:
    """Return a value from the script unchanged, after reporting its content to the sink."""
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


# Scripts as files: ``scripted:<path>`` is a model that answers from a JSON Lines file, one reply per line.
#
# A line is a string (the text of a reply) or an object with any of ``text``, ``reasoning``, ``calls`` (a
# list of ``{"name", "arguments"}``), ``finish``, ``refusal``, ``status`` (an HTTP error) with ``headers``
# and ``body``, and on the last line ``repeat: true``::
#
#     {"calls": [{"name": "get_time", "arguments": {}}]}
#     {"status": 429, "headers": {"Retry-After": "2"}}
#     "It is noon."


KEYS = ("text", "reasoning", "calls", "finish", "refusal", "status", "headers", "body", "repeat")


def script_from(path: str) -> list[Reply | Repeat]:
    """Read the replies of a file. Raises ``ConfigError`` that names the unreadable line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"the script cannot be read ({error.strerror})", path, "scripted:<path of a JSON Lines file>"
        ) from None
    return [_reply(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _reply(line: str, where: str) -> Reply | Repeat:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where} is not JSON", line, "a string or an object") from None
    if isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, Mapping) or set(row) - set(KEYS):
        raise ConfigError(f"{where} is not a reply", line, f"a string, or an object with {', '.join(KEYS)}")
    reply = _make_reply(row)
    return Repeat((reply,)) if row.get("repeat") else reply


def _make_reply(row: Mapping[str, Any]) -> Reply:
    if "status" in row:
        return status(int(row["status"]), row.get("body"), row.get("headers"))
    calls = tuple(call(str(one["name"]), one.get("arguments")) for one in row.get("calls", ()))
    return Reply(
        text=row.get("text", ""),
        reasoning=row.get("reasoning", ""),
        calls=calls,
        refusal=row.get("refusal"),
        finish=row.get("finish", "tool_calls" if calls else "stop"),
    )
