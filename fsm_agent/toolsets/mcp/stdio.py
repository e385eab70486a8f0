"""The protocol over a process's standard input and output.

The SDK's own transport does the same without limits: a line without an end grows for ever, each line that is
no message writes a traceback to this program's log, and nobody learns the process or why it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from fsm_agent.support.pipes import sent
from fsm_agent.toolsets.mcp.lines import Flood, LineReader, Misbehaved
from fsm_agent.toolsets.mcp.log import ServerLog
from fsm_agent.toolsets.mcp.lost import ConnectionEnding
from fsm_agent.toolsets.mcp.process import Launch, started, status_of

log = logging.getLogger(__name__)

_CHUNK = 65_536
MOMENT, _LOOK = 1.0, 0.01
"""Seconds: how long a process may outlive its output, because on a busy machine its end is not known at
once; and the time between two looks."""
_SHOWN = 200
"""Bytes of a line that is no message, as they are logged."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio(
    launch: Launch, server_log: ServerLog, most: int, ending: ConnectionEnding
) -> AsyncIterator[Streams]:
    """The streams of a session with a new process. ``most``: bytes of one message. When the process ends or
    misbehaves, ``ending`` is told why and the streams end. Raises ``OSError`` when it cannot be started."""
    server = await started(launch)
    process = server.process
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            _carry(tasks, process, server_log, most, ending, to_session, from_session)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await server.end(polite=ending.wanted)
                tasks.cancel_scope.cancel()
    finally:
        for stream in (to_session, incoming, outgoing, from_session):
            stream.close()


def _carry(
    tasks: TaskGroup,
    process: asyncio.subprocess.Process,
    server_log: ServerLog,
    most: int,
    ending: ConnectionEnding,
    to_session: MemoryObjectSendStream[Incoming],
    from_session: MemoryObjectReceiveStream[SessionMessage],
) -> None:
    """Start what moves bytes between the pipes and the streams."""
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    tasks.start_soon(_listen, process.stderr, server_log)
    tasks.start_soon(_read, process, process.stdout, server_log, most, ending, to_session)
    tasks.start_soon(_write, process.stdin, from_session)


async def _read(
    process: asyncio.subprocess.Process,
    pipe: asyncio.StreamReader,
    server_log: ServerLog,
    most: int,
    ending: ConnectionEnding,
    to_session: MemoryObjectSendStream[Incoming],
) -> None:
    lines, flood = LineReader(most), Flood()
    try:
        async with to_session:
            while piece := await pipe.read(_CHUNK):
                for line in lines.feed(piece):
                    if (message := _message(line, flood, server_log)) is not None:
                        await to_session.send(message)
            ending.told(await _why(process, server_log))
    except Misbehaved as error:
        ending.told(str(error))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        ending.told("the connection was closed")


def _message(line: bytes, flood: Flood, server_log: ServerLog) -> SessionMessage | None:
    """The message of a line, or ``None`` for one that holds none: it is logged, and the next one may."""
    if not line.strip():
        flood.noise(len(line))
        return None
    try:
        message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        flood.noise(len(line))
        server_log.say(f"(no message) {line[:_SHOWN].decode('utf-8', 'replace')}")
        return None
    flood.message()
    return message


async def _why(process: asyncio.subprocess.Process, server_log: ServerLog) -> str:
    """What is known of an end that came from the other side."""
    for _ in range(round(MOMENT / _LOOK)):  # the pipe ends a moment before the process is known to have ended
        if process.returncode is not None:
            break
        await anyio.sleep(_LOOK)
    for _ in range(5):  # rounds of the event loop: its last words have come, but may not be read yet
        await anyio.lowlevel.checkpoint()
    code = process.returncode
    how = "the process closed its output" if code is None else f"the process ended with {status_of(code)}"
    return f"{how}: {words}" if (words := server_log.last_words) else how


async def _write(pipe: asyncio.StreamWriter, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """A server that does not read makes the sender wait, whose own time limit ends that."""
    try:
        async with from_session:
            async for item in from_session:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await sent(pipe, text.encode() + b"\n")
    except (anyio.ClosedResourceError, OSError):
        log.debug("a server's standard input was closed")


async def _listen(pipe: asyncio.StreamReader, server_log: ServerLog) -> None:
    while piece := await pipe.read(_CHUNK):
        server_log.feed(piece)
