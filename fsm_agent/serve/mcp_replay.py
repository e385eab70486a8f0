"""The last messages of an MCP server over HTTP, so that a client whose stream broke gets the rest."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage

MOST = 10_000
"""Messages that are kept, of all streams together."""
MOST_BYTES = 64_000_000
"""Bytes of them."""


class RecentMessages(EventStore):
    """Keeps messages in memory. An id says nothing of others: it cannot be guessed."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: OrderedDict[EventId, tuple[StreamId, JSONRPCMessage | None, int]] = OrderedDict()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep a message; its id."""
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
        """Send what came on a stream behind the message with this id; the stream."""
        if last_event_id not in self._kept:
            return None
        stream = self._kept[last_event_id][0]
        rows = list(self._kept.items())
        behind = [event_id for event_id, _ in rows].index(last_event_id) + 1
        for event_id, (of, message, _) in rows[behind:]:
            if of == stream and message is not None:
                await send_callback(EventMessage(message, event_id))
        return stream
