"""The places at which a face is served to other processes: a port of this machine, which no other machine
reaches, or a socket in the file system, which no other user opens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from fsm_agent.errors import ConfigError

LOOPBACK = "127.0.0.1"


def bind_loopback(port: int) -> socket.socket:
    """Return a socket bound to a port of 127.0.0.1, 0 for any free one. Raises ``ConfigError`` for one that
    cannot be used."""
    return bind_port(LOOPBACK, port)


def bind_port(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port of an address of this machine, 0 for any free one. Raises
    ``ConfigError`` for one that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, or asyncio leaves Nagle's delay on
    if os.name == "posix":  # elsewhere it would let two processes have the same port
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise ConfigError(f"the port cannot be used ({error})", port, "a free port, or 0 for any") from None
    return made


def bind_socket(path: Path) -> socket.socket:
    """Return a socket bound to ``path`` that only our user can connect to. One that a process left behind is
    replaced. Raises ``ConfigError`` for a path that cannot be used."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no sockets in its file system", str(path), "a port")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        made.bind(str(path))
        path.chmod(0o600)  # before it listens: until then no client can connect
    except OSError as error:
        made.close()
        raise ConfigError(
            f"the socket cannot be used ({error.strerror or error})", str(path), "a path that is free"
        ) from None
    return made


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
