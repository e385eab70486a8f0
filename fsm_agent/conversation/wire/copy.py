"""The bytes of a growing conversation, made once a row.

``WireCopy`` keeps the bytes of every finished run and adds only what is new, so a request costs time
proportional to what was appended, and request N is a byte prefix of request N+1 as long as nothing is
recovered from (cache marks apart). (Why: decisions 5 and 14.)"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fsm_agent.conversation.history_rules import BRIDGE, sendable
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire.form import Pieces, View, WireRow, dump, excess
from fsm_agent.conversation.wire.modes import aging_of, format_of

MARKS = 3
"""Rows that carry a cache mark besides the system prompt (CACHE-01: four in all)."""
RECENT = 8
"""Finished rows that are remembered, so that marks can move without reading the history again."""


class WireCopy:
    """One history as one API mode writes it. Safe to use again after the history was replaced or the view has
    changed.

    ``part_bytes``: how much of the bytes written last is images, audio and files beyond what they count
    (``fsm_agent.conversation.parts.weight``)."""

    def __init__(self) -> None:
        self._reset(View())

    def _reset(self, view: View) -> None:
        self._view, self._format, self._aging = view, format_of(view.mode), aging_of(view.mode)
        self._prompt = ("", b"")
        self._closed = bytearray()
        self._recent: deque[tuple[int, WireRow]] = deque(maxlen=RECENT)
        self._run: list[Message] = []
        self._called: set[str] = set()  # ids of the calls in the run: results of others are dropped
        self._ids: set[str] = set()
        self._read = 0
        self._last: Message | None = None
        self._closed_excess = 0
        self.part_bytes = 0

    def messages(
        self, system: str, history: Sequence[Message], scaffold: Sequence[Message], view: View
    ) -> Pieces:
        """The bytes of the message list, brackets included, in pieces that are valid until the history
        grows."""
        self._catch_up(history, view)
        tail = self._tail(scaffold)
        self.part_bytes = self._closed_excess + sum(map(excess, tail))
        closed, tail = self._split(tail)
        rows: list[bytes | bytearray] = [row for row in (self._prompt_row(system), closed) if row]
        rows += map(dump, tail)
        pieces: list[bytes | bytearray] = [b"["]
        for row in rows:
            pieces += (row, b",")
        return [*pieces[: max(1, len(pieces) - 1)], b"]"]

    def _prompt_row(self, system: str) -> bytes:
        """The prompt as a row, written once; nothing where it is no row or there is none."""
        if self._prompt[0] != system:
            row = self._format.system_row(system, self._view) if system else None
            self._prompt = (system, b"" if row is None else dump(row))
        return self._prompt[1]

    def _catch_up(self, history: Sequence[Message], view: View) -> None:
        same = self._read <= len(history) and (not self._read or history[self._read - 1] is self._last)
        if view != self._view or not same or (self._read and self._aging.outdates(history, self._read)):
            self._reset(view)
        for message in self._aging.aged(history, self._read):
            self._add(message)
        if history:
            self._read, self._last = len(history), history[-1]

    def _add(self, message: Message) -> None:
        if not sendable(message) or (message.role == "tool" and message.tool_call_id not in self._called):
            return
        self._run = self._run or self._bridge(message)
        if self._format.opens_run(self._run, message):
            self._close()
            self._run, self._called = [message], set()
        else:
            self._run.append(message)
        self._called.update(call.id for call in message.tool_calls)

    def _bridge(self, first: Message) -> list[Message]:
        """A conversation begins with the user; one that was cut so that it does not is given a beginning."""
        return [Message("user", BRIDGE)] if first.role == "assistant" and not self._closed else []

    def _close(self) -> None:
        rows = self._format.rows(self._run, self._ids, self._view)
        self._ids |= self._format.ids(rows)
        for row in rows:
            self._recent.append((len(self._closed), row))
            self._closed_excess += excess(row)
            self._closed += (b"," if self._closed else b"") + dump(row)

    def _tail(self, scaffold: Sequence[Message]) -> list[WireRow]:
        """What can still change: the last run of the history, and scaffolding (which carries no calls)."""
        runs = [list(self._run) or (self._bridge(scaffold[0]) if scaffold else [])]
        for message in scaffold:
            if self._format.opens_run(runs[-1], message):
                runs.append([message])
            else:
                runs[-1].append(message)
        return [row for run in runs for row in self._format.rows(run, self._ids, self._view)]

    def _split(self, tail: list[WireRow]) -> tuple[bytes | bytearray, list[WireRow]]:
        """The finished bytes that stay as they are, and the rows behind them, the last of which carry
        marks."""
        if not self._view.marks:
            return self._closed, tail
        behind = [*(row for _, row in self._recent), *tail]
        left = MARKS
        for index in range(len(behind) - 1, -1, -1):
            if left and (marked := self._format.marked(behind[index], self._view.ttl)) is not None:
                behind[index], left = marked, left - 1
        offset = self._recent[0][0] if self._recent else len(self._closed)
        return self._closed[:offset], behind
