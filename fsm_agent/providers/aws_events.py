"""Events of a stream in Amazon's own form. Loaded with the first of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from botocore.eventstream import EventStreamBuffer, ParserError

from fsm_agent.conversation.nesting import json_of
from fsm_agent.providers.bounded_body import BadBody
from fsm_agent.providers.reply_limits import EVENT_BYTES

PRELUDE = 12
"""Bytes of a frame's head: two lengths and a checksum."""


class AwsEvents:
    """Finds the events in a stream of Amazon's own form: each is JSON in base64 in a binary frame, which
    begins with its length; an error is a frame of another kind."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; yield the data of the events that are whole with them. Raises ``BadBody``."""
        self._rest += piece
        while len(self._rest) >= PRELUDE:
            size = int.from_bytes(self._rest[:4])
            if not PRELUDE < size <= EVENT_BYTES:
                raise BadBody(f"it sent an event of {size:,} bytes, which nobody means")
            if len(self._rest) < size:
                return
            frame = bytes(self._rest[:size])
            del self._rest[:size]
            if data := _data_of(frame):
                yield data


def _data_of(frame: bytes) -> str:
    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    try:
        event = next(buffer)
        told: Any = json_of(event.payload.decode() or "{}")
        if event.headers.get(":message-type") == "event":
            return base64.b64decode(told.get("bytes") or "").decode()
    except (ParserError, StopIteration, AttributeError, TypeError, ValueError) as error:
        raise BadBody(f"its answer is damaged: {error}") from None
    name = event.headers.get(":exception-type") or event.headers.get(":error-code") or "error"
    words = told.get("message") or event.headers.get(":error-message") or ""
    return json.dumps({"type": "error", "error": {"type": name, "message": words}})
