"""A real HTTP server on loopback that answers at any path, and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.helpers.http_server import Answer, Asked, HttpServer


class WebReplies(HttpServer):
    """Answers with these (status, kind, body), repeating the last; ``asked`` holds the requests."""

    def __init__(self, *replies: tuple[int, str, bytes]) -> None:
        self.asked: list[Asked] = []
        left = list(replies)

        def answer(asked: Asked) -> Answer:
            self.asked.append(asked)
            status, kind, body = left.pop(0) if len(left) > 1 else left[0]
            return Answer(status, body, kind)

        super().__init__(answer)

    @property
    def url(self) -> str:
        return self.root


def events(kind: str, *told: Mapping[str, Any]) -> tuple[int, str, bytes]:
    """A stream of events (SSE); ``kind``: whether each has its name."""
    lines = [
        (f"event: {one['type']}\n" if kind == "named" else "") + f"data: {json.dumps(one)}\n\n"
        for one in told
    ]
    return 200, "text/event-stream", "".join(lines).encode()


def objects(*told: Mapping[str, Any]) -> Sequence[tuple[int, str, bytes]]:
    """Whole replies, one after the other."""
    return [(200, "application/json", json.dumps(one).encode()) for one in told]
