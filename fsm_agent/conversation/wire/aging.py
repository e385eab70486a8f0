"""What rows lose once newer rows are there. Where nothing ages, request N stays a prefix of request N+1 for
ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fsm_agent.conversation.hosted import without_thoughts
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import Part, kind_of
from fsm_agent.conversation.wire.parts import line

KEPT_IMAGES = 3
"""Images in tool results that are still sent, the newest ones (FMT-13)."""


@dataclass(frozen=True, slots=True)
class Aging:
    """``outdates``: do the rows from ``start`` on change how rows before them are written? Costs time
    proportional to what is new unless they do. ``aged``: the rows from ``start`` on as they are written
    now."""

    outdates: Callable[[Sequence[Message], int], bool]
    aged: Callable[[Sequence[Message], int], Sequence[Message]]


def _nothing(history: Sequence[Message], start: int) -> bool:
    return False


def _rest(history: Sequence[Message], start: int) -> Sequence[Message]:
    return history[start:]


AGELESS = Aging(_nothing, _rest)


def outdates(history: Sequence[Message], start: int) -> bool:
    """A user's word ends the tool loop whose thoughts were kept; one more image pushes an older one out."""
    new = history[start:]
    if any(_speaks(message) for message in new) and _thoughts_before(history, start):
        return True
    return any(map(_images, new)) and sum(map(_images, history)) > KEPT_IMAGES


def aged(history: Sequence[Message], start: int) -> Sequence[Message]:
    """Thoughts only behind the last word of the user, and only the newest images of tools."""
    rows = list(history[start:])
    spoken, left = False, KEPT_IMAGES
    for index in range(len(rows) - 1, -1, -1):
        message = rows[index]
        if spoken and message.blocks:
            message = replace(message, blocks=without_thoughts(message.blocks))
        if (count := _images(message)) > left:
            message = _without_images(message, count - left)
        left = max(0, left - count)
        rows[index], spoken = message, spoken or _speaks(message)
    return rows


CURRENT_LOOP = Aging(outdates, aged)
"""Signed thoughts belong to the tool loop they were thought in, and old screenshots tell nothing any more."""


def _speaks(message: Message) -> bool:
    return message.role == "user" and message.wire


def _thoughts_before(history: Sequence[Message], start: int) -> bool:
    """Does the tool loop that ends at ``start`` have thoughts?"""
    for index in range(start - 1, -1, -1):
        if _speaks(history[index]):
            return False
        if history[index].blocks:
            return True
    return False


def _images(message: Message) -> int:
    if message.role != "tool" or isinstance(message.content, str | None):
        return 0
    return sum(map(_is_image, message.content))


def _is_image(part: Part) -> bool:
    return kind_of(part) == "image"


def _without_images(message: Message, count: int) -> Message:
    """The message with words in place of its first ``count`` images."""
    old = iter(range(count))
    return message.reworded(
        lambda part: (
            line(part, "not sent again, newer ones are")
            if _is_image(part) and next(old, None) is not None
            else ""
        )
    )
