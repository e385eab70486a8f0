"""``TurnState``: everything a turn knows, fresh for each turn. ``CallBlock``: what one iteration's requests
share.

Counters are plain fields and move only through ``spend`` and ``reset``, which the machine calls for the row
it took. What states learned from replies is in the parts (``fsm_agent_states.logic.parts``). Neither holds a
clock, a connection or a callback, so a turn can be copied, stored, compared and shown. What is stored is
flat: the parts order the code alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Self

from fsm_agent.conversation.effects import ModelRequest, Runtime
from fsm_agent.conversation.exit_reason import ExitReason
from fsm_agent.conversation.hosted import SILENCE
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.fsm.codec import PART, assembled
from fsm_agent.fsm.table import Row
from fsm_agent.settings.model import Settings
from fsm_agent_states.logic.parts import (
    ELSEWHERE,
    Accounting,
    Compaction,
    CurrentCall,
    Draft,
    Ending,
    Recovery,
    Setup,
    Tooling,
)


@dataclass(slots=True)
class CallBlock:
    """Counters of one call block: all requests that serve one iteration. A reply closes it."""

    opened: int = 0
    sends: int = 0
    retries: int = 0
    rebuilds: int = 0
    rekeys: int = 0
    compactions: int = 0
    overflows: int = 0


@dataclass(slots=True)
class Counters:
    """Counters of the turn; the call block's are in ``CallBlock``. See the table for maxima and resets."""

    iterations: int = 0
    free_rounds: int = 0
    graces: int = 0
    losses: int = 0
    fallbacks: int = 0
    attempts: int = 0
    repairs: int = 0
    summarisers: int = 0
    unaided: int = 0
    continuations: int = 0
    strikes: int = 0
    recalls: int = 0
    nudges: int = 0
    prefills: int = 0
    empties: int = 0
    revisions: int = 0


BLOCK_COUNTERS = frozenset(CallBlock.__slots__)
COUNTER_NAMES = (*Counters.__slots__, *CallBlock.__slots__)
_of_turn, _of_block = attrgetter(*Counters.__slots__), attrgetter(*CallBlock.__slots__)
A_PART = {PART: True}


@dataclass(slots=True, kw_only=True)
class TurnState(Counters):
    """One turn: what it was asked, where it is, its transcript, and its parts.

    ``history`` is the transcript, oldest first, this turn's rows included; ``rows`` are this turn's rows;
    ``wire`` is the transcript as it is sent. ``supplied_history`` replaces what the session has.
    ``last_transition`` led to ``state``. Only this module writes these fields, and the machine ``state`` and
    ``seq``.
    """

    turn_id: str
    session_id: str
    parent_session_id: str | None = None
    task_id: str = ""
    settings: Settings = field(metadata=ELSEWHERE)
    user_content: Any
    supplied_history: tuple[Message, ...] | None = None
    state: str = "Prepare"
    seq: int = 0
    block: CallBlock = field(default_factory=CallBlock)
    limits: dict[str, int] = field(default_factory=dict)
    last_transition: Row | None = field(default=None, metadata=ELSEWHERE)
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
    ending: Ending = field(default_factory=Ending, metadata=A_PART)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Make a turn from values by their flat names, of whichever part each of them is; for tests and
        tools. Raises ``TypeError`` for a name that no part has."""
        made: Self = assembled(cls, values)
        return made

    # What the engine knows

    def count(self, counter: str) -> int:
        owner = self.block if counter in BLOCK_COUNTERS else self
        value: int = getattr(owner, counter)
        return value

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        owner = self.block if counter in BLOCK_COUNTERS else self
        setattr(owner, counter, getattr(owner, counter) + 1)

    def reset(self, counter: str) -> None:
        setattr(self.block if counter in BLOCK_COUNTERS else self, counter, 0)

    def arrive(self, row: Row) -> None:
        """Note how the turn came to the state it is in; the exit reason is the row's."""
        self.last_transition = row
        if row.exit is not None:
            self.ending.decide(ExitReason(row.exit))

    def crash(self, error: BaseException) -> None:
        """Note a bug of our own; the table's ``crashed`` rows end the turn. At the very end it costs only a
        step of it."""
        problem = f"{type(error).__name__}: {error}"
        if self.ending.exit is not None:
            self.ending.cost_a_step(problem)
        else:
            self.recovery.crash(problem, error)

    def counters(self) -> dict[str, int]:
        """Every counter by name, the call block's included."""
        return dict(zip(COUNTER_NAMES, (*_of_turn(self), *_of_block(self.block)), strict=True))

    def put_back(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> None:
        """Have these counters and limits again: a state changed them, which only rows may do."""
        for name, count in counters.items():
            setattr(self.block if name in BLOCK_COUNTERS else self, name, count)
        self.set_limits(limits)

    def dump(self) -> dict[str, Any]:
        """The small part of a snapshot: everything but the transcript, as plain values."""
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "state": self.state,
            "seq": self.seq,
            "counters": self.counters(),
            "limits": dict(self.limits),
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
            "exit": self.ending.exit.value if self.ending.exit else None,
        }

    # Limits

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """They are set when the turn is opened, and may be lowered when it goes on elsewhere."""
        self.limits = dict(limits)

    def exhaust(self, counter: str) -> None:
        """None of the rest can be used. The table says of which counters that may be said."""
        self.limits[counter] = self.count(counter)

    # The transcript

    def load(self, rows: Iterable[Message]) -> None:
        """Begin with these rows, none of which is this turn's."""
        self.history = list(rows)

    def append(self, *messages: Message) -> None:
        """Add messages to the history, and to the rows of this turn."""
        self.history.extend(messages)
        self.rows.extend(messages)

    def shorten(self, history: list[Message]) -> None:
        """A compaction made this of the transcript."""
        self.history = history
        self.wire.replaced(history)

    def withdraw(self) -> None:
        """The user's message stays for people to see, and is not sent again."""
        asked = self.rows[0]
        self.rows[0] = kept = replace(asked, wire=False)
        self.history = [kept if row is asked else row for row in self.history]

    def move_to(self, session_id: str, parent_session_id: str | None) -> None:
        """The turn goes on in another session."""
        self.session_id, self.parent_session_id = session_id, parent_session_id

    def share(self, wire: WireCopy) -> None:
        """Use the session's copy of what was sent."""
        self.wire = wire

    # What the states ask

    @property
    def pending_recovery(self) -> frozenset[str]:
        """The counters that the row that led here spent: the recovery to perform."""
        return frozenset(self.last_transition.spends) if self.last_transition else frozenset()

    def stale_after(self, request: ModelRequest) -> float:
        """Seconds of silence after which this request counts as dead. A provider that runs its own tools may
        be silent for longer."""
        local, floor = self.setup.runtime.local, self.setup.runtime.stale_floor
        if self.settings.request.hosted_tools and not request.toolless:
            floor = max(floor, SILENCE)
        return self.settings.stale.after(request.estimate, streaming=request.stream, local=local, floor=floor)


def limits_of(settings: Settings, runtime: Runtime, auxiliaries: int = 0) -> Mapping[str, int]:
    """The maximum of every counter for this turn: from the settings, from what the runtime could switch to,
    and from how many auxiliary models there are to write a summary before the model itself does."""
    retries = settings.api_max_retries - 1
    free_rounds = settings.budget.max_free_rounds
    return {
        "iterations": settings.max_iterations,
        "free_rounds": settings.max_iterations if free_rounds is None else free_rounds,
        "graces": 2 if settings.budget.grace_call else 0,
        "losses": settings.max_lost_requests,
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
        "summarisers": auxiliaries + 1,
        "unaided": int(settings.compression.without_model),
        "continuations": settings.length.max_continuations,
        "cut_calls": settings.length.tool_retries,
        "incompletes": settings.continuation.incomplete,
        "scratchpads": settings.continuation.scratchpad,
        "acks": settings.continuation.ack,
        "verifies": settings.continuation.verify,
        "strikes": settings.invalid_tool_strikes - 1,
        "recalls": settings.invalid_json_retries,
        "nudges": settings.empty.nudges,
        "prefills": settings.empty.prefills,
        "empties": settings.empty.retries,
        "revisions": settings.output_retries,
    }
