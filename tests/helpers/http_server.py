"""An HTTP server on a free port of this machine that answers as a function says, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request. ``headers`` have lower-case names; ``said`` are they as they came."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    said: str = ""

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True)
class Answer:
    """``kind`` is its Content-Type."""

    status: int = 200
    body: bytes = b""
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpServer:
    """Used as a context. Connections are kept open, as HTTP/1.1 has it."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def any(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                made = answer(Asked(self.command, self.path, headers, body, str(self.headers)))
                self.send_response(made.status)
                for name, value in ({"Content-Type": made.kind} if made.kind else {}).items():
                    self.send_header(name, value)
                for name, value in made.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(made.body)))
                self.end_headers()
                self.wfile.write(made.body)

            do_GET = do_POST = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = any

            def log_message(self, format: str, *args: object) -> None:
                """Tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.root = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
