"""A server that counts its connections, with TLS or without, and says that it keeps them."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fsm_agent.providers.sdk_port import tls

CERTIFICATE = Path(__file__).parents[1] / "data/localhost.pem"
REPLY = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"ok"}}]}'


class Keeper:
    """It promises to keep its connections. ``breaks``: it closes each one after a reply all the same.
    ``mute_after``: from this request on it closes a connection instead of answering. ``connections``: how many were
    made, ``requests`` how many came in, ``cookies`` those that came along, ``closed`` is set when one has ended."""

    def __init__(self, *, secure: bool, breaks: bool = False, mute_after: int = 1_000) -> None:
        self.connections = self.requests = 0
        self.cookies: list[str] = []
        self.closed = threading.Event()
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                keeper.connections += 1

            def do_POST(self) -> None:
                keeper.requests += 1
                keeper.cookies += self.headers.get_all("Cookie", [])
                self.rfile.read(int(self.headers["Content-Length"]))
                if keeper.requests > mute_after:
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(REPLY)))
                self.send_header("Connection", "keep-alive")
                self.send_header("Set-Cookie", "who=client; Path=/")
                self.end_headers()
                self.wfile.write(REPLY)
                self.close_connection = breaks

            def finish(self) -> None:
                super().finish()
                self.connection.close()
                keeper.closed.set()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "https" if secure else "http"
        if secure:
            tls().load_verify_locations(CERTIFICATE)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_port}/v1"

    @contextmanager
    def serving(self) -> Iterator[Keeper]:
        serve = {"poll_interval": 0.01}
        threading.Thread(target=self._server.serve_forever, kwargs=serve, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
