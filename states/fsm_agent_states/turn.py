"""``TurnState``: everything a turn knows, fresh for each turn. ``CallBlock``: what one iteration's requests share.

Counters are plain fields and move only through ``spend`` and ``reset``, which the machine calls for the row it took. Facts
are what states learned from replies. Neither holds a clock, a connection or a callback, so a turn can be copied, stored,
compared and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest, Runtime, ToolSpec
from fsm_agent.conversation.exit_reason import ExitReason
from fsm_agent.conversation.messages import NO_USAGE, Message, ModelReply, Usage
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.fsm.codec import STORED
from fsm_agent.fsm.table import Row
from fsm_agent.settings.model import Settings
from fsm_agent_states.logic.guardrails import Guardrails

ELSEWHERE = {STORED: False}
"""Not part of a stored snapshot: rows and settings are stored once, bytes are made of them again."""


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
    fallbacks: int = 0
    attempts: int = 0
    repairs: int = 0
    continuations: int = 0
    strikes: int = 0
    recalls: int = 0
    nudges: int = 0
    prefills: int = 0
    empties: int = 0


BLOCK_COUNTERS = frozenset(CallBlock.__slots__)


@dataclass(slots=True)
class ToolRound:
    """What one reply's calls led to, for the step callback and the exit texts."""

    name: str
    arguments: str
    result: str
    ok: bool


@dataclass(slots=True, kw_only=True)
class TurnState(Counters):
    """One turn. ``history`` is the transcript, oldest first, this turn's rows included; ``rows`` are this turn's rows."""

    turn_id: str
    session_id: str
    task_id: str = ""
    settings: Settings = field(metadata=ELSEWHERE)
    user_content: Any
    state: str = "Prepare"
    seq: int = 0
    block: CallBlock = field(default_factory=CallBlock)
    limits: dict[str, int] = field(default_factory=dict)
    came: Row | None = field(default=None, metadata=ELSEWHERE)

    # what the turn runs on
    runtime: Runtime
    tools: tuple[ToolSpec, ...] = ()
    attended: bool = False
    system_prompt: str = ""
    workdir: str = "/"
    ephemeral_prompt: str = ""
    has_memory: bool = False
    review_due: bool = False
    parent_session_id: str | None = None
    supplied_history: tuple[Message, ...] | None = None
    history: list[Message] = field(default_factory=list, metadata=ELSEWHERE)
    rows: list[Message] = field(default_factory=list, metadata=ELSEWHERE)
    wire: WireCopy = field(default_factory=WireCopy, metadata=ELSEWHERE)
    tools_written: dict[str, bytes] = field(default_factory=dict, metadata=ELSEWHERE)

    # the call in hand
    request: ModelRequest | None = None
    reply: ModelReply | None = None
    visible: str = ""
    thoughts: str = ""
    failure: Failure | None = None
    failure_class: str = ""
    sent: int = 0
    usages: dict[tuple[str, str], Usage] = field(default_factory=dict)
    last_prompt_tokens: int = 0
    meter: ContextMeter = field(default_factory=ContextMeter)
    prepaid: bool = False
    stepped: int = 0

    # recovery
    repairs_done: frozenset[str] = frozenset()
    pending_repair: str = ""
    output_cap: int | None = None
    scaffold: tuple[Message, ...] = ()
    forced: bool = False
    focus: str = ""
    auxiliary: tuple[Runtime, ...] = ()
    compacted_before: bool = False
    compaction_blocked: str = ""
    fallback_activated: bool = False
    trace: list[str] = field(default_factory=list)

    # text gathered on the way
    fragments: list[str] = field(default_factory=list)
    held: str = ""
    unchecked: str = ""
    prior_content: str = ""
    partial: str = ""
    last_reasoning: str | None = None
    answer: str | None = None
    last_round: list[ToolRound] = field(default_factory=list, metadata=ELSEWHERE)
    needs_break: bool = False
    unverified: bool = False

    # tools
    unchanged_files: dict[str, str] = field(default_factory=dict)
    guardrails: Guardrails = field(default_factory=Guardrails)
    compressions: list[dict[str, Any]] = field(default_factory=list)

    # the end
    exit: ExitReason | None = None
    final_response: str | None = None
    response_transformed: bool = False
    error: str = ""
    interrupt_message: str | None = None
    pending_steer: list[str] = field(default_factory=list)
    cleanup_errors: list[str] = field(default_factory=list)

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
        self.came = row
        if row.exit is not None:
            self.exit = ExitReason(row.exit)

    def crash(self, error: BaseException) -> None:
        """Note a bug of our own; the table's ``crashed`` rows end the turn. At the very end it costs only a step of it."""
        if self.exit is not None:
            self.cleanup_errors.append(f"{type(error).__name__}: {error}")
            return
        self.failure = Failure("local", str(error), exception=type(error).__name__)
        self.failure_class, self.error = "local_bug", f"{type(error).__name__}: {error}"

    def counters(self) -> dict[str, int]:
        """Every counter by name, the call block's included."""
        of_turn = {name: getattr(self, name) for name in Counters.__slots__}
        return of_turn | {name: getattr(self.block, name) for name in CallBlock.__slots__}

    def dump(self) -> dict[str, Any]:
        """The small part of a snapshot: everything but the transcript, as plain values."""
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "state": self.state,
            "seq": self.seq,
            "counters": self.counters(),
            "limits": dict(self.limits),
            "came": self.came.id if self.came else None,
            "rows": len(self.rows),
            "history": len(self.history),
            "provider": self.runtime.provider,
            "model": self.runtime.model,
            "attempts": self.sent,
            "failure_class": self.failure_class,
            "repairs": sorted(self.repairs_done),
            "fragments": list(self.fragments),
            "scaffold": [message.to_dict() for message in self.scaffold],
            "visible": self.visible,
            "answer": self.answer,
            "exit": self.exit.value if self.exit else None,
        }

    # What the states ask

    @property
    def spent(self) -> frozenset[str]:
        """What the row that led here spent: the recovery to perform."""
        return frozenset(self.came.spends) if self.came else frozenset()

    @property
    def usage(self) -> Usage:
        """Of all requests together."""
        return sum(self.usages.values(), NO_USAGE)

    @property
    def toolless(self) -> bool:
        """The budget is used up and the model is asked for a last word."""
        return self.graces > 0

    @property
    def after_tools(self) -> bool:
        """Is a tool result of this turn the last thing in the transcript?"""
        return bool(self.rows) and self.rows[-1].role == "tool"

    def stale_after(self, request: ModelRequest) -> float:
        """Seconds of silence after which this request counts as dead."""
        return self.settings.stale.after(
            request.estimate, streaming=request.stream, local=self.runtime.local, floor=self.runtime.stale_floor
        )

    def append(self, *messages: Message) -> None:
        self.history.extend(messages)
        self.rows.extend(messages)

    def account(self, usage: Usage | None, runtime: Runtime | None = None) -> None:
        """Note what a request cost, by provider and model: of the runtime in use unless another is named."""
        if usage is not None:
            used = runtime or self.runtime
            key = used.provider, used.model
            self.usages[key] = self.usages.get(key, NO_USAGE) + usage


def limits_of(settings: Settings, runtime: Runtime) -> Mapping[str, int]:
    """The maximum of every counter for this turn, from the settings and from what the runtime could switch to."""
    retries = settings.api_max_retries - 1
    free_rounds = settings.budget.max_free_rounds
    return {
        "iterations": settings.max_iterations,
        "free_rounds": settings.max_iterations if free_rounds is None else free_rounds,
        "graces": 2 if settings.budget.grace_call else 0,
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
    }
