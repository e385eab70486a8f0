"""A small web server for tests: pages by path, and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from tests.helpers.http_server import Answer, Asked, HttpServer


def html(body: str, status: int = 200) -> Answer:
    return Answer(status, body.encode(), "text/html; charset=utf-8")


def moved(to: str) -> Answer:
    return Answer(302, headers={"Location": to})


class Site(HttpServer):
    """``asked``: (path, Host header) of each request; ``cookies``: what came with them."""

    def __init__(self, pages: Mapping[str, Answer], certificate: str | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.cookies: list[str | None] = []

        def answer(asked: Asked) -> Answer:
            self.asked.append((asked.path, asked.headers["host"]))
            self.cookies.append(asked.headers.get("cookie"))
            return pages.get(asked.path, Answer(404, b"no such page", "text/plain"))

        super().__init__(answer, certificate)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"
