"""A small web server for tests: pages by path, and what was asked for."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[], Iterator[bytes]] | None = None


def html(body: str, status: int = 200) -> Answer:
    return Answer(body.encode(), status, {"Content-Type": "text/html; charset=utf-8"})


def moved(to: str) -> Answer:
    return Answer(b"", 302, {"Location": to})


class Site:
    """``asked``: (path, Host header) of each request; ``cookies``: what came with them."""

    def __init__(self, pages: Mapping[str, Answer], certificate: str | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.cookies: list[str | None] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, self.headers["Host"]))
                site.cookies.append(self.headers["Cookie"])
                answer = pages.get(self.path, Answer(b"no such page", 404, {"Content-Type": "text/plain"}))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.stream is None:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                try:
                    for piece in answer.stream() if answer.stream else [answer.body]:
                        self.wfile.write(piece)
                except OSError:
                    self.close_connection = True  # the reader had enough

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def site(pages: Mapping[str, Answer], certificate: str | None = None) -> Iterator[Site]:
    """Served on a free port of this machine; over TLS with a file that holds key and certificate."""
    served = Site(pages, certificate)
    served.start()
    try:
        yield served
    finally:
        served.stop()
