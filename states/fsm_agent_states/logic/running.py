"""Running the calls of one reply: in safe order, each admitted first, with a checkpoint before files change.

A program that a tool runs may call tools itself. Its calls are made here too, one by one, so that rules,
approvals, limits and the journal see them as they see those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsm_agent.conversation.call_key import signature
from fsm_agent.conversation.effects import (
    AnswerProgram,
    Approval,
    AskApproval,
    CallChanged,
    CheckSignals,
    KeepFiles,
    ProgramAsks,
    ResolvedPaths,
    ResolvePaths,
    RunTool,
    ShowCall,
    Signals,
    ToolOutcome,
)
from fsm_agent.conversation.messages import ToolCall
from fsm_agent_states.logic.calls import BRIDGE, PROGRAMMATIC, Checked, check_calls, contended, segments
from fsm_agent_states.logic.results import changes_files, note_files
from fsm_agent_states.logic.status_lines import say
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

NOT_FOR_PROGRAMS = PROGRAMMATIC | {BRIDGE}
"""Tools that no program may call, as it may begin no child turns: requests to models are made by rows of the
table, and by nothing else."""
TOO_MANY = "not run: one program may make {most} calls of tools"
OUT_OF_TIME = (
    "not started: the calls before it took the {seconds:g} s that those of one reply may take together; make"
    " it again if it is still needed"
)
HANDED_ALREADY = "not handed over: an earlier call of the same reply hands the conversation to {to}"
NOT_STARTED = "cancelled by the user before it started; it had no effect"


def run_calls(turn: TurnState, calls: Sequence[Checked]) -> Asks[bool]:
    """Run every call that has no outcome yet. True when the user interrupted; then the rest is not
    started."""
    interrupted, workdir, left = False, turn.setup.workdir, turn.settings.tool.batch_timeout
    real: dict[str, str] = {}
    if paths := contended(calls):
        resolved: ResolvedPaths = yield ResolvePaths(paths, workdir)
        real = dict(zip(paths, resolved.paths, strict=True))
    together = list(segments(calls, turn.settings.tool.max_workers, workdir, real))
    if (most := max(map(len, together))) > 1:
        yield from say(f"{len(calls)} tool calls, up to {most} at the same time")
    elif len(calls) > 1:
        yield from say(f"{len(calls)} tool calls, one after the other")
    for segment in together:
        if not interrupted:
            signals: Signals = yield CheckSignals()
            interrupted = signals.interrupted
        if interrupted:
            for item in segment:
                if item.outcome is None:
                    item.answer(NOT_STARTED, "not_started")
            continue
        for item in segment:
            if item.outcome is None and _shares_time(item) and left <= 0:
                item.answer(OUT_OF_TIME.format(seconds=turn.settings.tool.batch_timeout), "not_started")
            interrupted = (yield from _admit(turn, item)) or interrupted
        ready = [item for item in segment if item.outcome is None]
        if not ready:
            continue
        yield from _keep_files(turn, ready)
        outcomes: list[ToolOutcome | ProgramAsks] = yield [_request(turn, item, left) for item in ready]
        used = 0.0
        for item, outcome in zip(ready, outcomes, strict=True):
            ended = yield from _ended(turn, item, outcome, left)
            used = max(used, ended.seconds if _shares_time(item) else 0.0)
            item.outcome = _with_warning(turn, item, _handed_over(turn, item, ended))
        left -= used
    return interrupted


# Whether a call may run


def _admit(turn: TurnState, item: Checked) -> Asks[bool]:
    """May this call run? Sets its outcome when not. True when the user interrupted instead of answering."""
    if item.outcome is not None or item.spec is None or item.arguments is None:
        return False
    if reason := turn.tooling.guardrails.refuses(
        item.spec.name, item.arguments, turn.settings.guardrail, hard_stops(turn)
    ):
        item.answer(f"not run: {reason}. Stop repeating this call.")
        return False
    if turn.setup.checks.calls:
        shown: CallChanged = yield ShowCall(item.call.id, item.spec.name, item.arguments)
        item.arguments = item.arguments if shown.arguments is None else shown.arguments
        if shown.result is not None:
            item.answer(shown.result)
            return False
    if item.spec.approval == "never":
        return False
    approval: Approval = yield AskApproval(item.call.id, item.spec.name, item.arguments)
    if approval.granted:
        return False
    if approval.interrupted:
        item.answer(NOT_STARTED, "not_started")
        return True
    item.answer(
        f"denied: {approval.reason}. Do not try the same thing in other words; ask the user or go on"
        " without.",
        "denied",
    )
    return False


def hard_stops(turn: TurnState) -> bool:
    """Loops are stopped by force when nobody is present to stop them."""
    chosen = turn.settings.guardrail.hard_stop
    return not turn.setup.attended if chosen is None else chosen


# One call


def _request(turn: TurnState, item: Checked, left: float) -> RunTool:
    assert item.spec is not None
    assert item.arguments is not None
    timeout = left if item.spec.timeout is None else item.spec.timeout
    key = signature(f"{turn.turn_id} {turn.seq} {item.call.id} {item.spec.name}", item.arguments)
    return RunTool(item.call.id, item.spec.name, item.arguments, timeout, item.spec.effect, key)


def _shares_time(item: Checked) -> bool:
    """A call without a limit of its own: together they may take the time of the batch."""
    return item.spec is not None and item.spec.timeout is None


def _with_warning(turn: TurnState, item: Checked, outcome: ToolOutcome) -> ToolOutcome:
    assert item.spec is not None
    assert item.arguments is not None
    ok = outcome.status == "ok"
    if ok:
        turn.tooling.unverified = changes_files(item.spec)
    warning = turn.tooling.guardrails.note(
        item.spec.name,
        item.arguments,
        ok,
        outcome.text,
        item.spec.effect,
        turn.settings.guardrail,
        hard_stops(turn),
    )
    return replace(outcome, text=f"{outcome.text}\n\n{warning}") if warning else outcome


def _keep_files(turn: TurnState, ready: Sequence[Checked]) -> Asks[None]:
    """A checkpoint before the first tool of the turn that may change files. Without one the tool runs all the
    same."""
    if not turn.settings.checkpoints.enabled or turn.tooling.kept_files == turn.turn_id:
        return
    for item in ready:
        if item.spec is not None and item.spec.writes_files:
            yield KeepFiles(turn.turn_id, item.spec.name)
            turn.tooling.kept_files = turn.turn_id
            return


def _handed_over(turn: TurnState, item: Checked, outcome: ToolOutcome) -> ToolOutcome:
    """The outcome of a call that may hand the conversation over: the first of a reply counts."""
    tooling = turn.tooling
    if outcome.hands_to and tooling.handed_to:
        return replace(outcome, status="error", text=HANDED_ALREADY.format(to=tooling.handed_to))
    if outcome.hands_to and item.arguments is not None:
        tooling.handed_to, tooling.handed_note = outcome.hands_to, str(item.arguments.get("note") or "")
    return outcome


# Calls that a program makes


def _ended(
    turn: TurnState, item: Checked, outcome: ToolOutcome | ProgramAsks, left: float
) -> Asks[ToolOutcome]:
    """The outcome of a call, after the calls that its program asks for were made, one by one."""
    made = 0
    while isinstance(outcome, ProgramAsks):
        made += 1
        call = ToolCall(f"{item.call.id}~{made}", outcome.name, outcome.arguments)
        answer = yield from _called_by_program(turn, call, made, left)
        outcome = yield AnswerProgram(item.call.id, made, answer)
    return outcome


def _called_by_program(turn: TurnState, call: ToolCall, made: int, left: float) -> Asks[ToolOutcome]:
    """Make the call under the rules of every call of this turn."""
    tools = [
        tool
        for tool in turn.setup.tools
        if tool.name not in NOT_FOR_PROGRAMS and tool.concurrency != "interactive" and not tool.delegates
    ]
    [item] = check_calls([call], tools, turn.settings.fuzzy_name_cutoff)
    if made > (most := turn.settings.tool.max_calls):
        item.answer(TOO_MANY.format(most=most))
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        item.answer(NOT_STARTED, "not_started")
    yield from _admit(turn, item)
    if item.outcome is None:
        yield from _keep_files(turn, [item])
        outcome: ToolOutcome = yield _request(turn, item, left)
        item.outcome = _with_warning(turn, item, outcome)
    note_files(turn, [item])
    return item.outcome
