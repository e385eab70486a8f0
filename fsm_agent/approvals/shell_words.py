"""The words of a command as the shell makes them: quotes taken off, variables guessed. Pure."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_VALUE = 4_096
"""Characters of a variable that are followed."""
UNKNOWN = "\0"
"""Stands in a guess for what the text does not say."""
LITERALS = frozenset(("==", "=~", "$"))
"""Nodes without a name that are words of a command."""

_LEAVES = frozenset(("word", "number", "test_operator", "variable_name", "special_variable_name", *LITERALS))
_ACTIVE = re.compile(r"[\s|&;()<>\"'`$]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_IN_QUOTES = re.compile(r"\\([$`\"\\\n])")
_LIVE_IN_QUOTES = re.compile(r"[`\"]|\$(?![\s|)/.,:;\\]|$)")
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_OPERATORS = (":-", "-", ":=", "=")
_UNSURE = frozenset(("?", "$", "!", "#", "0", "-", "_", "OLDPWD", "RANDOM"))


@dataclass(frozen=True, slots=True)
class Word:
    """What the shell makes of a word. ``exact``: this text. ``names``: the names of files that ``text`` fits,
    as ``*.py`` or ``~/x``. ``open``: the text does not say; ``text`` is a guess."""

    text: str
    kind: Literal["exact", "names", "open"] = "exact"

    @property
    def may_be_option(self) -> bool:
        """Could an option come out of it that nobody sees in the text?"""
        return self.kind == "open" or (self.kind == "names" and self.text[:1] in "*?[-")


class WordReader(ABC):
    """Reads words of the tree of a line. ``unread`` is the first thing that was not understood."""

    def __init__(self, environ: Mapping[str, str], directory: str, budget: int) -> None:
        self.unread = ""
        self._environ, self._directory, self._budget = environ, directory, budget
        self._variables: dict[str, str] = {}
        self._sourced, self._data = False, b""

    @abstractmethod
    def _inside(self, node: Node) -> None: ...

    @abstractmethod
    def _substitution(self, node: Node) -> str: ...

    def _miss(self, what: str) -> None:
        self.unread = self.unread or what

    def _text(self, node: Node) -> str:
        return self._data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _words(self, node: Node) -> list[Word]:
        pieces = list(self._pieces(node))
        text = "".join(piece for piece, _ in pieces)
        bare = "".join(piece if how == "bare" else "Q" * len(piece) for piece, how in pieces)
        ways = {how for _, how in pieces}
        if "{" in bare and "}" in bare and ("," in bare or ".." in bare):
            self._miss("braces")
            return [Word(one, "open") for one in spelled_out(text)]
        if "split" in ways:
            return [Word(one, "open") for one in text.split() or [""]]
        if "value" in ways or re.search("[=:]~", bare):
            return [Word(text, "open")]
        return [Word(text, "names" if bare[:1] == "~" or re.search(r"[*?\[]", bare) else "exact")]

    def _pieces(self, node: Node, quoted: bool = False) -> Iterator[tuple[str, str]]:
        """(text, how): ``bare`` and ``quoted`` stand there, ``split`` and ``value`` are guesses, which the
        shell splits into words or not."""
        open_kind = "value" if quoted else "split"
        match node.type:
            case kind if kind in _LEAVES and not node.named_child_count:
                yield from self._bare(self._text(node))
            case "raw_string":
                if "'" in (text := self._text(node)[1:-1]):
                    self._miss("a quote")
                yield text, "quoted"
            case "concatenation":
                at = node.start_byte
                for child in node.children:
                    if child.start_byte != at or (child.type == "$" and child.end_byte < node.end_byte):
                        self._miss("a blank")  # or $"…"
                    at = child.end_byte
                    yield from self._pieces(child)
            case "string":
                yield from self._string(node)
            case "simple_expansion":
                yield self._value(self._text(node.children[-1])), open_kind
            case "expansion":
                yield self._expansion(node), open_kind
            case "command_substitution":
                yield self._substitution(node), open_kind
            case "ansi_c_string":
                self._miss("escapes of another kind")
                yield _decoded(self._text(node)[2:-1]), "quoted"
            case other:
                self._miss(other.replace("_", " "))
                self._inside(node)
                yield self._text(node) if not node.named_child_count else UNKNOWN, open_kind

    def _bare(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        for match in _ESCAPE.finditer(text):
            if match[1] == "\n":
                self._miss("a blank")
            yield from ((text[at : match.start()], "bare"), (match[1].replace("\n", ""), "quoted"))
            at = match.end()
        rest = text[at:]
        if text != "$" and _ACTIVE.search(_ESCAPE.sub("", text)):
            self._miss("a quote")
        yield rest, "bare"

    def _string(self, node: Node) -> Iterator[tuple[str, str]]:
        parts = [child for child in node.children if child.type not in ('"', "string_content", "$")]
        if not parts:
            text = self._text(node)[1:-1]
            if _LIVE_IN_QUOTES.search(_ESCAPE.sub("", text)):
                self._miss("a quote")
            yield _IN_QUOTES.sub(lambda match: match[1].replace("\n", ""), text), "quoted"
            return
        at = node.start_byte + 1
        for child in parts:
            between = self._data[at : child.start_byte].decode("utf-8", "replace")
            yield _IN_QUOTES.sub(lambda match: match[1].replace("\n", ""), between), "quoted"
            yield from self._pieces(child, quoted=True)
            at = child.end_byte
        yield self._data[at : node.end_byte - 1].decode("utf-8", "replace"), "quoted"

    def _value(self, name: str) -> str:
        """The best guess at what a variable holds; one that is nowhere set is empty, as it is for the
        shell."""
        self._budget -= 1
        if name == "PWD":
            value = self._directory or UNKNOWN
        elif name in self._variables:
            value = self._variables[name]
        elif name in ("HOME", "IFS"):
            value = self._environ.get("HOME", "~") if name == "HOME" else " "
        elif name in _UNSURE:
            value = UNKNOWN
        else:
            value = self._environ.get(name, UNKNOWN if self._sourced else "")[:MAX_VALUE]
        self._budget -= len(value)
        return value if self._budget > 0 else UNKNOWN

    def _expansion(self, node: Node) -> str:
        names = [child for child in node.children if child.type in ("variable_name", "special_variable_name")]
        signs = [child.type for child in node.children if not child.is_named]
        value = self._value(self._text(names[0])) if names else UNKNOWN
        if len(node.children) == 3 and names and [sign.strip() for sign in signs] == ["${", "}"]:
            return value
        self._miss("an expansion")
        if len(signs) == 3 and signs[1] in _OPERATORS:
            other = " ".join(word.text for one in node.named_children[1:] for word in self._words(one))
            return value or other
        self._inside(node)
        return UNKNOWN


def spelled_out(word: str) -> list[str]:
    """The words that bash makes of ``{a,b}``, at most 64."""
    words = [word]
    while len(word) < 1_000 and len(words) < 64 and (match := _BRACES.search(words[0])) is not None:
        words = [
            one[: found.start()] + part + one[found.end() :]
            for one in words
            if (found := _BRACES.search(one))
            for part in match[1].split(",")
        ]
    return words


def _decoded(text: str) -> str:
    try:
        return codecs.decode(text.replace("\\e", "\x1b"), "unicode_escape")
    except ValueError:
        return text
