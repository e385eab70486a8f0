"""Phase 2: where to cut. Boundaries fall between runs, so that no call is parted from its result.
(Why: decision 56.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import kind_of, weight

LEAST_TAIL = 3
"""Rows that stay behind unless a provider insists on less."""


@dataclass(frozen=True, slots=True)
class Division:
    """``front`` stays before the summary, ``middle`` is what it replaces, ``request`` is the newest user
    request when it would have gone with the middle, ``tail`` stays behind."""

    front: tuple[Message, ...]
    middle: tuple[Message, ...]
    request: Message | None
    tail: tuple[Message, ...]

    @property
    def kept(self) -> list[Message]:
        """The rows that stay."""
        return [*self.front, *([self.request] if self.request is not None else []), *self.tail]


def divide(
    history: Sequence[Message], *, front: int, tail_chars: int, tail_rows: int, soft_factor: float
) -> Division:
    """Cut a history. ``front`` rows are wanted before the summary, ``tail_chars`` characters and at least
    ``tail_rows`` rows behind it; a run that begins inside the budget may exceed it by ``soft_factor``."""
    newest = newest_request(history)
    start = _after_results(history, min(front, len(history) if newest is None else newest))
    end = _tail_start(history, tail_chars, tail_rows, soft_factor)
    end = max(start, _with_visible_answer(history, end, tail_chars, soft_factor))
    middle = tuple(history[start:end])
    request = history[newest] if newest is not None and start <= newest < end else None
    return Division(
        front=tuple(history[:start]),
        middle=tuple(row for row in middle if row is not request),
        request=request,
        tail=tuple(history[end:]),
    )


def size_of(rows: Sequence[Message]) -> int:
    """Characters that go out for these rows, roughly; a part that is no text counts as ``weight`` says."""
    return sum(_size(row) for row in rows)


def _size(row: Message) -> int:
    text = row.text if row.sent is None else row.sent
    parts = () if isinstance(row.content, str | None) else row.content
    others = sum(weight(part) for part in parts if kind_of(part))
    return len(text) + sum(len(call.arguments) + len(call.name) for call in row.tool_calls) + others + 20


def newest_request(history: Sequence[Message]) -> int | None:
    """Its place; a summary is no request of the user's."""
    found = (
        i for i in range(len(history) - 1, -1, -1) if history[i].role == "user" and not history[i].summary
    )
    return next(found, None)


def _after_results(history: Sequence[Message], start: int) -> int:
    while start < len(history) and history[start].role == "tool":
        start += 1
    return start


def _tail_start(history: Sequence[Message], budget: int, least: int, soft_factor: float) -> int:
    """Walk back run by run while the budget lasts."""
    start, size = len(history), 0
    while start > 0:
        begin = _run_start(history, start - 1)
        size += size_of(history[begin:start])
        enough = len(history) - start >= least
        if enough and (size > budget * soft_factor or size - size_of(history[begin:start]) >= budget):
            break
        start = begin
    return start


def _run_start(history: Sequence[Message], index: int) -> int:
    """Back to the assistant row whose calls these results answer; a user row stays with the reply behind
    it."""
    while index > 0 and history[index].role == "tool":
        index -= 1
    return index


def _with_visible_answer(history: Sequence[Message], end: int, budget: int, soft_factor: float) -> int:
    """The newest text that the assistant said stays too, with the request it answers, unless that costs far
    too much."""
    spoken = (
        i
        for i in range(len(history) - 1, -1, -1)
        if history[i].role == "assistant" and history[i].text.strip()
    )
    newest = next(spoken, None)
    if newest is None or newest >= end:
        return end
    begin = (
        newest - 1
        if newest > 0 and history[newest - 1].role == "user" and not history[newest - 1].summary
        else newest
    )
    return begin if size_of(history[begin:]) <= budget * soft_factor else end
