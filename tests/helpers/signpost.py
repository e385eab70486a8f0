"""A web server that sends everybody elsewhere, and remembers every request of any kind."""

from __future__ import annotations

from typing import NamedTuple

from tests.helpers.http_server import Answer, Asked, HttpServer


class Sent(NamedTuple):
    method: str
    path: str
    headers: str
    body: bytes


class Signpost(HttpServer):
    """Answers with ``status`` and, if given, ``location``; ``{here}`` in it is the server's own address."""

    def __init__(self, location: str | None = None, status: int = 404) -> None:
        self.requests: list[Sent] = []

        def answer(asked: Asked) -> Answer:
            self.requests.append(Sent(asked.method, asked.path, asked.said, asked.raw))
            place = {} if location is None else {"Location": location.format(here=self.root)}
            return Answer(status, headers=place)

        super().__init__(answer)

    def url(self, path: str = "") -> str:
        return f"{self.root}{path}"
