"""The one place from which a face is served to other processes: a port of this machine, which no other
machine reaches."""

from __future__ import annotations

import os
import socket

from fsm_agent.errors import ConfigError

LOOPBACK = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """Return a socket bound to a port of 127.0.0.1, 0 for any free one. Raises ``ConfigError`` for one that
    cannot be used."""
    made = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, or asyncio leaves Nagle's delay on
    if os.name == "posix":  # elsewhere it would let two processes have the same port
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise ConfigError(f"the port cannot be used ({error})", port, "a free port, or 0 for any") from None
    return made
