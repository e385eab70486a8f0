"""What a person is shown of a call before it may run: all of it, for every face that asks.

Nothing is cut and nothing is masked, because what is approved runs as it is. A terminal, the console of an
editor and programs of the user's show ``Question.rows``; a page lays the parts out in its own way. Every text
is as ``fsm_agent.approvals.visible`` shows it, so ``original`` gives back what runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.approvals.rules import Pattern
from fsm_agent.approvals.visible import BEGINS, ESCAPE, NAMED, VALUE, QuestionRow, beside, broken, visible
from fsm_agent.conversation.effects import AskApproval, RunTool
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact

LONGER = '"session", "always" or "never"'
"""Answers that hold for longer than once, as a face offers them."""
ESCAPES = r"    (\x1b and the like stand for unseen characters, \x5c for a backslash)"
LABEL = 16
"""Columns for the names of arguments; a longer one stands above its value."""
FRAME = 6
"""Lines of a question beside the call itself; with more lines than a screen has left, it says its size and
its head again."""
_HASH = re.compile(r"\(#[0-9a-f]{64}\)\Z")
"""A pattern for one call, which a person cannot read."""


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """A value of a call. ``place`` is where it stands: ``command``, ``edits[0].old``. ``words``: a text, else
    JSON."""

    place: str
    shown: str
    words: bool


@dataclass(frozen=True, slots=True)
class Question:
    """May this call run? ``task`` is the delegated task that it is for, if any, ``why`` what is special about
    it, and ``where`` it would run if its tool has a sandbox. ``remembered`` is the pattern that an answer for
    longer than once would hold for, empty when the call cannot be remembered: then only "once" and "deny" may
    be offered. ``characters`` and ``lines`` are those of all values."""

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
        """``encoding``: what it cannot carry is escaped."""
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
        """All that a person reads before they answer, on a screen of so many columns and lines. ``longer``:
        what there is to say for longer than once."""
        label = min(LABEL, max((len(part.place) for part in self.parts), default=0))
        call = [row for part in self.parts for row in _part(part, label, width)]
        long = len(call) + FRAME > height
        size = f" {self.characters:,} characters in {self.lines:,} lines" if long else ""
        head = f"  {self.name} wants to run{size}"
        before = [_sentence(f"{head}:" if call else f"{head}, without arguments")]
        if self.task:
            before += _labelled("(for the delegated task)", self.task, width)
        if self.where:
            before += _labelled("(runs)", self.where, width)
        if self.why:
            before += _labelled("(asked because)", self.why, width)
        after = [_sentence(f"{head}, shown above")] if long else []
        told = (self.name, self.task, self.why, self.where, self.remembered)
        shown = (*told, *(f"{one.place} {one.shown}" for one in self.parts))
        if any(ESCAPE.search(text) for text in shown):
            after.append(QuestionRow(ESCAPES))
        if self.remembered:
            alone = " this call alone" if _HASH.search(self.remembered) else ""
            after += _labelled(f"{longer} would remember{alone}", self.remembered, width)
        return [*before, *call, *after]

    def text(self, width: int = 100, height: int = 25, longer: str = LONGER) -> str:
        """The rows as one text."""
        return Exact("\n".join(map(str, self.rows(width, height, longer))))

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> Question:
        """Return what ``to_dict`` wrote."""
        return cls(**{**form, "parts": tuple(QuestionPart(**part) for part in form["parts"])})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, whose texts no masking changes."""
        form: dict[str, Any] = exact(asdict(self))
        return form


def exact(value: Any) -> Any:
    """JSON values of which no masking changes a text."""
    match value:
        case str():
            return Exact(value)
        case Mapping():
            return {name: exact(one) for name, one in value.items()}
        case list() | tuple():
            return [exact(one) for one in value]
    return value


def rememberable(request: AskApproval) -> bool:
    """Does the pattern stand for this very tool, and can it be stored and read again? A text with half a
    character cannot."""
    try:
        pattern = Pattern.of(request.pattern)
        request.pattern.encode()
        json.dumps(dict(request.arguments), ensure_ascii=False, default=repr).encode()
    except (ConfigError, UnicodeEncodeError):
        return False
    return pattern.tool == request.name and not set(request.name) & set("*?[")


def _values(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(place, text, is it a text?) of every value: texts as they are, also those in lists and objects; the
    rest as JSON."""
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
    """``name``, ``.name``, or ``["any name"]`` in the form of JSON, which has only visible ASCII."""
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


def _labelled(label: str, shown: str, width: int) -> list[QuestionRow]:
    """Beside the label where it fits on that row, else below."""
    row = beside(label, shown, width)
    return row if len(row) == 1 else [QuestionRow(f"    {label}"), *beside(" ", shown, width)]
