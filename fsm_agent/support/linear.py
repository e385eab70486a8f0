"""Regular expressions for long text that somebody else wrote: matched in time proportional to its length,
whatever it says (RE2). The price: no look-around and no references back.

Matching is over bytes of UTF-8, where ``\\w``, ``\\b`` and ``\\s`` know ASCII only."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

MEMORY = 64 << 20
"""Bytes that one expression may use; with less, long repetitions fall back to a slower way of matching."""


class ByteMatch(Protocol):
    """A match, in bytes."""

    lastgroup: bytes | None

    def __getitem__(self, group: int | bytes) -> bytes: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


def encoded(text: str) -> bytes:
    """The text as expressions read it. Halves of surrogate pairs are kept."""
    return text.encode("utf-8", "surrogatepass")


def decoded(data: bytes) -> str:
    """The text that ``encoded`` made these bytes of."""
    return data.decode("utf-8", "surrogatepass")


def search(expression: str, data: bytes, start: int = 0) -> ByteMatch | None:
    """The first place from ``start`` on that matches, upper and lower case alike."""
    found: ByteMatch | None = _compiled(expression).search(data, start)
    return found


@cache
def _compiled(expression: str) -> Any:
    """Compiled when first needed, because that takes milliseconds."""
    import re2

    options = re2.Options()
    options.case_sensitive, options.log_errors, options.max_mem = False, False, MEMORY
    options.encoding = re2.Options.Encoding.LATIN1  # every byte for itself
    return re2.compile(expression.encode("ascii"), options)
