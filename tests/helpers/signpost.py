"""A web server that sends everybody elsewhere, and remembers every request of any kind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: str
    body: bytes


class Signpost:
    """Answers with ``status`` and, if given, ``location``; ``{here}`` in it is the server's own address."""

    def __init__(self, location: str | None = None, status: int = 404) -> None:
        self.requests: list[Asked] = []
        signpost = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                signpost.requests.append(Asked(self.command, self.path, str(self.headers), body))
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location.format(here=signpost.url()))
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = answer

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
