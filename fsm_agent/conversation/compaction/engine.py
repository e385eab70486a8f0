"""The strategy that shortens a conversation: ``ContextEngine`` as a port, and ``BuiltInEngine``, its
default.

An engine sends nothing itself. It chooses the rows to remove and writes the request for their summary; the
rows of the transition table choose and pay for the model, or continue without one."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fsm_agent.conversation.compaction.plan import Division, Plan, Protection, assembled, insisted, planned
from fsm_agent.conversation.compaction.summary import carried_todos, summary_prompt, summary_without_model
from fsm_agent.conversation.effects import LongContext
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import threshold
from fsm_agent.conversation.wire import CHARS_PER_TOKEN
from fsm_agent.settings.model import Compression
from fsm_agent.support.texts import shorten


class ContextEngine(Protocol):
    """Makes conversations shorter, in three steps. Each may be asynchronous, or block (it then runs in a
    thread); several turns may ask at once.

    What a step answers is in the journal, so that a turn which is resumed does not ask again. A step that
    raises, takes longer than ``compression.engine_timeout``, or answers what cannot be used is done by
    ``BuiltInEngine``, and a line says so."""

    def cut(self, context: LongContext) -> Awaitable[Sequence[int]] | Sequence[int]:
        """Return the places in ``context.rows`` of the rows that a summary is to replace, in order; none when
        no model need be asked. The newest message of the user is never among them, and no call without its
        results."""

    def prompt(self, context: LongContext, goes: Sequence[int], window: int) -> Awaitable[str] | str:
        """Return the request for a summary of the rows at the places ``goes``, for a model with this window
        in tokens. Called again for each model that is tried."""

    def rows(
        self, context: LongContext, goes: Sequence[int], summary: str
    ) -> Awaitable[Sequence[Message]] | Sequence[Message]:
        """Return the shorter conversation: rows of ``context.rows``, the same objects, and new ones.
        ``summary``: what a model answered; empty when none was asked or none gave any. The newest message of
        the user stays, and what is written in its place is no message of the user: see ``summary_row``."""


class BuiltInEngine:
    """The four phases of ``fsm_agent.conversation.compaction``. An engine may have one and do only a part
    itself. ``settings``: what is protected, ``compression`` of the settings."""

    def __init__(self, settings: Compression | None = None) -> None:
        self._settings = settings or Compression()

    def cut(self, context: LongContext) -> tuple[int, ...]:
        """Return the places of the rows in the middle; none when pruning old tool results is enough."""
        plan = self.plan(context)
        middle = set(plan.division.middle)
        return tuple(place for place, row in enumerate(plan.rows) if row in middle)

    def prompt(self, context: LongContext, goes: Sequence[int], window: int) -> str:
        """Return a request with headings; an earlier summary among the rows is updated."""
        rows = self.plan(context).rows
        most = int(window * 0.7) * CHARS_PER_TOKEN
        middle = [rows[place] for place in goes]
        return summary_prompt(middle, window=window, focus=context.focus, most_chars=most)

    def rows(self, context: LongContext, goes: Sequence[int], summary: str) -> list[Message]:
        """Return what was in front of the rows that go, a row with the summary, and what was behind it, all
        of it pruned. Without a summary a list of what was done takes its place, no longer than was
        planned."""
        plan = self.plan(context)
        if not goes:
            return list(plan.rows)
        gone, first = set(goes), goes[0]
        middle = tuple(plan.rows[place] for place in goes)
        rest = tuple(row for place, row in enumerate(plan.rows) if place > first and place not in gone)
        most = plan.summary if summary else plan.expected
        text = (summary or summary_without_model(middle)) + context.preserved
        carried = carried_todos(middle, rest)
        if most is not None:
            carried = shorten(carried, most // 3)
            text = shorten(text, most - len(carried))
        return assembled(Division(plan.rows[:first], middle, None, rest), text, carried)

    def plan(self, context: LongContext) -> Plan:
        """Return what to do, by what can be known before it is paid for; pruning at least."""
        rules, history = self._settings, context.rows
        usual = Protection(
            front=0 if context.compacted_before else rules.protect_first,
            tail_rows=min(rules.tail_floor, max(3, len(history) // 2)),
            tail_chars=min(
                int(threshold(context.window, rules) * rules.tail_ratio) * CHARS_PER_TOKEN, context.goal
            ),
            unpruned=rules.tail_floor,
            soft_factor=rules.soft_factor,
        )
        if context.room is None:
            plan = planned(history, usual, context.goal)
        else:
            plan = insisted(history, usual, context.goal, context.room)
        return plan if plan.size <= context.most else planned(history, usual, context.size)


# When automatic compaction is left alone: after failures, and when it does not help.
#
# Figures (COMP-08..10): it stops after two compactions that left the prompt over the threshold or changed
# nothing, and after two summaries that had to be made without a model; after a failed summary it rests 600
# s when there is no provider, 60 s for a passing fault, 30 s for a broken reply, and 60, 300, 900 s for
# timeouts in a row.


INEFFECTIVE, FALLBACKS = 2, 2
RESTS = {"no_provider": 600.0, "passing": 60.0, "broken": 30.0}
TIMEOUTS = (60.0, 300.0, 900.0)

Fault = Literal["no_provider", "passing", "broken", "timeout"]
_FAULTS: dict[str, Fault] = {
    "auth": "no_provider",
    "auth_permanent": "no_provider",
    "billing": "no_provider",
    "model_not_found": "no_provider",
    "invalid_response": "broken",
    "empty": "broken",
    "timeout": "timeout",
    "stale": "timeout",
}


def fault_of(failure_class: str) -> Fault:
    """Which rest an error class of the summary call asks for."""
    return _FAULTS.get(failure_class, "passing")


BY_HAND = "compact by hand (/compact), or begin a new session"
NO_ROOM = f"compactions did not make room; off until a reply shows that there is some, or {BY_HAND}"
NO_MODEL = f"summaries had to be made without a model; off in this session: {BY_HAND}"


@dataclass(slots=True)
class CompactionGuard:
    """What a session remembers of its compactions. ``judged`` is false between a compaction and the next real
    count."""

    done: int = 0
    ineffective: int = 0
    without_model: int = 0
    timeouts: int = 0
    resting_until: float = 0.0
    judged: bool = True

    def blocked(self, now: float) -> str:
        """Why no automatic compaction should be made now; empty when it may."""
        if self.ineffective >= INEFFECTIVE:
            return f"the last {self.ineffective} {NO_ROOM}"
        if self.without_model >= FALLBACKS:
            return f"the last {self.without_model} {NO_MODEL}"
        if now < self.resting_until:
            return f"the summary call failed; resting for {self.resting_until - now:.0f} s"
        return ""

    def succeeded(self, *, with_model: bool) -> None:
        """Note a compaction; ``with_model`` is false when its summary was made without one."""
        self.done += 1
        self.timeouts, self.judged = 0, False
        self.without_model = 0 if with_model else self.without_model + 1

    def nothing_gained(self) -> None:
        """Note a compaction that changed nothing."""
        self.ineffective += 1

    def summary_failed(self, fault: Fault, now: float) -> None:
        """Note a summary that failed, and rest. ``now`` in seconds since the epoch."""
        rest = RESTS.get(fault)
        if rest is None:
            rest = TIMEOUTS[min(self.timeouts, len(TIMEOUTS) - 1)]
            self.timeouts += 1
        self.resting_until = now + rest

    def read(self, *, over: bool) -> None:
        """A real count of prompt tokens came in: over the threshold or not."""
        if not over:
            self.ineffective = 0
        elif not self.judged:
            self.ineffective += 1
        self.judged = True

    def forced(self) -> None:
        """A person asked for a compaction: what was held against it is forgotten."""
        self.ineffective = self.without_model = self.timeouts = 0
        self.resting_until = 0.0
