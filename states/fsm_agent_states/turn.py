"""``TurnState``: the whole state of a turn, fresh for each turn.

Counters are in ``counts`` and change only through ``spend`` and ``reset``, which the machine calls for the
row that it took. Those of the call block, which all requests of one iteration share, are reset by the rows
that close it (``TURN.reset_groups``). The parts (``fsm_agent_states.logic.parts``) hold what states learned
from replies. Neither contains a clock, a connection or a callback, so a turn can be copied, stored, compared
and shown. The stored form is flat: the parts structure only the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from fsm_agent.conversation.effects import ModelRequest, Runtime
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import ExitReason
from fsm_agent.conversation.vendors import SILENCE
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.fsm.base_turn import BaseTurn, OutcomeName
from fsm_agent.fsm.codec import PART, assemble
from fsm_agent.fsm.table import Row
from fsm_agent.settings import Settings
from fsm_agent_states.logic.parts import (
    ELSEWHERE,
    Accounting,
    Compaction,
    CurrentCall,
    Draft,
    Ending,
    Extended,
    Recovery,
    Setup,
    Tooling,
)
from fsm_agent_states.table import TURN

COUNTERS = {counter.name: 0 for counter in TURN.counters}
A_PART = {PART: True}


@dataclass(slots=True, kw_only=True)
class TurnState(BaseTurn):
    """One turn: its request, its position, its transcript, and its parts.

    ``history`` is the transcript, oldest first, this turn's rows included; ``rows`` are this turn's rows;
    ``wire`` is the transcript as it is sent. ``supplied_history`` replaces the session's history.
    ``last_transition`` led to ``state``. Only this module writes these fields; the machine writes ``state``
    and ``seq``.
    """

    outcomes: ClassVar[Mapping[str, OutcomeName]] = {
        reason.value: reason.outcome.value for reason in ExitReason
    }

    turn_id: str
    session_id: str
    parent_session_id: str | None = None
    task_id: str = ""
    settings: Settings = field(metadata=ELSEWHERE)
    user_content: Any
    supplied_history: tuple[Message, ...] | None = None
    state: str = TURN.initial
    counts: dict[str, int] = field(default_factory=COUNTERS.copy)
    exit: ExitReason | None = None
    history: list[Message] = field(default_factory=list, metadata=ELSEWHERE)
    rows: list[Message] = field(default_factory=list, metadata=ELSEWHERE)
    wire: WireCopy = field(default_factory=WireCopy, metadata=ELSEWHERE)

    setup: Setup = field(metadata=A_PART)
    call: CurrentCall = field(default_factory=CurrentCall, metadata=A_PART)
    accounting: Accounting = field(default_factory=Accounting, metadata=A_PART)
    recovery: Recovery = field(default_factory=Recovery, metadata=A_PART)
    compaction: Compaction = field(default_factory=Compaction, metadata=A_PART)
    draft: Draft = field(default_factory=Draft, metadata=A_PART)
    tooling: Tooling = field(default_factory=Tooling, metadata=A_PART)
    extended: Extended = field(default_factory=Extended, metadata=A_PART)
    ending: Ending = field(default_factory=Ending, metadata=A_PART)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build a turn from values by their flat names, assigning each to the part that owns it; for tests
        and tools. Raises ``TypeError`` for an unknown name."""
        counts = {name: values.pop(name) for name in COUNTERS.keys() & values.keys()}
        restored: Self = assemble(cls, values)
        restored.counts.update(counts)
        return restored

    # The engine's interface

    def arrive(self, row: Row) -> None:
        """Record the row that led to the current state; its exit reason becomes the turn's."""
        self.last_transition = row
        if row.exit is not None:
            self.exit = ExitReason(row.exit)

    def crash(self, error: BaseException) -> None:
        """Record a bug of our own; the table's ``crashed`` rows end the turn. After the exit is decided, a
        bug only costs one step of the ending."""
        problem = f"{type(error).__name__}: {error}"
        if self.exit is not None:
            self.ending.cost_a_step(problem)
        else:
            self.bug = problem
            self.recovery.crash(problem, error)

    def dump(self) -> dict[str, Any]:
        """Return a small snapshot, without the transcript, as plain values."""
        return BaseTurn.dump(self) | {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "came": self.last_transition.id if self.last_transition else None,
            "rows": len(self.rows),
            "history": len(self.history),
            "provider": self.setup.runtime.provider,
            "model": self.setup.runtime.model,
            "attempts": self.accounting.request_count,
            "failure_class": self.recovery.failure_class,
            "repairs": sorted(self.recovery.repairs_done),
            "fragments": list(self.draft.fragments),
            "scaffold": [message.to_dict() for message in self.recovery.scaffold],
            "visible": self.call.visible,
            "answer": self.draft.answer,
            "exit": self.exit.value if self.exit else None,
        }

    # Limits

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Set the limits when the turn opens; a process that resumes it may lower them."""
        self.limits = dict(limits)

    def exhaust(self, counter: str) -> None:
        """Lower the limit of this counter to its count: nothing more can be used. Only for counters that the
        table declares ``exhaustible``."""
        self.limits[counter] = self.count(counter)

    # The transcript

    def load(self, rows: Iterable[Message]) -> None:
        """Begin with these rows, none of which belongs to this turn."""
        self.history = list(rows)

    def append(self, *messages: Message) -> None:
        """Add messages to the history, and to the rows of this turn."""
        self.history.extend(messages)
        self.rows.extend(messages)

    def shorten(self, history: list[Message]) -> None:
        """Replace the history by the result of a compaction."""
        self.history = history
        self.wire.replace(history)

    def withdraw(self) -> None:
        """Mark the user's message: it stays for people to see, and is not sent again."""
        asked = self.rows[0]
        self.rows[0] = kept = replace(asked, wire=False)
        self.history = [kept if row is asked else row for row in self.history]

    def move_to(self, session_id: str, parent_session_id: str | None) -> None:
        """Continue the turn in another session."""
        self.session_id, self.parent_session_id = session_id, parent_session_id

    def share(self, wire: WireCopy) -> None:
        """Use the session's copy of what was sent."""
        self.wire = wire

    # Queries of the states

    def stale_after(self, request: ModelRequest) -> float:
        """Return the seconds of silence after which this request counts as dead. A provider that runs its own
        tools may be silent for longer."""
        local, floor = self.setup.runtime.local, self.setup.runtime.stale_floor
        if self.settings.request.hosted_tools and not request.toolless:
            floor = max(floor, SILENCE)
        return self.settings.stale.after(request.estimate, streaming=request.stream, local=local, floor=floor)


def limits_of(settings: Settings, runtime: Runtime, auxiliaries: int = 0) -> Mapping[str, int]:
    """Return the maximum of every counter for this turn: from the settings, from the fallbacks and keys of
    the runtime, and from the number of auxiliary models that write summaries before the main model does."""
    retries = settings.api_max_retries - 1
    free_rounds = settings.budget.max_free_rounds
    return {
        "iterations": settings.max_iterations,
        "free_rounds": settings.max_iterations if free_rounds is None else free_rounds,
        "summary_calls": 2 if settings.budget.grace_call else 0,
        "lost_requests": settings.max_lost_requests,
        "fallbacks": runtime.usable_fallbacks,
        "attempts": settings.attempts_per_turn(),
        "opened": 1,
        "sends": settings.sends_per_block(runtime.usable_fallbacks),
        "retries": retries,
        "patience": min(1, retries),
        "rebuilds": 1,
        "rekeys": runtime.possible_rekeys,
        "compactions": settings.compression.preflight_passes if settings.compression.enabled else 0,
        "overflows": settings.compression.max_per_streak,
        "repairs": 10,
        "summarizers": auxiliaries + 1,
        "modelless_compactions": int(settings.compression.without_model),
        "continuations": settings.length.max_continuations,
        "cut_calls": settings.length.tool_retries,
        "incompletes": settings.continuation.incomplete,
        "scratchpads": settings.continuation.scratchpad,
        "acks": settings.continuation.ack,
        "verifies": settings.continuation.verify,
        "invalid_tool_rounds": settings.invalid_tool_strikes - 1,
        "reasks": settings.invalid_json_retries,
        "nudges": settings.empty.nudges,
        "thinking_prefills": settings.empty.prefills,
        "empties": settings.empty.retries,
        "revisions": settings.output_retries,
    }
