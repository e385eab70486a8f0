"""Text made visible, so that what a person reads means exactly one text, and ``original`` gives that
text back.

=============================  =========================================================================
shown                          means
=============================  =========================================================================
``\x1b`` ``\u202e`` …          the character with this number: one that steers, hides or looks like a blank,
                               or a letter that a screen would move to another place
``\x20⟨5,000 times⟩``          that character 5,000 times in a row
``↵`` and a new line           a new line
``⇥`` and three blanks         a tab
anything else                  itself; a backslash that would be read as an escape is shown as ``\x5c``
=============================  =========================================================================

Nothing is ever left out: the person who decides whether something may run has to see all of it.
"""

# A question displays exactly one call. Deleting what could steer a terminal also deleted commands. The
# display is reversible instead: escapes for every character that steers, hides, or looks like a blank; `\x5c`
# only for a backslash that would read as an escape; foreign text only behind a gutter, so it cannot imitate
# the question. Nothing is cut or masked. Runs of 40 or more blanks, newlines, or invisible characters are
# counted. Right-to-left letters become escapes where a screen would reorder them. A pattern that does not
# match this tool, or cannot be stored, is not offered. Not covered: look-alike letters.

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from unicodedata import category

NEWLINE, TAB = "↵", "⇥"
MANY = 40
"""Longer runs of blanks, new lines or unseen characters are counted instead of shown, or they would push
the rest off the screen."""

_MARKS = frozenset(f"{NEWLINE}{TAB}⟨⟩")
"""Characters with a meaning here; escaped when they occur in the text."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs", "Me"})
"""Unicode categories: control, format, surrogate, private, unassigned, separators, signs drawn around
others."""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0000-\U000e0fff]"
)
"""Fillers, joiners, variation selectors and empty patterns that Unicode counts as letters, marks or
symbols."""
_RIGHT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
"""Letters, digits and marks of right-to-left scripts."""
_RIGHTWARD = re.compile(_RIGHT)
_STRETCH = re.compile(rf"{_RIGHT}[^\nA-Za-z]*")
"""Text that a screen may reorder: from such a letter to the end of the line, or to a Latin letter."""
_WORDS = re.compile(rf".*{_RIGHT}", re.DOTALL)
_MOVING = re.compile(r"(?![,.!?:]\s)[!-/:-@\[-`{-~]")
"""Signs whose meaning depends on their order; those between sentences do not."""
_CODE = r"(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_LOOKED_AT = re.compile(
    rf"(?P<run>(?P<one>[ \n\t]|[^ -~])(?P=one){{{MANY - 1},}})|(?P<end> )(?=\n|\Z)|\\+|[^ -~]"
)
_AN_ESCAPE = re.compile(rf"{_CODE}| (?:\n|\Z)| {{{MANY}}}|[^ -~\n\t]|(?P<one>[\n\t])(?P=one){{{MANY - 1}}}")
"""What is, or may be, shown as an escape or looks like one behind a backslash."""
ESCAPE = re.compile(rf"\\{_CODE}(?:⟨[0-9,]+ times⟩)?")
"""An escape in visible text."""
_SHOWN = re.compile(
    rf"(?P<line>(?:{NEWLINE}|\\x0a)\n)|(?P<tab>{TAB} {{3}})|\\(?P<code>{_CODE})(?:⟨(?P<times>[0-9,]+)"
    r" times⟩)?"
)


def visible(text: str, encoding: str = "utf-8", *, lines: bool = True) -> str:
    """Return a text as a person sees it. ``encoding``: characters that it lacks are escaped too. Without
    ``lines`` it is one line."""
    return _LOOKED_AT.sub(
        _Look(encoding, lines, _carries("".join(_MARKS), encoding), _reordered_positions(text)), text
    )


def original(shown: str) -> str:
    """Invert ``visible``."""

    def of(found: re.Match[str]) -> str:
        if found["line"]:
            return "\n"
        return (
            "\t"
            if found["tab"]
            else chr(int(found["code"][1:], 16)) * int((found["times"] or "1").replace(",", ""))
        )

    return _SHOWN.sub(of, shown)


def escape(char: str) -> str:
    """``\\x1b``, ``\\u202e`` or ``\\U000e0041``."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class _Look:
    """Replaces one piece of a text. ``marked``: the encoding has the signs for new lines, tabs and counts;
    ``moved``: positions of letters that a screen would reorder."""

    encoding: str
    lines: bool
    marked: bool
    moved: frozenset[int]

    def __call__(self, found: re.Match[str]) -> str:
        part, text = found[0], found.string
        if found["run"]:
            return self._run(part, text, found.start())
        if found["end"]:
            return escape(part)
        if part[0] == "\\":
            return escape(part[0]) * len(part) if self._ambiguous(text, found.end()) else part
        return self._one(part, text, found.start())

    def _run(self, part: str, text: str, start: int) -> str:
        char = part[0]
        told = char in " \n\t" or _unseen(char, self.encoding) or category(char)[0] == "M"
        if not told and start not in self.moved:
            return part
        last = self._one(char, text, start) if char == "\n" and self.lines else ""
        times = len(part) - bool(last)
        return (f"{escape(char)}⟨{times:,} times⟩" if self.marked else escape(char) * times) + last

    def _ambiguous(self, text: str, end: int) -> bool:
        """Say whether a backslash that ends here would merge with what follows."""
        marks = self.marked and self.lines
        return bool(_AN_ESCAPE.match(text, end)) or (not marks and text[end : end + 1] in ("\n", "\t"))

    def _one(self, char: str, text: str, start: int) -> str:
        if char == "\n" and self.lines:
            return (NEWLINE if self.marked else escape(char)) + char
        if char == "\t" and self.marked:
            return TAB + "   "
        if start in self.moved or _unseen(char, self.encoding):
            return escape(char)
        if category(char)[0] == "M" and not self._on_a_letter(text, start):
            return escape(char)
        return char

    def _on_a_letter(self, text: str, place: int) -> bool:
        """Say whether this mark is one of at most three on a letter, as scripts use them. Elsewhere marks
        cover their base."""
        for at in range(place - 1, max(-1, place - 4), -1):
            if (
                at in self.moved
                or _unseen(text[at], self.encoding)
                or (kind := category(text[at])[0]) not in "LM"
            ):
                return False
            if kind == "L":
                return True
        return False


@lru_cache(maxsize=4096)
def _unseen(char: str, encoding: str) -> bool:
    """Say whether the character has no visible sign of its own. A blank has one."""
    if char == " ":
        return False
    return (
        category(char) in _UNSEEN
        or char in _MARKS
        or bool(_BLANK.match(char))
        or not _carries(char, encoding)
    )


@lru_cache(maxsize=4096)
def _carries(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _reordered_positions(text: str) -> frozenset[int]:
    """Return the positions of letters that a screen would show in another order, because of right-to-left
    text with signs or digits in between."""
    places = set[int]()
    for found in _STRETCH.finditer(text) if not text.isascii() else ():
        stretch = found[0]
        words = _WORDS.match(stretch)
        if re.search(r"\d", stretch) or (words and _MOVING.search(stretch, 0, words.end())):
            places |= {found.start() + letter.start() for letter in _RIGHTWARD.finditer(stretch)}
    return frozenset(places)


# Untrusted text beside our own words: every row of it begins with the gutter, so that none can pass for a
# question. ``command │ for f in *.py; do↵`` begins a line of the text, ``┆`` continues it.


BEGINS, GOES_ON, VALUE, NAMED = "│", "┆", "=", "›"
"""Between label and row: of a text, of the rest of a long line, of a value that is not a text; and before a
name too long to fit beside its value."""
NARROWEST = 20
"""Minimum columns for the text; a narrower terminal wraps the rows itself."""
_PIECES = re.compile(rf"{ESCAPE.pattern}|.")


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """One row: ``head`` is ours, ``text`` is untrusted. ``sentence``: it is the question itself."""

    head: str
    text: str = ""
    sentence: bool = False

    def __str__(self) -> str:
        return self.head + self.text


def beside(label: str, shown: str, width: int, sign: str = BEGINS) -> list[QuestionRow]:
    """Return the rows of a text made by ``visible``; the label is beside the first. ``width`` in columns."""
    before = f"    {label} "
    room = max(NARROWEST, width - len(before) - 2)
    rows: list[QuestionRow] = []
    for line in shown.split("\n"):
        for number, piece in enumerate(broken(line, room)):
            head = before if not rows else " " * len(before)
            rows.append(QuestionRow(f"{head}{GOES_ON if number else sign} ", piece))
    return rows


def broken(line: str, room: int) -> Iterator[str]:
    """Yield pieces of a line, each at most ``room`` columns wide. Non-ASCII characters count as two
    columns: terminals differ. A piece ends before a blank if it can, because a blank is visible at the
    beginning of a row but not at its end. Escapes are never split."""
    signs, start = _PIECES.findall(line), 0
    while start < len(signs):
        end, used = start, 0
        while end < len(signs) and (used := used + _columns(signs[end])) <= room:
            end += 1
        end = max(end, start + 1)
        if end < len(signs):
            middle = (start + end) // 2
            end = next((at for at in range(end, middle, -1) if signs[at] == " " != signs[at - 1]), end)
            seen = end
            while seen > start and signs[seen - 1] == " ":
                seen -= 1
            end = seen if seen > start else end
        yield "".join(signs[start:end])
        start = end
    if not signs:
        yield ""


def _columns(piece: str) -> int:
    return len(piece) if piece.isascii() else sum(1 if char.isascii() else 2 for char in piece)
