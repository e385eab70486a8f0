"""Who may be the editor of a server that anybody on this machine can connect to: the first that shows the
token in its configuration, or the first at all behind a socket file that only our user can open.

Until one is let in, every connection is heard on a thread of its own and for a limited time, so that a slow
one keeps nobody out; none of them can do anything but say who it is."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.debug.dap.protocol import ByteReader, ByteWriter, NotTheProtocol, read_message
from fsm_agent.errors import ConfigError

log = logging.getLogger(__name__)
FIRST_WORDS = 10.0
"""Seconds in which who connects must have been let in."""
MOST = 32
"""Connections that are heard at once; with one more the oldest is closed."""
LOOK = 0.1
"""Seconds between two looks at whether somebody was let in."""
Admit = Callable[[Mapping[str, Any]], None]
Talk = Callable[[Mapping[str, Any], ByteReader, ByteWriter, Admit], None]
"""Serves an editor whose first message is given, until it leaves; it asks to be let in with the arguments of
its launch or attach request."""


class Door:
    """Of one socket that listens. ``token`` is empty where none is needed; ``where`` is ``127.0.0.1:4711`` or
    a path."""

    def __init__(self, listening: socket.socket, talk: Talk) -> None:
        name = listening.getsockname()
        self.where = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
        self.token = "" if isinstance(name, str) else secrets.token_urlsafe(24)
        self._listening, self._talk = listening, talk
        self._inside, self._left = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[socket.socket] = []

    def serve(self) -> None:
        """Until the one editor that was let in has left."""
        self._listening.settimeout(LOOK)
        while not self._inside.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listening.accept()
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()
        self._listening.close()  # nobody else, from now on
        self._left.wait()

    def _hear(self, connection: socket.socket) -> None:
        limit = threading.Timer(FIRST_WORDS, _close, (connection,))
        limit.daemon = True
        limit.start()
        connection.setblocking(True)
        with self._lock:
            self._waiting.append(connection)
            if self._inside.is_set() or len(self._waiting) > MOST:
                _close(self._waiting.pop(0))
        mine = threading.Event()

        def admit(arguments: Mapping[str, Any]) -> None:
            self._admit(arguments, connection)
            limit.cancel()
            mine.set()

        try:
            with connection, connection.makefile("rb", 0) as reading, connection.makefile("wb") as writing:
                self._told(reading, writing, admit)
                _close(connection)
        finally:
            limit.cancel()
            with self._lock:
                self._waiting = [one for one in self._waiting if one is not connection]
            if mine.is_set():
                self._left.set()

    def _told(self, reading: ByteReader, writing: ByteWriter, admit: Admit) -> None:
        """One that begins with anything but the protocol, as a browser would, is turned away unheard."""
        try:
            message = read_message(reading)
        except (NotTheProtocol, OSError) as error:
            log.warning("a connection that does not speak the Debug Adapter Protocol was closed: %s", error)
            return
        if message is not None and message.get("command") == "initialize":
            self._talk(message, reading, writing, admit)

    def _admit(self, arguments: Mapping[str, Any], connection: socket.socket) -> None:
        """Raises ``ConfigError``."""
        given = arguments.get("token")
        if self.token and not (
            isinstance(given, str) and hmac.compare_digest(given.encode(), self.token.encode())
        ):
            raise ConfigError(
                "the token is missing or wrong",
                None,
                'the one that was printed, as "token" in the configuration',
            )
        with self._lock:
            if self._inside.is_set():
                raise ConfigError("another editor has been let in", None, "one editor for each server")
            self._inside.set()
            for other in self._waiting:
                if other is not connection:
                    _close(other)
            self._waiting.clear()


def _close(connection: socket.socket) -> None:
    """Also while another thread reads from it."""
    with contextlib.suppress(OSError):  # it is closed at the other end
        connection.shutdown(socket.SHUT_RDWR)
