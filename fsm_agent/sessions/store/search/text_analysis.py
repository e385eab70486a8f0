"""Extracts the searchable text of a message, and parses searches. Pure.

Words are separated by blanks and punctuation. Scripts without blanks between words (Chinese, Japanese,
Korean, Thai …) and emoji are cut into overlapping pairs of characters instead, and every single character is
kept in a column of its own, so that a search for one, two or more of them is an ordinary index lookup. A
trigram index finds nothing shorter than three characters."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsm_agent.conversation.parts import text_only
from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.rows import loads
from fsm_agent.support.texts import clean

MAX_INDEXED = 100_000
"""Indexed characters of one message."""
SHORTEST_PREFIX = 3
"""Minimum letters before a ``*``; fewer would look up every word that begins with a letter."""
DAY = 86_400

_RUNS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2600-\u27bf\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30fa\u30fc-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001f000-\U0003ffff"
)
"""Characters of scripts without blanks between words, and symbols that are words by themselves."""
_RUN = re.compile(f"[{_RUNS}]+")
_PIECE = re.compile(f"[{_RUNS}]+|[^\\W_{_RUNS}]+")
_PART = re.compile(r'"([^"]*)"?|(\S+)')


PIECE = 100
"""Characters composed at once; no letter of any language has as many marks."""


class _Folding(dict[int, int]):
    """Maps each character to its form for comparison: lowercase, full width as normal width, Latin and Greek
    without marks."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        plain = unicodedata.normalize("NFKD", character)
        if code < 0x0400 or 0x1E00 <= code < 0x2000 or 0xFF00 <= code < 0xFFF0:
            plain = "".join(one for one in plain if not unicodedata.combining(one))
            character = plain if len(plain) == 1 else character
        small = character.lower()
        self[code] = ord(small) if len(small) == 1 else ord(character)
        return self[code]


_FOLDING = _Folding()


def fold(text: str) -> str:
    """Return the text in its form for comparison; it has the length of ``compose_marks(text)``, so that
    positions in both are the same."""
    return text.lower() if text.isascii() else compose_marks(text).translate(_FOLDING)


def compose_marks(text: str) -> str:
    """Return the text with letters and marks composed into single characters where possible."""
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFC", piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Yield pieces of the text that are composed separately: composing a long sequence of marks takes
    quadratic time, so it is cut."""
    place = 0
    while place < len(text):
        end = place + PIECE
        while end < len(text) and end < place + 2 * PIECE and unicodedata.combining(text[end]):
            end += 1
        yield text[place:end]
        place = end


def plain_text(row: Mapping[str, Any]) -> str:
    """Return the readable text of a stored message: its text, the names of its other parts, and its tool
    calls with arguments; without characters that a database or a screen refuses."""
    content = row.get("content")
    texts = [text] if (text := text_only(content)) else []
    for call in row.get("tool_calls") or ():
        function = call.get("function", {})
        texts.append(
            f"{function.get('name', '')} {' '.join(_strings(_arguments(function.get('arguments', ''))))}"
        )
    return clean("\n".join(texts))


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def columns(text: str, role: str, session: str, at: float) -> tuple[str, str, str]:
    """Return (words, chars, tags) of one message for the index."""
    folded = fold(text[:MAX_INDEXED])
    tags = f"{role} {session_tag(session)} {day_tag(at)}"
    if folded.isascii() or not _RUN.search(folded):
        return folded, "", tags
    single = {character for run in _RUN.findall(folded) for character in run}
    return (
        _RUN.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", folded),
        " ".join(map(_code, sorted(single))),
        tags,
    )


def session_tag(session: str) -> str:
    """Return a word that identifies a session in the index; its id may contain any characters."""
    return "s" + hashlib.sha256(session.encode("utf-8", "replace")).hexdigest()[:16]


def day_tag(at: float) -> str:
    """Return a word that identifies the day (UTC) of a time in seconds."""
    return f"d{int(at // DAY)}"


def _code(character: str) -> str:
    """Return a word for a character, independent of the tokenizer of this SQLite."""
    return f"u{ord(character):x}"


def _pairs(run: str) -> list[str]:
    codes = [_code(character) for character in run]
    return [first + second for first, second in itertools.pairwise(codes)] or codes


# Searches


@dataclass(frozen=True, slots=True)
class Folded:
    """A text to search; ``spaced`` has blanks in place of the characters that are indexed as pairs, because
    they end a word."""

    text: str
    spaced: str

    @classmethod
    def of(cls, text: str) -> Folded:
        """Fold a text."""
        folded = fold(text)
        return cls(folded, folded if folded.isascii() else _RUN.sub(lambda run: " " * len(run[0]), folded))


@dataclass(frozen=True, slots=True)
class Term:
    """One word, phrase or prefix (``pattern``), or some characters as they are (``run``). ``asked``: the
    query for the index."""

    asked: str
    pattern: re.Pattern[str] | None = None
    run: str = ""

    def places(self, folded: Folded, most: int) -> list[tuple[int, int]]:
        """Return (start, end) of at most ``most`` occurrences."""
        if self.pattern is not None:
            return [found.span() for found in itertools.islice(self.pattern.finditer(folded.spaced), most)]
        found = [
            place.start() for place in itertools.islice(re.finditer(re.escape(self.run), folded.text), most)
        ]
        return [(start, start + len(self.run)) for start in found]

    def count(self, folded: Folded) -> int:
        """Return how often the term occurs."""
        return (
            len(self.pattern.findall(folded.spaced))
            if self.pattern is not None
            else folded.text.count(self.run)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """``groups``: all terms of at least one group must match. No term of ``without`` may match."""

    groups: tuple[tuple[Term, ...], ...]
    without: tuple[Term, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms that may match, each once."""
        return tuple(dict.fromkeys(term for group in self.groups for term in group))

    @property
    def expression(self) -> str:
        """The query for FTS5's ``MATCH``; empty when there is nothing to search for."""
        asked = " OR ".join(f"({' AND '.join(term.asked for term in group)})" for group in self.groups)
        banned = " OR ".join(term.asked for term in self.without)
        return f"({asked}) NOT ({banned})" if asked and banned else asked

    def relaxed(self) -> Query:
        """Return the same query with any of the terms instead of all."""
        return Query(tuple((term,) for term in self.terms), self.without)


def query_of(text: str) -> Query:
    """Parse a search: words, ``"a phrase"``, ``begin*``, ``OR`` between, ``NOT`` before. Everything else is
    punctuation, which separates words; no input is an error."""
    groups: list[list[Term]] = [[]]
    without: list[Term] = []
    negated = False
    for quoted, word in _PART.findall(text):
        if word in ("OR", "AND", "NOT"):
            negated = word == "NOT"
            if word == "OR" and groups[-1]:
                groups.append([])
            continue
        (without if negated else groups[-1]).extend(
            _terms(quoted or word.strip('"'), prefix=word.endswith("*"))
        )
        negated = False
    return Query(tuple(tuple(group) for group in groups if group), tuple(without))


def _terms(text: str, prefix: bool) -> Iterator[Term]:
    """Yield terms: words separated only by punctuation form a phrase; each piece of another script is a term
    of its own."""
    phrase: list[str] = []
    for piece in _PIECE.findall(fold(text)):
        if not _RUN.match(piece):
            phrase.append(piece)
            continue
        if phrase:
            yield _phrase(phrase)
            phrase = []
        yield _run(piece)
    if phrase:
        yield _phrase(phrase, prefix and len(phrase[-1]) >= SHORTEST_PREFIX)


def _phrase(words: list[str], prefix: bool = False) -> Term:
    first, *rest = map(re.escape, words)
    # the lookbehind follows the first word, so that the engine searches for letters, which is ten times as
    # fast
    pattern = (
        rf"{first}(?<![^\W_]{first})"
        + "".join(rf"[\W_]+{word}" for word in rest)
        + ("" if prefix else r"(?![^\W_])")
    )
    return Term(f'words : "{" ".join(words)}"' + (" *" if prefix else ""), re.compile(pattern))


def _run(run: str) -> Term:
    asked = f'chars : "{_code(run)}"' if len(run) == 1 else f'words : "{" ".join(_pairs(run))}"'
    return Term(asked, run=run)


# Shared by both full-text indexes.


Indexed = tuple[int, str, str, str]
"""A message for the index: its id, and its words, single characters and tags."""


class IndexQuery(NamedTuple):
    """A part of a query over ``messages m``: its source, its condition with one value, and the number that
    orders it."""

    source: str
    condition: str
    value: str
    number: str


def rows_to_index(rows: Iterable[Any], most: int, chars: int) -> tuple[list[Indexed], bool]:
    """Return the leading rows (id, role, session, at, kind of the session, body, its checksum) for the index,
    of about ``chars`` characters, and whether more may follow these or the first ``most``."""
    batch: list[Indexed] = []
    for message, role, session, at, kind, *body in rows:
        words, singles, tags = columns(_text(*body), role, session, at)
        batch.append((message, words, singles, f"{tags} {kind}"))
        chars -= len(words)
        if chars <= 0:
            break
    return batch, len(batch) == most or chars <= 0


def _text(body: str, crc: int | None) -> str:
    """Return the text of a message; empty for a damaged one, so that the others can be found."""
    try:
        return plain_text(loads(body, crc))
    except StoreError:
        return ""


IS_DAMAGED = "the full-text index of the sessions is damaged; the next search rebuilds it"
SIGNS = ("malformed", "constraint failed", "logic error", "vtable constructor", "invalid fts5")
"""Parts of SQLite's error messages about a damaged full-text table."""


def looks_damaged(error: BaseException | None) -> bool:
    """Return whether a damaged index may have caused an error. SQLite may read anything from it: broken rows,
    duplicate rows, lengths of gigabytes."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in SIGNS)
