"""Reasoning as the vendors of the chat-completions wire send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.providers.fields import mapping_of, mappings_of, text_of
from fsm_agent.support.texts import clean

_JOINED = ("text", "summary", "data")
"""Fields of a reasoning detail that arrive in pieces; the others (format, signature, id) are kept as last
seen."""

_FIELDS = frozenset(("reasoning", "reasoning_content", "reasoning_details", "extra_content"))


class Reasoning:
    """The reasoning of one reply: its text for display, and its details as they must be sent back."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._signed: Mapping[str, Any] | None = None
        """What else a vendor said of the reply as a whole, when there is a signature in it."""
        self._pieces: list[dict[str, list[str]]] = []
        """Of each detail the fields that arrive in pieces."""

    @property
    def text(self) -> str:
        """Return the reasoning that came so far."""
        return "".join(self._text)

    @property
    def blocks(self) -> tuple[Mapping[str, Any], ...]:
        """The details, the pieces of each joined, otherwise verbatim; and what is signed of the reply."""
        details = (
            detail | {key: clean("".join(pieces)) for key, pieces in joined.items()}
            for detail, joined in zip(self._details, self._pieces, strict=True)
        )
        signed = self._signed
        return (*details, *([{"type": "extra_content", "extra_content": signed}] if signed else ()))

    def add(self, text: str) -> None:
        """Add a piece of it."""
        self._text.append(text)

    def feed(self, delta: Mapping[str, Any]) -> str:
        """Take the reasoning fields of a delta; returns the text to show.

        Servers that send ``reasoning`` beside ``reasoning_details`` say it twice: the first that has text is
        used."""
        if _FIELDS.isdisjoint(delta):
            return ""
        details = mappings_of(delta.get("reasoning_details"))
        for part in details:
            self._merge(part)
        extra = mapping_of(delta.get("extra_content"))
        if any(mapping_of(one).get("thought_signature") for one in extra.values()):
            self._signed = extra
        for key in ("reasoning", "reasoning_content"):
            if text := text_of(delta.get(key)):
                return text
        return "".join(text_of(part.get("text")) or text_of(part.get("summary")) for part in details)

    def _merge(self, part: Mapping[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        place = (part.get("type"), part.get("index"))
        if last is None or place[1] is None or place != (last.get("type"), last.get("index")):
            self._details.append(last := {})
            self._pieces.append({})
        for key, value in part.items():
            if value is None:
                last.setdefault(key, None)
            elif key not in _JOINED:
                last[key] = value
            elif isinstance(value, str):
                self._pieces[-1].setdefault(key, []).append(value)


def split_content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a message's content: a string, or parts of types ``text`` and ``thinking``."""
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    texts, thoughts = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts.append(inner if isinstance(inner, str) else split_content(inner)[0])
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "\n".join(texts), "".join(thoughts)
