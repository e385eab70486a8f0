"""The question that every interface shows before a call runs: the whole call.

Nothing is truncated or masked, because what is approved runs unchanged. A terminal, an editor's console and
the user's programs show ``Question.rows``; a web page lays out the parts itself. All texts are escaped
(``visible``), so that ``original`` restores what runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
from unicodedata import category

from fsm_agent.approvals.rules import Pattern
from fsm_agent.conversation.effects import AskApproval, RunTool
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact
from fsm_agent.support.texts import escape

# ----------------------------------------------------------------------------------------------------
# Text made visible, so that what a person reads means exactly one text, and ``original`` gives that
# text back.
#
# =============================  =========================================================================
# shown                          means
# =============================  =========================================================================
# ``\x1b`` ``\u202e`` …          the character with this number: it controls, is invisible or looks blank,
#                                or a letter that a screen would move to another place
# ``\x20⟨5,000 times⟩``          that character 5,000 times in a row
# ``↵`` and a new line           a newline
# ``⇥`` and three blanks         a tab
# anything else                  itself; a backslash that would be read as an escape is shown as ``\x5c``
# =============================  =========================================================================
#
# Nothing is ever left out: the person who decides whether something may run has to see all of it.
#
# A question displays exactly one call. Deleting what could control a terminal also deleted commands. The
# display is reversible instead: escapes for every character that controls, is invisible, or looks like a
# blank; `\x5c` only for a backslash that would read as an escape; foreign text only behind a gutter, so it
# cannot imitate the question. Nothing is cut or masked. Runs of 40 or more blanks, newlines, or invisible
# characters are counted. Right-to-left letters become escapes where a screen would reorder them. A pattern
# that does not match this tool, or cannot be stored, is not offered. Not covered: look-alike letters.


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
"""Matches what is or may be shown as an escape, or looks like one after a backslash."""
ESCAPE = re.compile(rf"\\{_CODE}(?:⟨[0-9,]+ times⟩)?")
"""An escape in visible text."""
_SHOWN = re.compile(
    rf"(?P<line>(?:{NEWLINE}|\\x0a)\n)|(?P<tab>{TAB} {{3}})|\\(?P<code>{_CODE})(?:⟨(?P<times>[0-9,]+)"
    r" times⟩)?"
)


def visible(text: str, encoding: str = "utf-8", *, lines: bool = True) -> str:
    """Return the visible form of a text. Characters that ``encoding`` lacks are escaped, too. Without
    ``lines`` the result is one line."""
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
        escaped = char in " \n\t" or _unseen(char, self.encoding) or category(char)[0] == "M"
        if not escaped and start not in self.moved:
            return part
        last = self._one(char, text, start) if char == "\n" and self.lines else ""
        times = len(part) - bool(last)
        return (f"{escape(char)}⟨{times:,} times⟩" if self.marked else escape(char) * times) + last

    def _ambiguous(self, text: str, end: int) -> bool:
        """Return whether a backslash that ends here would merge with what follows."""
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
        """Return whether this mark is one of at most three on a letter, as scripts use them. Elsewhere marks
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
    """Return whether the character has no visible sign of its own. A blank has one."""
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


# ----------------------------------------------------------------------------------------------------
# The question, and its answers.


LONGER = '"session", "always" or "never"'
"""Lasting answers, as an interface offers them."""
ESCAPES = r"    (\x1b and the like are unseen characters, \x5c is a backslash)"
LABEL = 16
"""Columns for argument names; a longer name gets its own row."""
FRAME = 6
"""Rows of a question besides the call; when a call is too long for the screen, its size and heading are
repeated at the end."""
_HASH = re.compile(r"\(#[0-9a-f]{64}\)\Z")
"""A pattern for a single call, which a person cannot read."""


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """A value of a call. ``place``: its path, such as ``command`` or ``edits[0].old``. ``words``: a text,
    else JSON."""

    place: str
    shown: str
    words: bool


@dataclass(frozen=True, slots=True)
class Question:
    """Asks whether a call may run. ``task``: the delegated task it belongs to, ``why``: the reason to ask,
    ``where``: its sandbox; each may be empty. ``remembered``: the pattern of a lasting answer, empty when
    only "once" and "deny" may be offered. ``characters`` and ``lines`` count all values."""

    name: str
    task: str
    why: str
    where: str
    parts: tuple[QuestionPart, ...]
    remembered: str
    characters: int
    lines: int

    @classmethod
    def of(cls, request: AskApproval | RunTool, encoding: str = "utf-8") -> Question:
        """Build the question for a request. Characters that ``encoding`` lacks are escaped."""
        values = list(_values(request.arguments))
        parts = tuple(QuestionPart(place, visible(text, encoding), words) for place, text, words in values)
        task = why = where = pattern = ""
        if isinstance(request, AskApproval):
            task, why, where = request.origin, request.why, request.where
            pattern = request.pattern if rememberable(request) else ""
        return cls(
            visible(request.name, encoding, lines=False),
            visible(task, encoding),
            visible(why, encoding),
            visible(where, encoding),
            parts,
            visible(pattern, encoding),
            sum(len(text) for _, text, _ in values),
            sum(text.count("\n") + 1 for _, text, _ in values),
        )

    def rows(self, width: int = 100, height: int = 25, longer: str = LONGER) -> list[QuestionRow]:
        """Return everything to read before answering, for a screen of ``width`` columns and ``height``
        lines. ``longer``: the lasting answers on offer."""
        label = min(LABEL, max((len(part.place) for part in self.parts), default=0))
        call = [row for part in self.parts for row in _part(part, label, width)]
        long = len(call) + FRAME > height
        size = f" {self.characters:,} characters in {self.lines:,} lines" if long else ""
        head = f"  {self.name} wants to run{size}"
        before = [_sentence(f"{head}:" if call else f"{head}, without arguments")]
        if self.task:
            before += _label_rows("(for the delegated task)", self.task, width)
        if self.where:
            before += _label_rows("(runs)", self.where, width)
        if self.why:
            before += _label_rows("(asked because)", self.why, width)
        after = [_sentence(f"{head}, shown above")] if long else []
        texts = (self.name, self.task, self.why, self.where, self.remembered)
        shown = (*texts, *(f"{one.place} {one.shown}" for one in self.parts))
        if any(ESCAPE.search(text) for text in shown):
            after.append(QuestionRow(ESCAPES))
        if self.remembered:
            alone = " this call alone" if _HASH.search(self.remembered) else ""
            after += _label_rows(f"{longer} would remember{alone}", self.remembered, width)
        return [*before, *call, *after]

    def text(self, width: int = 100, height: int = 25, longer: str = LONGER) -> str:
        """Return the rows as one text."""
        return Exact("\n".join(map(str, self.rows(width, height, longer))))

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> Question:
        """Restore a question from ``to_dict``."""
        return cls(**{**form, "parts": tuple(QuestionPart(**part) for part in form["parts"])})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values that masking leaves unchanged."""
        form: dict[str, Any] = exact(asdict(self))
        return form


def exact(value: Any) -> Any:
    """Return JSON values whose texts masking leaves unchanged."""
    match value:
        case str():
            return Exact(value)
        case Mapping():
            return {name: exact(one) for name, one in value.items()}
        case list() | tuple():
            return [exact(one) for one in value]
    return value


def rememberable(request: AskApproval) -> bool:
    """Return whether the pattern fits this tool and can be stored and read back. A text with an unpaired
    surrogate cannot."""
    try:
        pattern = Pattern.of(request.pattern)
        request.pattern.encode()
        json.dumps(dict(request.arguments), ensure_ascii=False, default=repr).encode()
    except (ConfigError, UnicodeEncodeError):
        return False
    return pattern.tool == request.name and not set(request.name) & set("*?[")


def _values(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield (place, text, whether it is a text) for every value: texts unchanged, also inside lists and
    objects; the rest as JSON."""
    waiting = [(_step(name, first=True), value) for name, value in reversed(list(arguments.items()))]
    while waiting:
        place, value = waiting.pop()
        match value:
            case str():
                yield place, value, True
            case Mapping() if value:
                waiting += [(place + _step(name), one) for name, one in reversed(list(value.items()))]
            case [*_] if any(isinstance(one, str | list | tuple | Mapping) for one in value):
                waiting += [(f"{place}[{index}]", one) for index, one in reversed(list(enumerate(value)))]
            case _:
                yield place, json.dumps(value, default=repr), False


def _step(name: Any, first: bool = False) -> str:
    """Return ``name``, ``.name``, or ``["any name"]`` as JSON, which has only visible ASCII."""
    text = str(name)
    if text.isidentifier() and text.isascii():
        return text if first else f".{text}"
    return f"[{json.dumps(text)}]"


def _sentence(words: str) -> QuestionRow:
    return QuestionRow(words, sentence=True)


def _part(part: QuestionPart, label: int, width: int) -> list[QuestionRow]:
    sign = BEGINS if part.words else VALUE
    if len(part.place) <= label:
        return beside(part.place.ljust(label), part.shown, width, sign)
    return [
        *(QuestionRow(f"    {NAMED} ", piece) for piece in broken(part.place, width - 6)),
        *beside(" ", part.shown, width, sign),
    ]


def _label_rows(label: str, shown: str, width: int) -> list[QuestionRow]:
    """Put a text beside its label if it fits on that row, else below."""
    row = beside(label, shown, width)
    return row if len(row) == 1 else [QuestionRow(f"    {label}"), *beside(" ", shown, width)]
