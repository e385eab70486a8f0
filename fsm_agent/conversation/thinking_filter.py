"""Keeping inline reasoning out of the live text: a filter that sees the text only in pieces."""

from __future__ import annotations

import re

_NAMES = ("think", "thinking", "reasoning", "thought", "scratchpad", "reasoning_scratchpad")
_TAG = re.compile(rf"<({'|'.join(_NAMES)})>", re.IGNORECASE)
_FENCES = ("```", "~~~")
_UNDECIDED = (*(f"<{name}>" for name in _NAMES), *_FENCES)


class ThinkScrubber:
    """Splits streamed text into visible text and reasoning. A tag opens only at the start of a line, outside
    code fences; what could still become a tag is held back until it is decided."""

    def __init__(self) -> None:
        self._held = ""
        self._closer: str | None = None
        self._line_start = True
        self._fenced = False
        self._after_tag = False

    def feed(self, delta: str) -> tuple[str, str]:
        """The (visible, reasoning) text that this piece decides."""
        self._held += delta
        return self._decide(final=False)

    def flush(self) -> tuple[str, str]:
        """What was still held back, at the end of the stream."""
        return self._decide(final=True)

    def _decide(self, *, final: bool) -> tuple[str, str]:
        visible: list[str] = []
        reasoning: list[str] = []
        while self._held:
            before = len(self._held)
            if self._closer is not None:
                reasoning.append(self._thinking(final))
            else:
                visible.append(self._talking(final))
            if len(self._held) == before:
                break
        return "".join(visible), "".join(reasoning)

    def _thinking(self, final: bool) -> str:
        assert self._closer is not None
        end = self._held.lower().find(self._closer)
        if end >= 0:
            text, self._held = self._held[:end], self._held[end + len(self._closer) :]
            self._closer, self._line_start, self._after_tag = None, True, True
            return text
        keep = 0 if final else min(len(self._held), len(self._closer) - 1)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _talking(self, final: bool) -> str:
        if self._after_tag:
            self._held = self._held.lstrip("\n")
            self._after_tag = not self._held
        if self._line_start:
            start = self._held.lstrip(" \t")
            if not self._fenced and (tag := _TAG.match(start)) is not None:
                self._held, self._closer = start[tag.end() :], f"</{tag.group(1).lower()}>"
                return ""
            if not final and any(word.startswith(start.lower()) for word in _UNDECIDED):
                return ""
            self._fenced ^= start.startswith(_FENCES)
        newline = self._held.find("\n")
        end = len(self._held) if newline < 0 else newline + 1
        text, self._held = self._held[:end], self._held[end:]
        self._line_start = newline >= 0 if text else self._line_start
        return text
