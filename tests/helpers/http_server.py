"""An HTTP server on a free port of this machine that answers as a function says, in a thread."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
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
    """``kind`` is its Content-Type. After a ``stream`` the connection is closed."""

    status: int = 200
    body: bytes = b""
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[], Iterator[bytes]] | None = None


class HttpServer:
    """Used as a context. Connections are kept open, as HTTP/1.1 has it. ``certificate``: a file that holds
    key and certificate, for TLS."""

    def __init__(self, answer: Callable[[Asked], Answer], certificate: str | None = None) -> None:
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
                if made.stream is None:
                    self.send_header("Content-Length", str(len(made.body)))
                else:
                    self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for piece in made.stream() if made.stream else [made.body]:
                        self.wfile.write(piece)
                except OSError:
                    self.close_connection = True  # the reader had enough

            do_GET = do_POST = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = any

            def log_message(self, format: str, *args: object) -> None:
                """Tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.root = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
