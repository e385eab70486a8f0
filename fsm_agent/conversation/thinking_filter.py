"""Keeping inline reasoning out of the live text: a filter that sees the text only in pieces."""

from __future__ import annotations

import re

from fsm_agent.support.texts import CLOSERS, ECHO, MARK, MOST_MARKS, TAGS

_HERE, _ON_A_LINE = re.compile(MARK, re.IGNORECASE), re.compile(f"(?m:^){MARK}", re.IGNORECASE)
_UNDECIDED = (*(f"<{name}>" for name in (*TAGS, ECHO)), "```", "~~~")
MOST_HELD = 1_000
"""Characters of one line; nobody indents a tag by more."""


class ThinkScrubber:
    """Splits streamed text into visible text and reasoning, as ``split_reasoning`` does with a whole text;
    what could still become a tag is held back until it is decided (CALL-05)."""

    def __init__(self) -> None:
        self._held = ""
        self._closer: re.Pattern[str] | None = None
        self._longest_closer = 0
        self._line_start = True
        self._fenced = False
        self._after_tag = False
        self._marks = 0

    def feed(self, delta: str) -> tuple[str, str]:
        """The (visible, reasoning) text that this piece decides."""
        if not (self._line_start or self._held or self._closer or self._after_tag) and "\n" not in delta:
            return delta, ""  # nearly always: a mark begins a line
        return self._decide(self._held + delta, final=False)

    def flush(self) -> tuple[str, str]:
        """What was still held back, at the end of the stream."""
        return self._decide(self._held, final=True)

    def _decide(self, text: str, *, final: bool) -> tuple[str, str]:
        visible: list[str] = []
        reasoning: list[str] = []
        at, before = 0, -1
        while before < at < len(text):
            before = at
            if self._closer is not None:
                at = self._thinking(text, at, final, reasoning)
            else:
                at = self._talking(text, at, final, visible)
        self._held = text[at:]
        return "".join(visible), "".join(reasoning)

    def _thinking(self, text: str, at: int, final: bool, reasoning: list[str]) -> int:
        """Take reasoning from ``at`` on; returns where it ends."""
        assert self._closer is not None
        if closer := self._closer.search(text, at):
            self._keep(text[at : closer.start()], reasoning)
            self._closer, self._line_start, self._after_tag = None, True, True
            return closer.end()
        end = len(text) if final else max(at, len(text) - self._longest_closer + 1)
        self._keep(text[at:end], reasoning)
        return end

    def _keep(self, thought: str, reasoning: list[str]) -> None:
        if self._closer is not CLOSERS[ECHO]:
            reasoning.append(thought)

    def _talking(self, text: str, at: int, final: bool, visible: list[str]) -> int:
        """Take visible text from ``at`` to the next mark; returns where that ends."""
        if self._after_tag:
            at = _end_of_newlines(text, at)
            self._after_tag = at == len(text)
        mark, line = None, at if self._line_start else text.find("\n", at) + 1
        if self._marks < MOST_MARKS and (line or self._line_start):
            mark = _HERE.match(text, line) or _ON_A_LINE.search(text, line)
        if mark is None:
            end = len(text) if final else self._decided(text, at)
        elif mark["tag"] and not self._fenced:
            visible.append(text[at : mark.start()])
            self._closer, self._longest_closer = CLOSERS[mark["tag"].lower()], len(mark["tag"]) + 3
            self._marks += 1
            return mark.end()
        else:
            self._fenced ^= mark["tag"] is None
            self._marks += 1
            end = text.find("\n", mark.end()) + 1 or len(text)
        visible.append(text[at:end])
        if end > at:
            self._line_start = text[end - 1] == "\n"
        return end

    def _decided(self, text: str, at: int) -> int:
        """Where the last line begins when it may still become a mark, else the end of the text."""
        line = max(at, text.rfind("\n", at) + 1)
        begun = text[line:].lstrip(" \t").lower() if len(text) - line <= MOST_HELD else "-"
        may_become = (line > at or self._line_start) and any(word.startswith(begun) for word in _UNDECIDED)
        return line if may_become and self._marks < MOST_MARKS else len(text)


def _end_of_newlines(text: str, at: int) -> int:
    while text.startswith("\n", at):
        at += 1
    return at
