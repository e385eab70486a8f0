r"""Regular expressions for long untrusted text, matched in time linear in its length (RE2). The price: no
look-around and no backreferences.

Matching is over UTF-8 bytes, where ``\w``, ``\b`` and ``\s`` know ASCII only."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

MEMORY = 64 << 20
"""Bytes that one expression may use; with less, long repetitions fall back to a slower algorithm."""


class ByteMatch(Protocol):
    """A match, in bytes."""

    lastgroup: bytes | None

    def __getitem__(self, group: int | bytes) -> bytes: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


def encode(text: str) -> bytes:
    """Encode the text for matching. Lone surrogates are kept."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """Invert ``encode``."""
    return data.decode("utf-8", "surrogatepass")


def search(expression: str, data: bytes, start: int = 0) -> ByteMatch | None:
    """Return the first match from ``start`` on, ignoring case."""
    found: ByteMatch | None = _compile(expression).search(data, start)
    return found


@cache
def _compile(expression: str) -> Any:
    import re2

    options: Any = re2.Options()
    options.case_sensitive, options.log_errors, options.max_mem = False, False, MEMORY
    options.encoding = options.Encoding.LATIN1  # every byte for itself
    return re2.compile(expression.encode("ascii"), options)
