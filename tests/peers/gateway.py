"""A gateway in front of a model server that knows no streams: a stream is refused, anything else is passed
on."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

REFUSAL = {"error": {"message": "streaming is not supported here", "type": "invalid_request_error"}}


class WholeRepliesOnly:
    """``streams``: of each request, in order, whether it asked for a stream."""

    def __init__(self, behind: str) -> None:
        self.streams: list[bool] = []
        streams, opener = self.streams, urllib.request.build_opener(urllib.request.ProxyHandler({}))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                streams.append(bool(json.loads(body).get("stream")))
                if streams[-1]:
                    self._answer(400, json.dumps(REFUSAL).encode())
                    return
                request = urllib.request.Request(
                    behind + self.path, body, {"Content-Type": "application/json"}
                )
                try:
                    with opener.open(request, timeout=60) as response:
                        self._answer(response.status, response.read())
                except urllib.error.HTTPError as refused:
                    with refused:
                        self._answer(refused.code, refused.read())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
