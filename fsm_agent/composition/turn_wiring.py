"""The composition root of a turn: the only place that connects the engine with the turn that it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fsm_agent.conversation.effects import Opened
from fsm_agent.conversation.result import (
    ExitReason,
    HandoffStep,
    Outcome,
    TurnResult,
    TurnUsage,
    VisitedState,
)
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.base_turn import with_counters
from fsm_agent.fsm.codec import check_field, restore
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.pause_point import TurnKind
from fsm_agent.fsm.runner import Perform, State, drive
from fsm_agent.providers.catalog import total_cost
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal import Closing
from fsm_agent.sessions.store.rewind import AGENT_SETTINGS, Position
from fsm_agent.sessions.store.search import keep_up
from fsm_agent.sessions.turn import TurnEnding
from fsm_agent.settings import Settings, Storage
from fsm_agent_states.build_messages import build_messages, recompose
from fsm_agent_states.call_llm import call_llm
from fsm_agent_states.classify_error import classify_error
from fsm_agent_states.compress import compress
from fsm_agent_states.empty_recovery import empty_recovery
from fsm_agent_states.execute_tools import execute_tools
from fsm_agent_states.finalize import finalize
from fsm_agent_states.prepare import prepare
from fsm_agent_states.table import COMPACTION, TURN
from fsm_agent_states.turn import COUNTERS, TurnState, limits_of

if TYPE_CHECKING:
    from fsm_agent.features.answers import Answers

__all__ = [
    "DIGEST",
    "KIND",
    "MACHINE",
    "STATES",
    "TURN",
    "TurnState",
    "compact_history",
    "ending_of",
    "join_session",
    "limits_for",
    "limits_of",
    "recompose",
    "reopen_turn",
    "restore_turn",
    "result_of",
]


STATES: dict[str, State] = {
    "Prepare": prepare,
    "BuildMessages": build_messages,
    "CallLLM": call_llm,
    "ClassifyError": classify_error,
    "Compress": compress,
    "ExecuteTools": execute_tools,
    "EmptyRecovery": empty_recovery,
    "Finalize": finalize,
}
MACHINE = Machine(TURN)
"""Proved at import: every turn that it moves ends."""


KIND = TurnKind(TURN, STATES, over="CallLLM", talks=True)
"""Everything that a debugger needs to know about these turns."""
TRAJECTORIES = "trajectories.jsonl"
"""File of the home directory to which finished turns are appended."""
DIGEST = TURN.digest
"""Identifies the table that moved a stored turn."""
COMPACTING = Machine(COMPACTION)
"""Moves a compaction that a person requests."""
LIMITED = frozenset({ExitReason.COST_LIMIT, ExitReason.TOKEN_LIMIT, ExitReason.TIME_LIMIT})


async def compact_history(turn: TurnState, perform: Perform) -> None:
    """Compact the history of a turn that only compacts and is in ``Compress``, by a table of its own."""
    turn.set_limits(limits_of(turn.settings, turn.setup.runtime, len(turn.setup.auxiliary)))
    while True:
        move = COMPACTING.advance(turn, await drive(STATES[turn.state](turn), perform))
        if turn.state == COMPACTION.final:
            return
        turn.arrive(move.row)


def edit_turn(position: Position, edit: Mapping[str, Any]) -> Position:
    """Apply ``edit_position``, and check the values of fields: a turn with invalid ones could not continue.
    Raises ``ConfigError``."""
    from fsm_agent.sessions.store.edits import edit_position  # few turns are edited

    position = edit_position(position, edit)
    for name in edit.get("fields") or ():
        check_field(TurnState, name, position.snapshot[name])
    return position


def restore_turn(position: Position, live: Settings | None = None) -> TurnState:
    """Return the turn as it was at ``position``, not yet connected to its session: ``join_session`` must
    follow. ``live``: settings of the agent that continues it, ``None`` if it is only inspected.

    Raises ``ConfigError`` for a turn that another table moved, into a state or by a row that this one does
    not have, and for invalid counters.
    """
    snapshot, settings = position.snapshot, _settings(position, live)
    if snapshot["state"] not in STATES or (
        position.row is not None and position.row not in {row.id for row in TURN.rows}
    ):
        raise ConfigError(
            f"turn {snapshot['turn_id']} was moved by another version of the table",
            f"{snapshot['state']} by {position.row}",
            "a turn of this version; its messages are still in its session",
        )
    turn: TurnState = restore(
        TurnState,
        {name: value for name, value in snapshot.items() if name not in ("history", "rows")},
        settings=settings,
        history=[row for _, row in position.transcript],
        rows=[row for _, row in position.own],
        last_transition=TURN.row(position.row) if position.row else None,
    )
    # below 0 a budget would exceed its limit
    turn.put_back(with_counters(COUNTERS, turn.counts), turn.limits)
    return turn


def join_session(turn: TurnState, session: Session) -> None:
    """Continue the turn in ``session``, which is in the state in which the turn left it."""
    share_wire(turn, session)
    session.meter = turn.accounting.meter


def share_wire(turn: TurnState, session: Session) -> None:
    """Let the turn continue the wire bytes of its session."""
    session.wire = session.wire or WireCopy()
    turn.share(session.wire)


def _settings(position: Position, live: Settings | None) -> Settings:
    """Return the settings of a continued turn. It keeps its original limits, but takes its rights from the
    agent; a turn from a file takes both from the agent."""
    if live is None:
        return Settings.of(position.settings)
    if position.turn.imported:
        return live
    return Settings.of(position.settings).model_copy(
        update={name: getattr(live, name) for name in AGENT_SETTINGS}
    )


def reopen_turn(turn: TurnState, opened: Opened, position: Position) -> None:
    """Replace stored values of a turn continued from ``position`` by those of its current agent.

    A tool that the agent no longer has stays known for calls of this visit that are answered from the record,
    so that the model learns their outcome. The budgets of a turn from a file are no larger than those of a
    new one."""
    if imported := position.turn.imported:
        turn.tooling.trust_no_checkpoint()
    there, answered = {tool.name for tool in opened.tools}, position.recording.answered()
    missing = [
        replace(tool, approval="ask", effect="unsafe", deferred=True)
        for tool in turn.setup.tools
        if tool.name in answered and tool.name not in there
    ]
    turn.setup.reopen(opened, missing)
    if turn.limits:  # otherwise Prepare sets them
        new = limits_of(turn.settings, opened.runtime, len(opened.auxiliary))
        kept = {name: turn.limits.get(name, most) for name, most in new.items()}
        turn.set_limits({name: min(kept[name], most) for name, most in new.items()} if imported else kept)
    recompose(turn)


async def result_of(
    turn: TurnState, steps: Sequence[Step], session: Session, answers: Answers | None = None
) -> TurnResult[Any]:
    """Build the ``TurnResult``; nothing else does."""
    setup, accounting, recovery, ending = turn.setup, turn.accounting, turn.recovery, turn.ending
    reason = turn.exit or ExitReason.LOCAL_PROCESSING_ERROR
    outcome, usage = reason.outcome, TurnUsage.of(accounting.usage)
    session.turns += 1
    session.usage += accounting.usage
    spent = total_cost(accounting.usages, turn.settings.cache.ttl, turn.settings.prices)
    failed = outcome is not Outcome.COMPLETED
    way, to = list(setup.handoffs), turn.tooling.handed_to
    if reason is ExitReason.HANDED_OVER:
        way.append(HandoffStep(setup.agent, to, turn.tooling.handed_note, turn.turn_id))
    return TurnResult(
        final_response=ending.final_response,
        output=await _output(turn, answers),
        messages=[row.to_dict() for row in turn.history],
        api_calls=turn.count("iterations"),
        attempts=accounting.request_count,
        tried=accounting.request_count + accounting.unsent,
        completed=outcome is Outcome.COMPLETED,
        failed=outcome is Outcome.FAILED,
        partial=outcome is Outcome.PARTIAL,
        interrupted=outcome is Outcome.INTERRUPTED,
        turn_exit_reason=reason,
        failure_class=recovery.failure_class or None if failed else None,
        error=recovery.error or None if failed else None,
        last_reasoning=turn.draft.last_reasoning,
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.output,
        total_tokens=usage.total,
        usage_turn=usage,
        usage_session=TurnUsage.of(session.usage),
        usage_known=bool(accounting.usages),
        last_prompt_tokens=accounting.last_prompt_tokens,
        estimated_cost_usd=spent.usd,
        cost_status=spent.status,
        cost_source=spent.source,
        model=setup.runtime.model,
        provider=setup.runtime.provider,
        base_url=setup.runtime.base_url,
        fallback_activated=recovery.fallback_activated or not setup.runtime.primary,
        session_id=turn.session_id,
        parent_session_id=turn.parent_session_id,
        turn_id=turn.turn_id,
        task_id=turn.task_id,
        response_previewed=reason is ExitReason.PRIOR_CONTENT_USED,
        response_transformed=ending.response_transformed,
        interrupt_message=ending.interrupt_message,
        pending_steer=list(ending.pending_steer),
        guardrail=turn.ending.blocked or turn.tooling.guardrails.halted,
        limit=None if ending.limit is None or reason not in LIMITED else asdict(ending.limit),
        cleanup_errors=list(ending.cleanup_errors),
        agent=setup.agent,
        handoffs=way,
        compressions=list(turn.compaction.compressions),
        states=[
            *(VisitedState(state=s.source, event=s.event, row=s.row, seconds=s.seconds) for s in steps),
            VisitedState(state="Finalize", event=None, row=None, seconds=0.0),
        ],
    )


async def _output(turn: TurnState, answers: Answers | None) -> Any:
    """Return the turn's answer as a value; that of a final summary only if it happens to be valid."""
    reason, last = turn.exit, turn.rows[-1] if turn.rows else None
    answered = reason is not None and reason.outcome is Outcome.COMPLETED
    if not answered and reason is not ExitReason.MAX_ITERATIONS_SUMMARY:
        return None
    if answers is None:
        return turn.ending.final_response if answered else None
    is_said = last is not None and last.role == "assistant" and last.wire
    return await answers.value(last.text) if last is not None and is_said else None


def ending_of(
    store: Store,
    turn_id: str,
    result: Callable[[list[Step]], Awaitable[TurnResult[Any]]],
    settings: Storage,
) -> TurnEnding[TurnResult[Any]]:
    """Return the actions at the end of an agent's turn."""

    def closing(ended: TurnResult) -> Closing:
        # the value is parsed from the text again, and a function's result may not be meant for the disk
        data = ended.model_dump(mode="json", exclude={"messages", "states", "output"})
        exit_reason = ended.turn_exit_reason
        return Closing(exit_reason.value, exit_reason.outcome.value, data, f"{ended.provider}:{ended.model}")

    def noted(ended: TurnResult, stored: bool, problem: str) -> TurnResult:
        return ended.model_copy(update={"stored": stored, "cleanup_errors": [*ended.cleanup_errors, problem]})

    def follow_up() -> str:
        if settings.index:
            keep_up(store.database)
        if settings.trajectories:
            from fsm_agent.sessions.store.export import save_trajectory

            try:
                save_trajectory(store.database, turn_id, store.home / TRAJECTORIES)
            except (OSError, StoreError) as error:
                return f"the trajectory was not saved: {error}"
        return ""

    return TurnEnding(result, closing, noted, follow_up)


# ----------------------------------------------------------------------------------------------------
# The table of this agent's turn, for code that draws, proves or counts it without running a turn: it loads
# none of the turn's states.


def limits_for(settings: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the maximum of every counter for ``settings`` (values by the names of ``Settings``; the rest
    from the environment), without a fallback or a second key. Raises ``ConfigError`` for an invalid value."""
    from fsm_agent.conversation.effects import Runtime
    from fsm_agent.settings import Settings
    from fsm_agent_states.turn import limits_of

    return limits_of(Settings.of(settings), Runtime("any", "any"))
