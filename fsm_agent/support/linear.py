r"""Regular expressions for long untrusted text, matched in time linear in its length (RE2). The price: no
look-around and no backreferences.

Matching is over UTF-8 bytes, where ``\w``, ``\b`` and ``\s`` know ASCII only."""

from __future__ import annotations

from functools import cache, lru_cache
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


def is_regular(pattern: str) -> bool:
    """Say whether RE2 has the syntax of a pattern."""
    try:
        _compile_pattern(pattern)
    except ValueError:
        return False
    return True


def occurs(pattern: str, text: str) -> bool:
    """Say whether a pattern with a regular syntax matches anywhere in the text, letter by letter."""
    return _compile_pattern(pattern).search(encode(text)) is not None


@lru_cache(256)
def _compile_pattern(pattern: str) -> Any:
    """Raises ``ValueError``."""
    import re2

    options: Any = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(encode(pattern), options)
    except re2.error:
        raise ValueError(f"not a regular expression of RE2: {pattern[:80]}") from None


@cache
def _compile(expression: str) -> Any:
    import re2

    options: Any = re2.Options()
    options.case_sensitive, options.log_errors, options.max_mem = False, False, MEMORY
    options.encoding = options.Encoding.LATIN1  # every byte for itself
    return re2.compile(expression.encode("ascii"), options)
