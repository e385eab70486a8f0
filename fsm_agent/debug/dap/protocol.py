"""The edge of the protocol: messages on a stream of bytes, how the editor counts lines and spells paths, and
what goes out to it.

A message is a header ``Content-Length: n``, an empty line, n bytes of JSON. Reading is strict on purpose: a
browser that is made to post to the port sends other headers first, and is turned away before anything it says
is looked at."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact, mask_json

LARGEST = 16 * 1024 * 1024
"""Bytes of one message; more is no editor's."""
_HEADER = 256
"""Bytes of one line of the header."""


class ByteReader(Protocol):
    """A stream of bytes to read; unbuffered, so that it can be closed while somebody waits for more."""

    def readline(self, size: int = -1, /) -> bytes:
        """Read up to the end of a line."""
        ...

    def read(self, size: int = -1, /) -> bytes | None:
        """Read so many bytes."""
        ...


class ByteWriter(Protocol):
    """A buffered stream of bytes to write."""

    def write(self, data: bytes, /) -> int:
        """Write bytes; returns how many."""
        ...

    def flush(self) -> None:
        """Hand over what was written."""
        ...


class NotTheProtocol(ValueError):
    """What came is no message of the protocol."""


def read_message(stream: ByteReader) -> dict[str, Any] | None:
    """The next message; ``None`` at the end of the stream. Raises ``NotTheProtocol``."""
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
        raise NotTheProtocol("a message is no JSON") from None
    if not isinstance(message, dict):
        raise NotTheProtocol("a message is no object")
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
    """``first_line`` and ``first_column`` are 0 or 1; ``uris``: paths are file addresses."""

    first_line: int = 1
    first_column: int = 1
    uris: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Client:
        """Read from an editor's ``initialize`` how it counts lines and columns, and names files."""
        lines, columns = arguments.get("linesStartAt1", True), arguments.get("columnsStartAt1", True)
        return cls(int(bool(lines)), int(bool(columns)), arguments.get("pathFormat") == "uri")

    def line(self, line: int) -> int:
        """Ours, from 1, as the editor's."""
        return line - 1 + self.first_line

    def column(self, column: int) -> int:
        """Return a column as the editor counts it; ours begin at 1."""
        return column - 1 + self.first_column

    def our_line(self, line: int) -> int:
        """The editor's as ours, from 1."""
        return line + 1 - self.first_line

    def our_column(self, column: int) -> int:
        """Return an editor's column as we count it, from 1."""
        return column + 1 - self.first_column

    def source(self, path: Path) -> dict[str, Any]:
        """Return a file as the protocol names one."""
        return {"name": f"{path.parent.name}/{path.name}", "path": path.as_uri() if self.uris else str(path)}

    def path(self, source: Mapping[str, Any]) -> str:
        """Where a source that the editor names is. Raises ``ConfigError`` for one without a path."""
        path = source.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigError("a source has no path", source.get("name"), "a file")
        return url2pathname(unquote(urlsplit(path).path)) if self.uris else path


Write = Callable[[Mapping[str, Any]], None]
REFUSED = 1
"""Number of the one kind of error there is: something was asked that cannot be done, and the text says
why."""


class Outbox:
    """Used by one thread only."""

    def __init__(self, write: Write, secrets: Sequence[str] = ()) -> None:
        self._write, self.secrets = write, secrets
        self._numbers = itertools.count(1)

    def event(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        """Tell the editor of something that happened."""
        self._send({"type": "event", "event": name}, body)

    def output(self, text: str, category: str = "console", where: Mapping[str, Any] | None = None) -> None:
        """A line in the debug console; ``where`` in a source it is about. What is ``Exact`` is not masked."""
        line = Exact(f"{text}\n") if isinstance(text, Exact) else f"{text}\n"
        self.event("output", {"category": category, "output": line, **(where or {})})

    def reply(self, request: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> None:
        """Answer a request."""
        self._send(self._to(request, True), body)

    def refuse(self, request: Mapping[str, Any], why: str, *, show: bool = True) -> None:
        """``show``: worth a person's attention at once."""
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
