"""An MCP server over standard input and output, with limits on what the client may send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic_core import from_json

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.dispatch.service import SessionService
from fsm_agent.errors import ConfigError
from fsm_agent.serve.mcp import AgentServer
from fsm_agent.serve.web import MOST_BODY
from fsm_agent.support.threads import connect_own_streams, send
from fsm_agent.toolsets.memory import SkillShelf

_CHUNK = 65_536
TOO_LONG = f"a message has at most {MOST_BODY:,} bytes"

Incoming = SessionMessage | Exception


class BoundedLines:
    """Lines out of pieces; one of more than ``most`` bytes comes as ``None``, and none of it is kept."""

    def __init__(self, most: int = MOST_BODY) -> None:
        self._most, self._held, self._skips = most, bytearray(), False

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """Return the lines that this piece completes."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield from self._add(part)
            if not self._skips:
                yield bytes(self._held)
            self._held, self._skips = bytearray(), False
        yield from self._add(rest)

    def _add(self, part: bytes) -> Iterator[None]:
        if self._skips:
            return
        self._held += part
        if len(self._held) > self._most:
            self._held, self._skips = bytearray(), True
            yield None


def read_message(line: bytes | None) -> SessionMessage | JSONRPCError | None:
    """Return the message of a line, the answer to an invalid one, or ``None`` for an empty line."""
    if line is None:
        return _refusal(INVALID_REQUEST, TOO_LONG)
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:
        from_json(line)
    except ValueError:
        return _refusal(PARSE_ERROR, "Parse error")
    return _refusal(INVALID_REQUEST, "Invalid request")


def _refusal(code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))


async def serve_stdio(
    service: SessionService, tools: Mapping[str, ToolSpec], shelf: SkillShelf | None
) -> None:
    """Serve one client until it closes its end. Turns that run then stop after their next move, and the next
    server of this home continues them. Raises ``ConfigError`` when there is no client at the other end."""
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
    lines = BoundedLines()
    async with to_server:
        while piece := await reader.read(_CHUNK):
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
    except ConnectionError:  # the client closed its end, which its input says as well
        return


def _line(message: object) -> bytes:
    assert hasattr(message, "model_dump_json")
    text: str = message.model_dump_json(by_alias=True, exclude_unset=True)
    return text.encode() + b"\n"
