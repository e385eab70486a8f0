"""JSON that a model or a server wrote: read leniently where a model slips, and never deeper than is safe."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

# Untrusted JSON, limited to a depth that every later reader can handle.


MAX_DEPTH = 200
"""Levels of arrays and objects. Ordinary values have ten; recursive code fails at about a thousand."""
MAX_BRACKETS = 50_000
"""Opening brackets in a text, also those in strings: a value of more takes long to be made."""
_CONTAINERS = frozenset((dict, list))
_DECODER = json.JSONDecoder()


class OverlyNestedError(ValueError):
    """A value of more levels, or of more arrays and objects, than anybody means."""


def json_of(text: str, decoder: json.JSONDecoder = _DECODER) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for invalid JSON, and ``OverlyNestedError``."""
    brackets = text.count("[") + text.count("{")
    if brackets > MAX_BRACKETS:
        raise OverlyNestedError(f"it has more than {MAX_BRACKETS:,} brackets")
    try:
        value = decoder.decode(text)
    except RecursionError:
        raise OverlyNestedError(f"it is nested in more than {MAX_DEPTH} levels") from None
    return value if brackets <= MAX_DEPTH else parse_json(value)


def portable(value: Any) -> bool:
    """Say whether a value can be stored, sent and read again: text is Unicode and numbers are finite, and it
    is half as deep as what is read at most, because it becomes a part of something else."""
    try:
        json.dumps(parse_json(value, MAX_DEPTH // 2), ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def parse_json(value: Any, levels: int = MAX_DEPTH) -> Any:
    """The value of a JSON text itself. Raises ``OverlyNestedError`` for one that is too deep, which is found
    out level by level, without recursion."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(levels):
        if not level:
            return value
        parts = (one.values() if type(one) is dict else one for one in level)
        level = [part for many in parts for part in many if type(part) in _CONTAINERS]
    if level:
        raise OverlyNestedError(f"it is nested in more than {levels} levels")
    return value


# A JSON reader that forgives how models slip, and nothing else.
#
# Forgiven: control characters in strings, trailing commas, single quotes, ``\'``,
# ``True``/``False``/``None``, and closers that are missing or too many. A missing closer is supplied in the
# order of the stack, and only strings that were written to their end count, so a brace inside a string
# closes nothing. Not forgiven, because it would be guessing: bare words, missing commas or colons, unknown
# escapes, ``NaN``, comments, words around the value.


MAX_STEPS = 20_000
"""Values, names and escapes that are read of one text. Damage is mended in what models write; a longer list
is faster asked for again than read here."""
_SPACE, _CLOSERS = re.compile(r"[ \t\r\n]*+"), re.compile(r"[]} \t\r\n]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![\w.+-])")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HALF = re.compile("[\ud800-\udbff]")
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class DamagedError(Exception):
    """The text cannot be read without guessing; the message says what was expected and where."""


class EndedError(DamagedError):
    """The text stops inside a string, a number's place, or between a key and its value."""


def read(text: str) -> tuple[Any, bool]:
    """The value, and whether everything that was opened had also been closed before the text ended.

    Raises ``EndedError`` when the end is missing in a way that no closer mends, ``DamagedError`` for all
    else."""
    return _JsonReader(text).document()


class _JsonReader:
    __slots__ = ("at", "ended", "stack", "steps", "text")

    def __init__(self, text: str) -> None:
        self.text, self.at, self.ended, self.steps = text, 0, False, 0
        self.stack: list[str] = []

    def document(self) -> tuple[Any, bool]:
        value = self.value()
        self.at = _CLOSERS.match(self.text, self.at).end()  # type: ignore[union-attr]  # they hide nothing
        if self.peek():
            self.fail("the end of the text")
        return value, not self.ended

    def peek(self) -> str:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # matches everywhere
        return self.text[self.at : self.at + 1]

    def fail(self, expected: str) -> NoReturn:
        if self.at >= len(self.text):
            raise EndedError(f"expected {expected}, but the text ends")
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        near = self.text[self.at : self.at + 20]
        raise DamagedError(f"expected {expected} at line {line} column {column}, found {near!r}")

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.fail("a shorter text, because this one is damaged")

    def value(self) -> Any:
        self.step()
        char = self.peek()
        if char == "{":
            return self.object()
        if char == "[":
            return self.array()
        if char in _PLAIN:
            return self.string(char)
        if match := _NUMBER.match(self.text, self.at):
            return self.number(match)
        word = _WORD.match(self.text, self.at)
        if word is None or word.group() not in _WORDS:
            self.fail("a value (text needs quotes)")
        self.at = word.end()
        return _WORDS[word.group()]

    def number(self, match: re.Match[str]) -> int | float:
        whole = not (match.group(1) or match.group(2))
        try:
            number = int(match.group()) if whole else float(match.group())
        except ValueError:  # more digits than Python converts
            self.fail("a shorter number")
        if number in (float("inf"), float("-inf")):
            self.fail("a number that is not infinite")
        self.at = match.end()
        return number

    def object(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self.open("}")
        while not self.closed("}"):
            quote = self.peek()
            if quote not in _PLAIN:
                self.fail("a name in double quotes")
            name = self.string(quote)
            if self.peek() != ":":
                self.fail("a colon")
            self.at += 1
            members[name] = self.value()
            self.comma("}")
        return members

    def array(self) -> list[Any]:
        items: list[Any] = []
        self.open("]")
        while not self.closed("]"):
            items.append(self.value())
            self.comma("]")
        return items

    def open(self, closer: str) -> None:
        if len(self.stack) >= MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels of nesting")
        self.stack.append(closer)
        self.at += 1

    def closed(self, closer: str) -> bool:
        """Is the innermost container at its end? A closer of an outer one, or the end of the text, ends it as
        well."""
        char = self.peek()
        if char == closer:
            self.at += 1
        elif char == "":
            self.ended = True
        elif char not in self.stack:
            return False
        self.stack.pop()
        return True

    def comma(self, closer: str) -> None:
        char = self.peek()
        if char == ",":
            self.at += 1
        elif char and char not in self.stack:
            self.fail(f"a comma or {closer!r}")

    def string(self, quote: str) -> str:
        parts: list[str] = []
        self.at += 1
        while True:
            plain = _PLAIN[quote].match(self.text, self.at)
            assert plain is not None  # matches everywhere, also nothing
            parts.append(plain.group())
            self.at = plain.end()
            char = self.text[self.at : self.at + 1]
            if char == quote:
                self.at += 1
                return _join_surrogates("".join(parts))
            if not char:
                self.fail("the end of a string")
            self.step()
            parts.append(self.escape())

    def escape(self) -> str:
        code = self.text[self.at + 1 : self.at + 2]
        if code in _ESCAPES:
            self.at += 2
            return _ESCAPES[code]
        digits = _HEX.match(self.text, self.at + 2) if code == "u" else None
        if digits is None:
            if len(self.text) - self.at < (6 if code == "u" else 2):
                self.at = len(self.text)
            self.fail("a JSON escape (write a backslash as \\\\)")
        self.at = digits.end()
        return chr(int(digits.group(), 16))


def _join_surrogates(text: str) -> str:
    """Two escaped halves of one character become that character, as in strict JSON."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
