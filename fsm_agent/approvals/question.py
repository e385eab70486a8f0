"""The question that every interface shows before a call runs: the whole call.

Nothing is truncated or masked, because what is approved runs unchanged. A terminal, an editor's console and
the user's programs show ``Question.rows``; a web page lays out the parts itself. All texts are escaped by
``fsm_agent.approvals.visible``, so ``original`` restores what runs."""

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
    """May this call run? ``task``: the delegated task it belongs to, ``why``: the reason to ask, ``where``:
    its sandbox; each may be empty. ``remembered``: the pattern of a lasting answer, empty when only "once"
    and "deny" may be offered. ``characters`` and ``lines`` count all values."""

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
        """``encoding``: characters that it lacks are escaped."""
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
        told = (self.name, self.task, self.why, self.where, self.remembered)
        shown = (*told, *(f"{one.place} {one.shown}" for one in self.parts))
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
    """Say whether the pattern fits this tool and can be stored and read back. A text with an unpaired
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
