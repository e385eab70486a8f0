"""What servers of this machine check before they read a request, and the headers of all that they answer.

A page of another site can make the browser send requests here, and a name of its own can be made to mean
127.0.0.1 (DNS rebinding). Against both: ``Host`` is compared, and so is where a browser says that a request
comes from."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Message, Send

SAFE_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def own_hosts(port: int) -> frozenset[str]:
    """Return what ``Host`` says in a request to a port of this machine."""
    return frozenset((f"127.0.0.1:{port}", f"localhost:{port}"))


def own_origins(port: int) -> frozenset[str]:
    """Return what ``Origin`` says in a request of a page that a port of this machine served."""
    return frozenset(f"http://{host}" for host in own_hosts(port))


def is_of_other_site(headers: Headers) -> bool:
    """Say whether a browser sends the request for a page of another site."""
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def is_of_other_origin(headers: Headers, origins: Collection[str]) -> bool:
    """Say whether a page of another origin than these sends the request. A program has no page and none."""
    return headers.get("origin") not in (None, *origins)


def is_same(given: str, secret: str) -> bool:
    """Compare with a secret, in a time that says nothing about it."""
    return secrets.compare_digest(given.encode(), secret.encode())


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a ``send`` that adds the headers that an answer has not."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            extra = [
                (name.encode(), value.encode())
                for name, value in headers.items()
                if name.encode() not in known
            ]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending
