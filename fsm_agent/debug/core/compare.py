"""Two runs side by side: where they part, and how their moves line up after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from fsm_agent.conversation.effects import KINDS
from fsm_agent.debug.core.record import Record

Tag = Literal["same", "changed", "only_left", "only_right"]
_TAGS: dict[str, Tag] = {"equal": "same", "replace": "changed", "delete": "only_left", "insert": "only_right"}
ALIGNED = 2_000
"""Moves after the parting that are lined up one with another; what comes later is shown as changed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Moves ``left`` of the one run and ``right`` of the other, as (first, last); empty when last is below
    first."""

    tag: Tag
    left: tuple[int, int]
    right: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``parted``: the number of the first move that differs, ``None`` when all moves are the same; ``said``:
    the first move whose visit was answered otherwise, with the kinds of the requests. ``shared`` moves both
    turns have from the same ancestor."""

    left: str
    right: str
    parted: int | None
    said: int | None
    shared: int
    stretches: tuple[Stretch, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def compare(left: Record, right: Record) -> Comparison:
    """By the rows taken; what was said in the visits decides ``said``."""
    rows = [[step.row for step in record.steps()] for record in (left, right)]
    same = _common(*rows)
    shared = _shared(left, right)
    parted = same + 1 if same < max(map(len, rows)) else None
    stretches = [Stretch("same", (1, same), (1, same))] if same else []
    tails = [one[same : same + ALIGNED] for one in rows]
    for tag, a, b, c, d in SequenceMatcher(None, tails[0], tails[1], autojunk=False).get_opcodes():
        stretches.append(Stretch(_TAGS[tag], (same + a + 1, same + b), (same + c + 1, same + d)))
    rest = [(same + len(tail) + 1, len(one)) for tail, one in zip(tails, rows, strict=True)]
    if any(first <= last for first, last in rest):
        stretches.append(Stretch("changed", rest[0], rest[1]))
    return Comparison(
        left.turn_id, right.turn_id, parted, _said(left, right, shared, same), shared, tuple(stretches)
    )


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def _shared(left: Record, right: Record) -> int:
    """Moves that are the same rows of the database in both."""
    count = 0
    for one, other in zip(left.parts, right.parts, strict=False):
        if (one.turn, one.first) != (other.turn, other.first):
            break
        ends = [part.last for part in (one, other) if part.last is not None]
        count = min(ends) if ends else min(left.count, right.count)
        if one.last != other.last:
            break
    return min(count, left.count, right.count)


def _said(left: Record, right: Record, shared: int, same: int) -> int | None:
    for at in range(shared, min(same + 1, left.count, right.count)):
        if _answers(left, at) != _answers(right, at):
            return at + 1
    return None


def _answers(record: Record, at: int) -> list[tuple[str, str]]:
    found = []
    for effect in record.visit(at):
        kind = KINDS.get(effect["kind"])
        if kind is None or kind.intent:  # of another table's requests every one is asked of the world
            reply = {k: v for k, v in (effect["reply"] or {}).items() if k not in ("seconds", "usage")}
            found.append((effect["kind"], repr(reply)))
    return found
