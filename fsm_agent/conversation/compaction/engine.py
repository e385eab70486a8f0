"""The strategy that shortens a conversation: ``ContextEngine`` as a port, and ``BuiltInEngine``, its
default.

An engine sends nothing itself. It chooses the rows to remove and writes the request for their summary; the
rows of the transition table choose and pay for the model, or continue without one."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from fsm_agent.conversation.compaction.plan import (
    Division,
    Plan,
    Protection,
    assemble,
    plan_compaction,
    plan_insisted,
)
from fsm_agent.conversation.compaction.summary import summary_prompt, summary_without_model, todos_to_carry
from fsm_agent.conversation.effects import LongContext
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import CHARS_PER_TOKEN, threshold
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
        carried = todos_to_carry(middle, rest)
        if most is not None:
            carried = shorten(carried, most // 3)
            text = shorten(text, most - len(carried))
        return assemble(Division(plan.rows[:first], middle, None, rest), text, carried)

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
            plan = plan_compaction(history, usual, context.goal)
        else:
            plan = plan_insisted(history, usual, context.goal, context.room)
        return plan if plan.size <= context.most else plan_compaction(history, usual, context.size)
