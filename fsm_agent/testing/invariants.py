"""Invariants of every move of every turn, as a list of functions that a project can extend.

>>> from fsm_agent.testing import INVARIANTS, Look
>>> look = Look(table, turn)                     # before the first move
>>> look.moved(step.event, table.row(step.row))  # after each: raises InvariantBroken, which names the move

An invariant takes a ``Moved`` and returns the problem in words, or ``None``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from fsm_agent.agent import Agent
from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import TurnResult
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, Format, View
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.machine import TurnLike
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.fsm.table import Row, Table
from fsm_agent.sessions.store import store_for
from fsm_agent.testing.wires import chat_rows

FORMATS: Mapping[ApiMode, Format] = {mode: format_of(mode) for mode in get_args(ApiMode)}
"""The format of every API mode."""


class InvariantBroken(AssertionError):
    """A move after which an invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a turn: its state, number of moves and counters, and its history if it has one."""

    state: str
    seq: int
    counts: Mapping[str, int]
    history: tuple[Any, ...] = ()

    @classmethod
    def of(cls, table: Table, turn: TurnLike) -> Place:
        """Record the position of a turn."""
        counts = {counter.name: turn.count(counter.name) for counter in table.counters}
        return cls(turn.state, turn.seq, counts, tuple(getattr(turn, "history", None) or ()))

    def count(self, counter: str) -> int:
        return self.counts[counter]


@dataclass(frozen=True, slots=True)
class Moved:
    """One move: the event that was reported, the row that was taken, and the turn before and after it."""

    table: Table
    turn: TurnLike
    event: str
    row: Row
    before: Place
    after: Place

    def limit(self, name: str) -> int:
        return self.turn.limit(name)

    def count(self, counter: str) -> int:
        """Return a counter as it was when the row was chosen."""
        return self.before.count(counter)


Invariant = Callable[[Moved], str | None]


def only_declared_events(moved: Moved) -> str | None:
    """A state reports only events that the table has for it."""
    declared = moved.table.events(moved.before.state)
    if moved.event in declared:
        return None
    return f"{moved.before.state} reported {moved.event!r}; it declares {', '.join(declared) or 'nothing'}"


def the_row_leads_from_here_to_there(moved: Moved) -> str | None:
    """The row that was taken starts and ends where the turn did."""
    row, came = moved.row, (moved.before.state, moved.event, moved.after.state)
    return (
        None
        if came == (row.source, row.event, row.dest)
        else f"the turn went {came}, the row is {row.id} to {row.dest}"
    )


def the_end_has_no_exits(moved: Moved) -> str | None:
    """Nothing leaves the final state."""
    return f"the turn left {moved.table.final}" if moved.before.state == moved.table.final else None


def seq_grows_by_one(moved: Moved) -> str | None:
    """Every move increments the sequence number."""
    before, after = moved.before.seq, moved.after.seq
    return None if after == before + 1 else f"seq went from {before} to {after}"


def the_guard_held(moved: Moved) -> str | None:
    """The guard holds with the counters before the move and the limits that the state leaves behind."""
    return None if moved.row.guard.holds(moved) else f"its guard does not hold: {moved.row.guard.label}"


def counters_change_as_the_row_says(moved: Moved) -> str | None:
    """Counters change as the row declares, and no others change."""
    expected = {name: 0 if name in moved.row.resets else count for name, count in moved.before.counts.items()}
    for name in moved.row.spends:
        expected[name] += 1
    wrong = [
        f"{name} is {count}, not {expected[name]}"
        for name, count in moved.after.counts.items()
        if count != expected[name]
    ]
    return "; ".join(wrong) or None


def counters_stay_within_limits(moved: Moved) -> str | None:
    """Counters stay at or below the largest limit that any guard compares them with."""
    largest: dict[str, int] = {}
    for row in moved.table.rows:
        for atom in row.guard.atoms():
            if atom.counter in moved.row.spends:
                largest[atom.counter] = max(largest.get(atom.counter, 0), moved.limit(atom.limit))
    over = [
        f"{name} is {moved.after.count(name)}, its limit {most}"
        for name, most in largest.items()
        if moved.after.count(name) > most
    ]
    return "; ".join(over) or None


def history_is_valid_on_every_wire(moved: Moved, wires: Mapping[ApiMode, Format] = FORMATS) -> str | None:
    """The ``history`` of a turn, if it consists of messages, can be sent to each kind of provider. It is
    checked where it changes: messages compare by identity."""
    history = moved.after.history
    if history == moved.before.history or not all(isinstance(row, Message) for row in history):
        return None
    for mode, form in wires.items():
        runtime = Runtime("any", "any", api_mode=mode)
        pieces = WireCopy().messages("", list(history), (), View.of(runtime, frozenset()))
        body = json.loads(form.body(Ask(runtime), pieces))
        if broken := violations(chat_rows(body)):
            return f"the history cannot be sent as {mode}: {broken[0]}"
    return None


INVARIANTS: tuple[Invariant, ...] = (
    only_declared_events,
    the_row_leads_from_here_to_there,
    the_end_has_no_exits,
    seq_grows_by_one,
    the_guard_held,
    counters_change_as_the_row_says,
    counters_stay_within_limits,
    history_is_valid_on_every_wire,
)
"""Invariants of every turn. Add your own: ``Look(table, turn, (*INVARIANTS, mine))``."""


class Look:
    """Compares a turn before and after each move."""

    def __init__(self, table: Table, turn: TurnLike, invariants: Iterable[Invariant] = INVARIANTS) -> None:
        self.table, self.turn, self.invariants = table, turn, tuple(invariants)
        self._before = replace(Place.of(table, turn), history=())  # so that the first one is checked, too

    def moved(self, event: str, row: Row) -> Moved:
        """Check the latest move. Raises ``InvariantBroken`` with all violations."""
        moved = Moved(self.table, self.turn, event, row, self._before, Place.of(self.table, self.turn))
        broken = [
            f"{invariant.__name__.replace('_', ' ')}: {wrong}"
            for invariant in self.invariants
            if (wrong := invariant(moved)) is not None
        ]
        if broken:
            lines = "\n  ".join(broken)
            raise InvariantBroken(f"{self.table.name}, move {moved.after.seq}, row {row.id}:\n  {lines}")
        self._before = moved.after
        return moved


# ----------------------------------------------------------------------------------------------------
# Invariants of the data of an agent's turn: of each visit, and of the turn at its end. The invariants above
# cover rows and counters.


ORDERED = {
    "retries": "Wait",
    "empties": "Wait",
    "rebuilds": "RebuildClient",
    "rekeys": "Rekey",
    "fallbacks": "SwitchProvider",
}
"""The request that the next BuildMessages must make after a row has spent the counter."""
CUT_SHORT = ("cancelled", "cancelled_waiting", CRASHED, "failed")
"""Events of visits that were cut short."""


@dataclass
class Visit:
    """One visit of a state: the row that led to it, its requests and replies, and the row that ended it
    (``None`` for the last visit). ``said``: the visible text of the reply, for CallLLM."""

    state: str
    came: Row | None
    exchanges: list[Exchange] = field(default_factory=list)
    row: Row | None = None
    said: str = ""

    @property
    def event(self) -> str:
        """Return the reported event."""
        return "" if self.row is None else self.row.event

    def asked(self, kind: str) -> list[tuple[Any, Any]]:
        """Return the requests of this kind with their replies, in order."""
        pairs = [
            pair
            for one in self.exchanges
            for pair in zip(
                one.requests, one.reply if isinstance(one.request, list) else [one.reply], strict=True
            )
        ]
        return [pair for pair in pairs if type(pair[0]).__name__ == kind]


@dataclass(frozen=True)
class Ended:
    """A turn that has ended. ``sent``: the number of requests that its models received; ``served``: the
    tokens that they reported."""

    turn: Any
    result: TurnResult
    visits: Sequence[Visit]
    agent: Agent
    sent: int
    served: int


def recovery_is_performed(visit: Visit, turn: Any) -> None:
    """BuildMessages requests the recovery that the row leading to it ordered."""
    if visit.state != "BuildMessages" or visit.came is None or visit.event in CUT_SHORT:
        return
    for spent in visit.came.spends:
        if (kind := ORDERED.get(spent)) is not None:
            assert visit.asked(kind), f"{visit.came.id} ordered {kind}, and {visit.event} came without"


def a_request_is_paid_for(visit: Visit, turn: Any) -> None:
    """A visit makes one model request if the row leading to it has spent an attempt, and otherwise none."""
    if visit.event != CRASHED:
        paid = visit.came is not None and "attempts" in visit.came.spends
        sent = len(visit.asked("CallModel"))
        assert sent == paid, f"{visit.state} made {sent} requests and was paid for {int(paid)}"


def tools_run_when_they_may(visit: Visit, turn: Any) -> None:
    """A call that needs approval runs only after approval, and every result reaches its row."""
    need = {tool.name for tool in turn.setup.tools if tool.approval != "never"}
    given = {asked.call_id for asked, said in visit.asked("AskApproval") if said.granted}
    rows = {row.tool_call_id: row for row in turn.rows if row.role == "tool"}
    calls = {call.id for row in turn.rows for call in row.tool_calls}
    for ran, outcome in visit.asked("RunTool"):
        assert ran.name not in need or ran.call_id in given, f"{ran.name} ran without approval"
        if visit.event != CRASHED and ran.call_id in calls:  # else a program called it and has its result
            assert outcome.text[:100] in rows[ran.call_id].text, f"the result of {ran.name} is lost"


def blanks_are_what_they_come_after(visit: Visit, turn: Any) -> None:
    """Streamed text, or text beside housekeeping calls, is used before any other recovery."""
    if visit.state == "EmptyRecovery" and visit.event not in ("cancelled", CRASHED):
        begun, prior = bool(turn.draft.begun.strip()), bool(turn.draft.prior_content)
        expected = "streamed" if begun else "prior" if prior else visit.event
        assert (visit.event, visit.event in ("streamed", "prior")) == (expected, begun or prior)


def shown_text_is_stored(ended: Ended) -> None:
    """The result's transcript equals the stored one, and its notes are never sent to a model."""
    if ended.visits[0].event == CRASHED:
        return  # before the history was read
    home, url = ended.agent.home, ended.agent.settings.store.database
    store = store_for(home, database_url=url)
    stored = store.session(ended.agent.session_id)
    rows = [row.to_dict() for row in stored.rows]
    assert rows == ended.result.messages, f"stored {rows[-4:]}, shown {ended.result.messages[-4:]}"
    assert not store.database.select("SELECT 1 FROM sessions WHERE id = ? AND holder IS NOT NULL", stored.id)
    assert not [
        row for row in ended.result.messages if row.get("finish_reason") == "note" and row.get("wire", True)
    ]


def calls_are_closed(ended: Ended) -> None:
    """Every call of the turn has exactly one result, and every result has its call."""
    calls = [call.id for row in ended.turn.rows for call in row.tool_calls]
    results = [row.tool_call_id for row in ended.turn.rows if row.role == "tool"]
    assert Counter(calls) == Counter(results)


def sent_requests_are_counted(ended: Ended) -> None:
    """All sent requests and all reported tokens are counted."""
    assert ended.result.total_tokens == ended.served, "tokens that a model reported are lost"
    replies = [reply for visit in ended.visits for _, reply in visit.asked("CallModel")]
    left = [reply for reply in replies if getattr(reply, "sent", True)]
    assert (ended.result.attempts, ended.sent >= len(left)) == (len(left), True), "a request was not counted"


def text_is_stored_once(ended: Ended) -> None:
    """Interrupted text continues where it was cut, text beside calls is in their message, and the rest is the
    answer."""
    begun, text, answer = "", "", None
    beside: list[str] = []
    for visit in ended.visits:
        match visit.state, visit.event:
            case "CallLLM", "cut_text":
                begun += visit.said
            case "CallLLM", "text" | "summary":
                answer = begun + visit.said
            case "CallLLM", "announced" | "unverified":
                answer, begun = begun + visit.said, ""
            case "CallLLM", "tools":
                answer, text = None, visit.said
            case "ExecuteTools", event if event not in ("bad_json", CRASHED):
                beside, begun = [*beside, begun + text], ""
    rows = [row for row in ended.turn.rows if row.role == "assistant"]
    if any(visit.event == CRASHED for visit in ended.visits):
        return
    assert [row.text for row in rows if row.tool_calls] == beside, "text beside calls is lost"
    exit_reason = ended.result.turn_exit_reason.value
    if exit_reason in ("text_response", "max_iterations_summary"):
        assert rows[-1].text == answer, "the answer is not what was said"
    elif begun.strip() and exit_reason != "prior_content_used" and not ended.result.interrupted:
        assert rows[-1].text.startswith(begun), "text that was begun is lost"


VISIT_CHECKS: tuple[Callable[[Visit, Any], None], ...] = (
    recovery_is_performed,
    a_request_is_paid_for,
    tools_run_when_they_may,
    blanks_are_what_they_come_after,
)
END_CHECKS: tuple[Callable[[Ended], None], ...] = (
    shown_text_is_stored,
    calls_are_closed,
    sent_requests_are_counted,
    text_is_stored_once,
)
