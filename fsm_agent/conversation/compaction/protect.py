"""How much a compaction leaves alone, and how much less when the provider has refused what there is.

Everything here is reckoned before a model is paid. A compaction that is only wished for protects what the
settings say. After a refusal plans are tried in this order, and the first that fits into the room that is
left for the history is taken:

1. what the settings protect; 2. no first rows, and three rows behind the summary; 3. only the last reply with
its results; 4. the same, its texts cut to one length; 5. nothing but the user's newest request, which always
stays word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsm_agent.conversation.compaction.assemble import BRIDGE, END, PREFIX
from fsm_agent.conversation.compaction.cut import cut_length
from fsm_agent.conversation.compaction.divide import LEAST_TAIL, Division, divide, size_of
from fsm_agent.conversation.compaction.prune import pruned
from fsm_agent.conversation.messages import Message

SUMMARY_CHARS, LEAST_SUMMARY = 8_000, 1_000
"""What a summary is expected to take at most, and what it may always take."""
FRAME = size_of([Message("user", PREFIX + END), *[Message("assistant", BRIDGE)] * 2])
"""Characters around a summary."""


@dataclass(frozen=True, slots=True)
class Protection:
    """``front`` rows stay before the summary, at least ``tail_rows`` rows and about ``tail_chars`` characters
    behind it, a run of rows up to ``soft_factor`` times as many. The last ``unpruned`` rows keep their long
    results."""

    front: int
    tail_rows: int
    tail_chars: int
    unpruned: int
    soft_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``division`` of ``rows``, the pruned history; without a middle nothing is summarised. ``size``:
    characters that are expected to be left. ``summary``: those that a summary may have, if there is a limit.
    ``cut``: the length to which texts of the tail are cut, if they are."""

    rows: tuple[Message, ...]
    division: Division
    size: int
    summary: int | None = None
    cut: int | None = None

    @property
    def expected(self) -> int:
        """Characters that the summary was expected to take."""
        return self.size - size_of(self.division.kept) - FRAME


def planned(history: Sequence[Message], protection: Protection, goal: int) -> Plan:
    """Pruning, and a summary when that alone does not get the history down to ``goal`` characters."""
    rows = tuple(pruned(history, protection.unpruned))
    if size_of(rows) <= goal:
        return Plan(rows, Division(rows, (), None, ()), size_of(rows))
    division = divide(
        rows,
        front=protection.front,
        tail_chars=protection.tail_chars,
        tail_rows=protection.tail_rows,
        soft_factor=protection.soft_factor,
    )
    return Plan(rows, division, size_of(division.kept) + _expected(division))


def insisted(history: Sequence[Message], usual: Protection, goal: int, room: int) -> Plan:
    """The plan that protects most and leaves at most ``room`` characters; if none does, the one that leaves
    least."""
    last = _last_run(history)
    few = replace(
        usual, front=0, tail_rows=LEAST_TAIL, tail_chars=min(usual.tail_chars, room // 4), unpruned=LEAST_TAIL
    )
    for protection in (usual, few, Protection(front=0, tail_rows=1, tail_chars=0, unpruned=last)):
        plan = planned(history, protection, min(goal, room))
        if plan.size <= room:
            return _within(plan, room)
    return _cut(plan, room) or _within(planned(history, Protection(0, 0, 0, unpruned=last), 0), room)


def _cut(plan: Plan, room: int) -> Plan | None:
    """The last reply is kept, its texts are cut; nothing when they would be cut to too little, or are the
    user's request."""
    division = plan.division
    if not division.tail or any(row.role == "user" for row in division.tail):
        return None
    summary = min(_expected(division), FRAME + max(LEAST_SUMMARY, room // 3)) if division.middle else 0
    others = room - summary - size_of(division.kept) + size_of(division.tail)
    length = cut_length(division.tail, others)
    return (
        None
        if length is None
        else replace(plan, size=room, summary=summary - FRAME if summary else None, cut=length)
    )


def _within(plan: Plan, room: int) -> Plan:
    """The summary may have what the rows that stay leave of the room."""
    summary = max(LEAST_SUMMARY, room - size_of(plan.division.kept) - FRAME)
    return replace(plan, size=min(plan.size, size_of(plan.division.kept) + FRAME + summary), summary=summary)


def _expected(division: Division) -> int:
    """Characters of the summary that replaces the middle, as far as they can be known before it is made."""
    if not division.middle:
        return 0
    return FRAME + max(LEAST_SUMMARY, min(SUMMARY_CHARS, size_of(division.middle) // 2))


def _last_run(history: Sequence[Message]) -> int:
    """How many rows the last reply and its results are."""
    return next(
        (number for number, row in enumerate(reversed(history), 1) if row.role != "tool"), len(history)
    )
