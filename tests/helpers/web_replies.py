"""A real HTTP server on loopback that answers at any path, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request. ``headers`` have lower-case names."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class WebReplies:
    """Answers with these (status, kind, body), the last one for ever; ``asked`` is what came."""

    def __init__(self, *replies: tuple[int, str, bytes]) -> None:
        self.asked: list[Asked] = []
        asked, left = self.asked, list(replies)

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked.append(Asked(self.path, headers, self.rfile.read(int(headers["content-length"]))))
                status, kind, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
