"""The boundary of the protocol: message framing, the editor's line numbers and paths, and outgoing messages.

A message is a header ``Content-Length: n``, an empty line, n bytes of JSON. Parsing is strict on purpose:
a browser tricked into posting to the port sends other headers first and is rejected before its content is
read.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact, mask_json

LARGEST = 16 * 1024 * 1024
"""Maximum bytes of one message."""
_HEADER = 256
"""Maximum bytes of one header line."""


class ByteReader(Protocol):
    """An unbuffered byte stream that can be closed while a reader waits."""

    def readline(self, size: int = -1, /) -> bytes:
        """Read up to the end of a line."""
        ...

    def read(self, size: int = -1, /) -> bytes | None:
        """Read exactly this number of bytes."""
        ...


class ByteWriter(Protocol):
    """A buffered stream of bytes to write."""

    def write(self, data: bytes, /) -> int:
        """Write bytes and return how many."""
        ...

    def flush(self) -> None:
        """Flush the buffer."""
        ...


class NotTheProtocol(ValueError):
    """The input is not a protocol message."""


def read_message(stream: ByteReader) -> dict[str, Any] | None:
    """Read the next message; ``None`` at the end of the stream. Raises ``NotTheProtocol``."""
    length: int | None = None
    while True:
        line = stream.readline(_HEADER)
        if not line and length is None:
            return None
        if not line.endswith(b"\n"):
            raise NotTheProtocol("the header ends in the middle of a line, or is too long")
        if not line.strip():
            break
        length = _length(line, length)
    if length is None:
        raise NotTheProtocol("a message begins with Content-Length")
    try:
        message = json.loads(_exactly(stream, length))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise NotTheProtocol("a message is not JSON") from None
    if not isinstance(message, dict):
        raise NotTheProtocol("a message is not an object")
    return message


def _exactly(stream: ByteReader, length: int) -> bytes:
    parts: list[bytes] = []
    missing = length
    while missing:
        part = stream.read(missing)
        if not part:
            raise NotTheProtocol(f"the stream ended after {length - missing} of {length} bytes")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_message(stream: ByteWriter, message: Mapping[str, Any]) -> None:
    """Write one message and flush it."""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=str).encode(
        "utf-8", "replace"
    )
    stream.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    stream.flush()


def _length(line: bytes, before: int | None) -> int | None:
    name, colon, value = line.partition(b":")
    match name.strip().lower(), value.strip():
        case b"content-length", digits if (
            before is None and digits.isdigit() and len(digits) < 10 and int(digits) <= LARGEST
        ):
            return int(digits)
        case b"content-type", _ if colon:
            return before
    raise NotTheProtocol(f"no header of the protocol: {line[:60]!r}")


@dataclass(frozen=True, slots=True)
class Client:
    """Editor conventions: ``first_line`` and ``first_column`` are 0 or 1; ``uris``: paths are file URIs."""

    first_line: int = 1
    first_column: int = 1
    uris: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Client:
        """Read the conventions for lines, columns, and paths from an editor's ``initialize``."""
        lines, columns = arguments.get("linesStartAt1", True), arguments.get("columnsStartAt1", True)
        return cls(int(bool(lines)), int(bool(columns)), arguments.get("pathFormat") == "uri")

    def line(self, line: int) -> int:
        """Convert our line, from 1, to the editor's."""
        return line - 1 + self.first_line

    def column(self, column: int) -> int:
        """Convert our column, from 1, to the editor's."""
        return column - 1 + self.first_column

    def our_line(self, line: int) -> int:
        """Convert the editor's line to ours, from 1."""
        return line + 1 - self.first_line

    def our_column(self, column: int) -> int:
        """Convert the editor's column to ours, from 1."""
        return column + 1 - self.first_column

    def source(self, path: Path) -> dict[str, Any]:
        """Return a file in the protocol's format."""
        return {"name": f"{path.parent.name}/{path.name}", "path": path.as_uri() if self.uris else str(path)}

    def path(self, source: object) -> str:
        """Return the path of an editor's source. Raises ``ConfigError`` for one without a path."""
        path = source.get("path") if isinstance(source, Mapping) else None
        if not isinstance(path, str) or not path or "\0" in path:
            raise ConfigError("a source has no path", source, "a file")
        return url2pathname(unquote(urlsplit(path).path)) if self.uris else path


Write = Callable[[Mapping[str, Any]], None]
REFUSED = 1
"""Number of the only kind of error: the request cannot be carried out, and the text gives the reason."""


class Outbox:
    """Outgoing messages; used by one thread only."""

    def __init__(self, write: Write, secrets: Sequence[str] = ()) -> None:
        self._write, self.secrets = write, secrets
        self._numbers = itertools.count(1)

    def event(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        """Send an event."""
        self._send({"type": "event", "event": name}, body)

    def output(self, text: str, category: str = "console", where: Mapping[str, Any] | None = None) -> None:
        """Print a line in the debug console; ``where``: its source. ``Exact`` text is not redacted."""
        line = Exact(f"{text}\n") if isinstance(text, Exact) else f"{text}\n"
        self.event("output", {"category": category, "output": line, **(where or {})})

    def reply(self, request: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> None:
        """Answer a request."""
        self._send(self._to(request, True), body)

    def refuse(self, request: Mapping[str, Any], why: str, *, show: bool = True) -> None:
        """Send an error response. ``show``: alert the person at once."""
        error = {"id": REFUSED, "format": "{why}", "variables": {"why": why}, "showUser": show}
        self._send(self._to(request, False) | {"message": mask_json(why, self.secrets)}, {"error": error})

    def _to(self, request: Mapping[str, Any], success: bool) -> dict[str, Any]:
        command = request.get("command")
        return {
            "type": "response", "request_seq": request["seq"], "success": success,
            "command": command if isinstance(command, str) else "",
        }  # fmt: skip

    def _send(self, message: dict[str, Any], body: Mapping[str, Any] | None) -> None:
        message["seq"] = next(self._numbers)
        if body is not None:
            message["body"] = mask_json(body, self.secrets)
        self._write(message)


# ----------------------------------------------------------------------------------------------------
# Admission of one editor to a server that every local user can connect to: the first that sends the
# token in its configuration, or the first to connect to a socket file that only the current user can open.
#
# Until one is admitted, each connection has a thread and a time limit, so that a slow one
# does not block the others; before admission a connection can only identify itself.


log = logging.getLogger(__name__)
FIRST_WORDS = 10.0
"""Seconds within which a connection must be admitted."""
MOST = 32
"""Maximum concurrent connections; one more closes the oldest."""
LOOK = 0.1
"""Seconds between two checks for an admitted editor."""
Admit = Callable[[Mapping[str, Any]], None]
Talk = Callable[[Mapping[str, Any], ByteReader, ByteWriter, Admit], None]
"""Serves an editor, given its first message, until it disconnects. It requests admission with the arguments
of its launch or attach request."""


class Door:
    """Admission to one listening socket. ``token`` is empty if none is needed; ``where`` is
    ``127.0.0.1:4711`` or a path."""

    def __init__(self, listening: socket.socket, talk: Talk) -> None:
        name = listening.getsockname()
        self.where = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
        self.token = "" if isinstance(name, str) else secrets.token_urlsafe(24)
        self._listening, self._talk = listening, talk
        self._inside, self._left = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[socket.socket] = []

    def serve(self) -> None:
        """Accept connections until the admitted editor has disconnected."""
        self._listening.settimeout(LOOK)
        while not self._inside.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listening.accept()
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()
        self._listening.close()  # admit no other editor
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
                self._refuse_strangers(reading, writing, admit)
                _close(connection)
        finally:
            limit.cancel()
            with self._lock:
                self._waiting = [one for one in self._waiting if one is not connection]
            if mine.is_set():
                self._left.set()

    def _refuse_strangers(self, reading: ByteReader, writing: ByteWriter, admit: Admit) -> None:
        """Reject a connection that starts with anything but the protocol, as a browser would."""
        try:
            message = read_message(reading)
        except (NotTheProtocol, OSError) as error:
            log.warning("a connection that does not speak the Debug Adapter Protocol was closed: %s", error)
            return
        if message is not None and message.get("command") == "initialize":
            self._talk(message, reading, writing, admit)

    def _admit(self, arguments: Mapping[str, Any], connection: socket.socket) -> None:
        """Admit the connection if its token is right. Raises ``ConfigError``."""
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
    """Shut down a connection, even while another thread reads from it."""
    with contextlib.suppress(OSError):  # already closed by the peer
        connection.shutdown(socket.SHUT_RDWR)
