"""Taking an editor's connection: over standard input and output, or on a port of this machine.

The protocol knows no passwords. So standard input and output are the better way: only who started the process
talks to it. On a port, only this machine is listened to, only one editor is ever served, and whoever begins
with anything but the protocol, as a browser would, is turned away unheard. (Why: decision 78.)"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.loopback import bound
from fsm_agent.debug.dap.options import Opener
from fsm_agent.debug.dap.protocol import (
    ByteReader,
    ByteWriter,
    NotTheProtocol,
    Write,
    read_message,
    write_message,
)
from fsm_agent.debug.dap.session import EditorSession
from fsm_agent.errors import ConfigError

log = logging.getLogger(__name__)
FIRST_WORDS = 5.0
"""Seconds in which who connects must begin the protocol."""


def talk(
    reading: ByteReader, writing: ByteWriter, session: DebugSession, first: str | None, opener: Opener,
    secrets: Sequence[str] = (),
) -> None:  # fmt: skip
    """Serve one editor over two streams, until it leaves. ``session`` are the turns that it may see,
    ``first`` the one to begin with, ``secrets`` never leave for it. Raises ``NotTheProtocol`` when the first
    message is none."""
    message = read_message(reading)
    if message is not None:
        _serve(message, reading, EditorSession(_writer(writing), session, first, opener, secrets))


def serve_stdio(session: DebugSession, first: str | None, opener: Opener, secrets: Sequence[str] = ()) -> int:
    """Serve one editor over standard input and output; 0. Whatever else writes to standard output comes out
    on standard error, and nothing else reads the input: a tool, or a process that it starts, cannot break the
    protocol."""
    reading, writing = _own_streams()
    try:
        talk(reading, writing, session, first, opener, secrets)
    except NotTheProtocol as error:
        raise ConfigError(
            "what came on standard input is not the Debug Adapter Protocol", str(error), "an editor"
        ) from None
    return 0


def serve_port(
    session: DebugSession, first: str | None, opener: Opener, port: int, secrets: Sequence[str] = (),
    ready: Callable[[int], None] = lambda port: None,
) -> int:  # fmt: skip
    """Serve one editor on a port of this machine, 0 for any that is free; ``ready`` is told which. Raises
    ``ConfigError`` for a port that cannot be listened on."""
    with bound(port) as listening:
        listening.listen(1)
        ready(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            if _serve_one(
                connection, listening, lambda write: EditorSession(write, session, first, opener, secrets)
            ):
                return 0


def _serve_one(
    connection: socket.socket, listening: socket.socket, begin: Callable[[Write], EditorSession]
) -> bool:
    """Was it an editor?"""
    with connection, connection.makefile("rb", 0) as reading, connection.makefile("wb") as writing:
        connection.settimeout(FIRST_WORDS)
        try:
            message = read_message(reading)
        except (NotTheProtocol, OSError) as error:
            log.warning("a connection that does not speak the Debug Adapter Protocol was closed: %s", error)
            return False
        if message is None or message.get("command") != "initialize":
            return False
        listening.close()  # nobody else, from now on
        connection.settimeout(None)
        try:
            _serve(message, reading, begin(_writer(writing)))
        finally:
            with contextlib.suppress(OSError):  # it is closed at the other end
                connection.shutdown(socket.SHUT_RDWR)
    return True


def _serve(message: dict[str, object], reading: ByteReader, editor: EditorSession) -> None:
    editor.take(message)
    threading.Thread(target=_read, args=(reading, editor), daemon=True, name="fsm-agent-editor").start()
    editor.run()


def _read(reading: ByteReader, editor: EditorSession) -> None:
    try:
        while (message := read_message(reading)) is not None:
            editor.take(message)
    except (NotTheProtocol, OSError, ValueError) as error:
        log.warning("the editor's connection broke: %s", error)
    finally:
        editor.close()


def _writer(writing: ByteWriter) -> Write:
    gone = False

    def write(message: Mapping[str, Any]) -> None:
        nonlocal gone
        if gone:
            return
        try:
            write_message(writing, message)
        except (OSError, ValueError):  # the reader ends the session
            gone = True

    return write


def _own_streams() -> tuple[ByteReader, ByteWriter]:
    """The process's input and output for ourselves; others get an empty input, and standard error as their
    output. They stay open until the process ends: somebody still waits for input then."""
    sys.stdout.flush()
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb")
