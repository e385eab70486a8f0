"""Taking an editor's connection: over standard input and output, at a socket of the file system, or on a port
of this machine.

Standard input and output are the better way: only who started the process talks to it. A socket is a file
that only our user can open; a port needs a token (``door``). One editor is served. (Why: decision 78.)"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.loopback import bound, bound_at
from fsm_agent.debug.dap.door import MOST, Admit, Door
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
from fsm_agent.support.own_streams import own_streams

log = logging.getLogger(__name__)


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
    reading, writing = own_streams()
    try:
        talk(reading, writing, session, first, opener, secrets)
    except NotTheProtocol as error:
        raise ConfigError(
            "what came on standard input is not the Debug Adapter Protocol", str(error), "an editor"
        ) from None
    return 0


def serve_port(
    session: DebugSession, first: str | None, opener: Opener, at: int | Path, secrets: Sequence[str] = (),
    ready: Callable[[str, str], None] = lambda where, token: None,
) -> int:  # fmt: skip
    """Serve one editor on a port of this machine, 0 for any that is free, or at a path; 0. ``ready`` is told
    where, and the token that an editor on a port must show. Raises ``ConfigError`` for a place that cannot be
    listened at."""

    def talk(message: Mapping[str, Any], reading: ByteReader, writing: ByteWriter, admit: Admit) -> None:
        hidden = [*secrets, *([door.token] if door.token else [])]
        _serve(message, reading, EditorSession(_writer(writing), session, first, opener, hidden, admit))

    with bound(at) if isinstance(at, int) else bound_at(at) as listening:
        listening.listen(MOST)
        door = Door(listening, talk)
        ready(door.where, door.token)
        try:
            door.serve()
        finally:
            if isinstance(at, Path):
                at.unlink(missing_ok=True)
    return 0


def _serve(message: Mapping[str, Any], reading: ByteReader, editor: EditorSession) -> None:
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
