"""A real HTTP server on loopback that answers from a script.

::

    with ScriptedServer([tools(call("echo", {"text": "hi"})), text("done")]) as server:
        agent = Agent(model="local:any", base_url=server.url, tools=[echo])
        assert agent.chat("go") == "done"
        assert server.completions == 2
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.providers.scripted import ReplyScript, entries_of, replies
from fsm_agent.providers.scripted.replies import ChatDialect, Dialect, Repeat, Reply, status
from fsm_agent.testing.wires import MessagesDialect, ResponsesDialect

# ----------------------------------------------------------------------------------------------------
# The part of HTTP/1.1 that a scripted server needs: read one request, write one response.


@dataclass(frozen=True, slots=True)
class Received:
    """One request as received. ``headers`` have lower-case names; ``time`` is wall time in seconds.
    ``cut_off``: the client disconnected before the body was complete."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    time: float
    cut_off: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body; empty if it is missing or not an object."""
        try:
            value = json.loads(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


async def read_request(reader: asyncio.StreamReader, first: bytes, now: float) -> Received | None:
    """Read a request, of which ``first`` was read already. Return ``None`` if the client disconnects before
    the headers are complete."""
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
        start, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = start.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        size = int(headers.get("content-length", 0))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        return None
    try:
        return Received(method, path, headers, await reader.readexactly(size), now)
    except (asyncio.IncompleteReadError, ConnectionError) as gone:
        partial = gone.partial if isinstance(gone, asyncio.IncompleteReadError) else b""
        return Received(method, path, headers, partial, now, cut_off=True)


def head(code: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and headers."""
    reason = HTTPStatus(code).phrase if code in set(HTTPStatus) else "Unassigned"
    lines = [f"HTTP/1.1 {code} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def whole(code: int, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a complete response. A string body is sent as is, anything else as JSON."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) and body.lstrip().startswith("<") else "application/json"
    fields = {"content-type": kind, "content-length": str(len(content)), **(headers or {})}
    return head(code, fields) + content


STREAM = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse_event(data: str, name: str = "") -> bytes:
    """Return one server-sent event as a chunk."""
    named = f"event: {name}\n" if name else ""
    return chunk(f"{named}data: {data}\n\n".encode())


# ----------------------------------------------------------------------------------------------------
# Playing one scripted reply to one client.


Served = Callable[[Usage], object]
"""Called with the tokens just before they are sent: a client must find those it has read counted."""


async def answer(
    reply: Reply, dialect: Dialect, stream: bool, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    """Write a reply as a stream or as one object. Return whether the connection can be used again.

    Raises ``ConnectionError`` when the client is gone.
    """
    if reply.shape == "drop":
        return False
    if reply.shape == "mute":
        await _hold(reply)
    if reply.shape in ("status", "verbatim"):
        body = dialect.error(reply) if reply.shape == "status" else reply.body
        await _send(writer, whole(reply.status, body, reply.headers))
        return True
    if stream and not reply.whole:
        return await _as_stream(reply, dialect, number, writer, served)
    return await _as_object(reply, dialect, number, writer, served)


async def _as_stream(
    reply: Reply, dialect: Dialect, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    await _send(writer, head(200, {**STREAM, **reply.headers}))
    if reply.shape == "message":
        for event in dialect.events(reply, number):
            if reply.delay and event.delta:
                await asyncio.sleep(reply.delay)
            if event.counted:
                served(reply.usage or NO_USAGE)
            await _send(writer, sse_event(json.dumps(event.data), event.name))
    for line in reply.raw:
        await _send(writer, sse_event(line))
    if reply.end == "hold":
        await _hold(reply)
    if reply.end == "cut":
        await _send(writer, b"400\r\ndata: {")
        return False
    done = sse_event(dialect.done) if dialect.done and reply.end == "done" else b""
    await _send(writer, done + LAST_CHUNK)
    return True


async def _as_object(
    reply: Reply, dialect: Dialect, number: int, writer: asyncio.StreamWriter, served: Served
) -> bool:
    await asyncio.sleep(reply.delay)
    if reply.shape == "empty":
        await _send(writer, whole(200, ""))
        return True
    response = whole(200, "".join(reply.raw) or dialect.whole(reply, number), reply.headers)
    if reply.end in ("cut", "hold"):
        await _send(writer, response[: response.index(b"\r\n\r\n") + 5])
        if reply.end == "hold":
            await _hold(reply)
        return False
    served(replies.served_usage(reply) or NO_USAGE)
    await _send(writer, response)
    return True


async def _hold(reply: Reply) -> None:
    """Stay silent until the client disconnects or the server is closed; both cancel this."""
    if reply.on_hold is not None:
        await asyncio.to_thread(reply.on_hold)
    await asyncio.Event().wait()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


EXHAUSTED = "the script of this server is used up: the client sent more requests than the test foresaw"

CHAT = ChatDialect()
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": ResponsesDialect(),
    "/v1/messages": MessagesDialect(),
}
"""The dialect at each path, whatever its prefix."""


def _plain_path(path: str) -> str:
    """Return the path without the prefix that distinguishes clients."""
    _, version, rest = path.rpartition("/v1/")
    return version + rest


class ScriptedServer:
    """Serves the same script on every wire: chat completions at ``<url>/chat/completions``, responses at
    ``<url>/responses``, Anthropic's messages at ``<url>/messages``; a stream if the body asks for one, else a
    JSON object.

    The script is consumed in order. When it is exhausted, the server answers 500 and records the request in
    ``overrun``. Requests for the model list at ``<url>/models`` are not counted. The server runs in its own
    thread and never prints. The request paths distinguish clients that have their own addresses (``at``).

    ``requests``: those received. ``cut_off``: requests of clients that disconnected before they were
    complete. ``served_usage``: the tokens of all replies served to their end. ``closed_early``: how many
    clients disconnected during a reply. ``errors``: exceptions raised by hooks and callable entries."""

    def __init__(
        self,
        script: Iterable[Any] | Repeat | Reply | Callable[[Received], Any] = (),
        *,
        models: Sequence[str] = ("scripted",),
    ) -> None:
        self.requests: list[Received] = []
        self.overrun: list[Received] = []
        self.cut_off: list[Received] = []
        self.errors: list[Exception] = []
        self.closed_early = 0
        self.served_usage: Usage = NO_USAGE
        self.port = 0
        self._script = ReplyScript(entries_of(script))
        self._models = tuple(models)
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL for a client; it ends in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def at(self, name: str) -> str:
        """Return another base URL, for one of several clients. ``name`` may contain slashes."""
        return f"http://127.0.0.1:{self.port}/{name}/v1"

    @property
    def completions(self) -> int:
        """The number of completions requested."""
        return len(self.requests)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The JSON bodies of the requests."""
        return [request.body for request in self.requests]

    def start(self) -> Self:
        """Serve until ``close``. Raises ``OSError`` if no port can be opened."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener)), name="scripted-server", daemon=True
        )
        self._thread.start()
        self._ready.wait(10)
        return self

    def close(self) -> None:
        """Close every connection and wait for the thread. Idempotent."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self, listener: socket.socket) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda *_: None)
        server = await asyncio.start_server(self._converse, sock=listener, limit=2**24)
        self._ready.set()
        await self._stop.wait()
        # Stop accepting, but give a client that has just connected a handler: asyncio forgets the socket of a
        # client whose server is closed between the two.
        self._loop.remove_reader(listener)
        for _ in range(5):  # lets disconnects that have already happened be noticed
            await asyncio.sleep(0)
        server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await asyncio.sleep(0)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        # asyncio does this only for sockets that name their protocol; without it small chunks wait 40 ms for
        # an ACK
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = b""
        try:
            while (request := await read_request(reader, first, time.time())) is not None:
                if request.cut_off:
                    self.cut_off.append(request)
                    break
                reply = await self._choose(request)
                over, first = await self._reply(reply, request, reader, writer)
                if over:
                    break
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            self.closed_early += 1
        finally:
            writer.transport.abort()

    def _count(self, usage: Usage) -> None:
        self.served_usage += usage

    async def _choose(self, request: Received) -> Reply:
        """Return the next entry of the script, for a completion; hooks run in a worker thread."""
        if request.method == "GET" and _plain_path(request.path) == "/v1/models":
            listed = [{"id": name, "object": "model"} for name in self._models]
            return Reply(shape="verbatim", body={"object": "list", "data": listed})
        if request.method != "POST" or _plain_path(request.path) not in DIALECTS:
            return status(404, {"error": {"message": f"no such path: {request.path}", "type": "scripted"}})
        self.requests.append(request)
        try:
            reply = await asyncio.to_thread(self._script.take, request)
            if reply is None:
                self.overrun.append(request)
                return status(
                    500, {"error": {"message": EXHAUSTED, "type": "scripted", "code": "script_exhausted"}}
                )
            if not isinstance(reply, Reply):
                raise TypeError(f"a script serves replies, not {type(reply).__name__}")
            if reply.on_request is not None:
                await asyncio.to_thread(reply.on_request, request)
        except Exception as error:
            self.errors.append(error)
            return status(500, {"error": {"message": f"the script raised {error!r}", "type": "scripted"}})
        return reply

    async def _reply(
        self, reply: Reply, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[bool, bytes]:
        """Answer, and watch for a client that disconnects meanwhile. Return (connection over, extra bytes
        read)."""
        dialect, stream = DIALECTS.get(_plain_path(request.path), CHAT), bool(request.body.get("stream"))
        talk = asyncio.ensure_future(answer(reply, dialect, stream, len(self.requests), writer, self._count))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({talk, watch}, return_when=asyncio.FIRST_COMPLETED)
            extra = watch.result() if watch.done() else b""
            if not talk.done() and not extra:
                self.closed_early += 1
                return True, b""
            keep = await talk
            return not keep or (watch.done() and not extra), extra
        finally:
            for task in (talk, watch):
                task.cancel()
            await asyncio.gather(talk, watch, return_exceptions=True)
