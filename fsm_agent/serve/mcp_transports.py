"""Transports of our MCP server: standard input and output, with limits on what a client may send, and
streamable HTTP, where a client whose stream broke receives the rest."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic_core import from_json
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.dispatch.service import Caller, SessionService
from fsm_agent.errors import ConfigError
from fsm_agent.serve.doors import Door
from fsm_agent.serve.mcp import AgentServer
from fsm_agent.serve.web import CALLER, MOST_BODY
from fsm_agent.support.threads import CHUNK, BoundedLines, connect_own_streams, send
from fsm_agent.toolsets.memory import SkillShelf

# Over standard input and output.


TOO_LONG = f"a message has at most {MOST_BODY:,} bytes"

Incoming = SessionMessage | Exception


def read_message(line: bytes | None) -> SessionMessage | JSONRPCError | None:
    """Parse a line: return its message, the response to an invalid one, or ``None`` for an empty line."""
    if line is None:
        return _refusal(INVALID_REQUEST, TOO_LONG)
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:
        given = from_json(line)
    except ValueError:
        return _refusal(PARSE_ERROR, "Parse error")
    asked = given.get("id") if isinstance(given, dict) and "method" in given else None
    known = asked if isinstance(asked, str) or type(asked) is int else None  # bool is an int, too
    return _refusal(INVALID_REQUEST, "Invalid request", known)


def _refusal(code: int, message: str, request: str | int | None = None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=message))


async def serve_stdio(
    service: SessionService, tools: Mapping[str, ToolSpec], shelf: SkillShelf | None
) -> None:
    """Serve one client until it closes its end. Running turns then stop after their next move, and the next
    server of this home continues them. Raises ``ConfigError`` if there is no client at the other end."""
    try:
        reader, writer = await connect_own_streams()
    except ValueError:
        raise ConfigError(
            "standard input and output lead to no client", None, "an MCP client that starts this command"
        ) from None
    to_server, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    async with service:
        server = AgentServer(service, tools, shelf)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, reader, writer, to_server, service)
            tasks.start_soon(_write, writer, from_server)
            await server.run(incoming, outgoing, server.create_initialization_options())
            tasks.cancel_scope.cancel()


async def _read(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    to_server: MemoryObjectSendStream[Incoming],
    service: SessionService,
) -> None:
    lines = BoundedLines(MOST_BODY)
    async with to_server:
        while piece := await reader.read(CHUNK):
            for line in lines.feed(piece):
                match read_message(line):
                    case SessionMessage() as message:
                        await to_server.send(message)
                    case JSONRPCError() as refusal:
                        await send(writer, _line(refusal))
        service.leave()


async def _write(
    writer: asyncio.StreamWriter, from_server: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    try:
        async for item in from_server:
            await send(writer, _line(item.message))
    except ConnectionError:  # the client closed its end, which also ends its input
        return


def _line(message: object) -> bytes:
    assert hasattr(message, "model_dump_json")
    text: str = message.model_dump_json(by_alias=True, exclude_unset=True)
    return text.encode() + b"\n"


# Over HTTP.


PATH = "/mcp"
RETRY = 1_000
"""Milliseconds after which a client reconnects to a broken stream."""
LOOK = 0.5
"""Seconds after which an open stream notices that this process is ending."""
MOST = 10_000
"""Maximum messages to keep, over all streams."""
MOST_BYTES = 64_000_000
"""Their maximum bytes."""


class RecentMessages(EventStore):
    """Keeps recent messages in memory. Their ids are random: none can be guessed from another."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: OrderedDict[EventId, tuple[StreamId, JSONRPCMessage | None, int]] = OrderedDict()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep a message; return its id."""
        size = 0 if message is None else len(message.model_dump_json(by_alias=True))
        event_id = secrets.token_urlsafe(16)
        self._kept[event_id] = stream_id, message, size
        self._bytes += size
        while len(self._kept) > self._most or (self._bytes > self._most_bytes and len(self._kept) > 1):
            self._bytes -= self._kept.popitem(last=False)[1][2]
        return event_id

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send the later messages of the stream that has the message with this id; return the stream."""
        if last_event_id not in self._kept:
            return None
        stream = self._kept[last_event_id][0]
        rows = list(self._kept.items())
        behind = [event_id for event_id, _ in rows].index(last_event_id) + 1
        for event_id, (of, message, _) in rows[behind:]:
            if of == stream and message is not None:
                await send_callback(EventMessage(message, event_id))
        return stream


class McpDoor(Door):
    """Streamable HTTP behind the guard of the application, which has checked host, origin and key. ``tools``:
    those that clients may call directly. ``shelf``: skills."""

    name = "mcp"

    def __init__(self, tools: Mapping[str, ToolSpec] | None = None, shelf: SkillShelf | None = None) -> None:
        self._tools, self._shelf = tools, shelf

    def routes(self, service: SessionService) -> Sequence[Route]:
        self._service = service
        self._manager = StreamableHTTPSessionManager(
            AgentServer(service, self._tools, self._shelf),
            event_store=RecentMessages(),
            retry_interval=RETRY,
            max_request_body_size=MOST_BODY,
        )
        return [Route(PATH, self, methods=["GET", "POST", "DELETE"])]

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A session belongs to the key that began it."""
        caller = scope.get(CALLER)
        if isinstance(caller, Caller):
            token = AccessToken(token="", client_id=caller.id, scopes=[*caller.scopes])
            scope = {**scope, "user": AuthenticatedUser(token)}
        work = asyncio.ensure_future(self._manager.handle_request(scope, receive, send))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=LOOK)
                if self._service.leaving and scope["method"] == "GET":  # it would stay open
                    break
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if not work.cancelled():
            work.result()
