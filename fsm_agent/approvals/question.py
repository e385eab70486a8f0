"""What a person is shown of a call before it may run: all of it, in parts, for every face that asks.

Nothing is cut and nothing is masked, because what is approved runs as it is. Each face lays the parts out in
its own way; a text in them is as ``fsm_agent.approvals.visible`` shows it, so ``original`` gives back what
runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsm_agent.approvals.rules import Pattern
from fsm_agent.approvals.visible import visible
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """A value of a call. ``place`` is where it stands: ``command``, ``edits[0].old``. ``words``: a text, else
    JSON."""

    place: str
    shown: str
    words: bool


@dataclass(frozen=True, slots=True)
class Question:
    """May this call run? ``task`` is the delegated task that it is for, if any, and ``why`` what is special
    about it. ``remembered`` is the pattern that an answer for longer than once would hold for, empty when the
    call cannot be remembered: then only "once" and "deny" may be offered. ``characters`` and ``lines`` are
    those of all values."""

    name: str
    task: str
    why: str
    parts: tuple[QuestionPart, ...]
    remembered: str
    characters: int
    lines: int

    @classmethod
    def of(cls, request: AskApproval, encoding: str = "utf-8") -> Question:
        """``encoding``: what it cannot carry is escaped."""
        values = list(_values(request.arguments))
        parts = tuple(QuestionPart(place, visible(text, encoding), words) for place, text, words in values)
        return cls(
            visible(request.name, encoding, lines=False),
            visible(request.origin, encoding),
            visible(request.why, encoding),
            parts,
            visible(request.pattern, encoding) if _rememberable(request) else "",
            sum(len(text) for _, text, _ in values),
            sum(text.count("\n") + 1 for _, text, _ in values),
        )


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


def _rememberable(request: AskApproval) -> bool:
    """Does the pattern stand for this very tool, and can it be stored and read again? A text with half a
    character cannot."""
    try:
        pattern = Pattern.of(request.pattern)
        request.pattern.encode()
        json.dumps(dict(request.arguments), ensure_ascii=False, default=repr).encode()
    except (ConfigError, UnicodeEncodeError):
        return False
    return pattern.tool == request.name and not set(request.name) & set("*?[")
