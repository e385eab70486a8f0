"""Messages of the protocol on a stream of bytes: a header ``Content-Length: n``, an empty line, n bytes of JSON.

Strict on purpose: a browser that is made to post to the port sends other headers first, and is turned away before anything it
says is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

LARGEST = 16 * 1024 * 1024
"""Bytes of one message; more is no editor's."""
_HEADER = 256
"""Bytes of one line of the header."""


class Reading(Protocol):
    """A stream of bytes to read; unbuffered, so that it can be closed while somebody waits for more."""

    def readline(self, size: int = -1, /) -> bytes: ...

    def read(self, size: int = -1, /) -> bytes | None: ...


class Writing(Protocol):
    """A buffered stream of bytes to write."""

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...


class NotTheProtocol(ValueError):
    """What came is no message of the protocol."""


def read_message(stream: Reading) -> dict[str, Any] | None:
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


def _exactly(stream: Reading, length: int) -> bytes:
    parts: list[bytes] = []
    missing = length
    while missing:
        part = stream.read(missing)
        if not part:
            raise NotTheProtocol(f"the stream ended after {length - missing} of {length} bytes")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_message(stream: Writing, message: Mapping[str, Any]) -> None:
    """Write one message and flush it."""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "replace")
    stream.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    stream.flush()


def _length(line: bytes, before: int | None) -> int | None:
    name, colon, value = line.partition(b":")
    match name.strip().lower(), value.strip():
        case b"content-length", digits if before is None and digits.isdigit() and len(digits) < 10 and int(digits) <= LARGEST:
            return int(digits)
        case b"content-type", _ if colon:
            return before
    raise NotTheProtocol(f"no header of the protocol: {line[:60]!r}")
