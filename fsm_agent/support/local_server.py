"""Servers on this machine: where they listen, what they check before they read a request, and the headers of
all their responses.

By default a server listens on a port of 127.0.0.1, which no other machine reaches, or on a socket in the file
system, which no other user can open. Still, a page of another site can make the browser send requests here,
and can make its own host name resolve to 127.0.0.1 (DNS rebinding). Against both, ``Host`` is checked, and so
is the origin of the request as the browser states it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fsm_agent.errors import ConfigError

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Message, Send

LOOPBACK = "127.0.0.1"
SAFE_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def bind_loopback(port: int) -> socket.socket:
    """Return a socket bound to a port of 127.0.0.1, 0 for any free one. Raises ``ConfigError`` if the port
    cannot be used."""
    return bind_port(LOOPBACK, port)


def bind_port(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port of an address of this machine, 0 for any free one. Raises
    ``ConfigError`` if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # without it, asyncio leaves Nagle's delay on
    if os.name == "posix":  # elsewhere two processes could share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"the port cannot be used ({error})", port, "a free port, or 0 for any") from None
    return listener


def bind_socket(path: Path) -> socket.socket:
    """Return a socket bound to ``path`` that only our user can connect to. A stale socket is replaced. Raises
    ``ConfigError`` if the path cannot be used."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no sockets in its file system", str(path), "a port")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens: until then no client can connect
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the socket cannot be used ({error.strerror or error})", str(path), "a path that is free"
        ) from None
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def own_hosts(port: int) -> frozenset[str]:
    """Return the ``Host`` values of requests to a port of this machine."""
    return frozenset((f"127.0.0.1:{port}", f"localhost:{port}"))


def own_origins(port: int) -> frozenset[str]:
    """Return the ``Origin`` values of requests from pages that a port of this machine served."""
    return frozenset(f"http://{host}" for host in own_hosts(port))


def is_of_other_site(headers: Headers) -> bool:
    """Return whether a browser sends the request on behalf of a page of another site."""
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def is_of_other_origin(headers: Headers, origins: Collection[str]) -> bool:
    """Return whether the request comes from a page of another origin. A program sends no ``Origin``."""
    return headers.get("origin") not in (None, *origins)


def is_same(given: str, secret: str) -> bool:
    """Compare with a secret in constant time."""
    return secrets.compare_digest(given.encode(), secret.encode())


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a ``send`` that adds those headers that a response lacks."""

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
