"""Runs the calls of one reply: in safe order, each admitted first, with a checkpoint before files change.

A program that a tool runs may call tools itself. Its calls are also made here, one by one, so that rules,
approvals, limits and the journal treat them like those of the model.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from fsm_agent.conversation.arguments import coerce, parse, paths_conflict, repair_name, signature
from fsm_agent.conversation.effects import (
    AnswerProgram,
    Approval,
    AskApproval,
    CallChanged,
    CheckSignals,
    KeepFiles,
    Persist,
    ProgramAsks,
    ResolvedPaths,
    ResolvePaths,
    RunTool,
    Saved,
    ShowCall,
    Signals,
    Spill,
    ToolOutcome,
    ToolSpec,
)
from fsm_agent.conversation.history import fallback_id
from fsm_agent.conversation.messages import Content, Message, ToolCall
from fsm_agent.conversation.token_meter import CHARS_PER_TOKEN
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent_states.logic.parts import ToolRound
from fsm_agent_states.logic.visit import Asks, say, tell_parts
from fsm_agent_states.turn import TurnState

# ----------------------------------------------------------------------------------------------------
# Checks of the calls of one reply before anything runs: names, arguments, identity, order.


Verdict = Literal["run", "bad_json", "unknown", "answered"]
MAX_ECHOED = 200
"""Maximum characters of a wrong name that the model reads back."""
MAX_REPAIRED = 8
"""Maximum different wrong names of one reply that are repaired."""
BRIDGE = "tool_call"
"""The tool through which the model calls tools that no request names (EXEC-34)."""
HOUSEKEEPING = frozenset({"memory", "todo", "skill_manage", "session_search"})
"""Housekeeping tools: text beside them can be the answer."""
PROGRAMMATIC = frozenset({"execute_code"})
"""Tools that run programs, whose calls are cheap: an iteration with only these is not charged."""


@dataclass(slots=True)
class Checked:
    """One call and the result of its checks. ``signature``: of a call that can run. ``outcome`` is set for a
    call that is answered without being run."""

    call: ToolCall
    verdict: Verdict
    spec: ToolSpec | None = None
    arguments: Mapping[str, Any] | None = None
    signature: str = ""
    outcome: ToolOutcome | None = None

    def answer(self, text: str, status: Literal["error", "ok", "denied", "not_started"] = "error") -> None:
        """Give the call this result instead of running it."""
        self.outcome = ToolOutcome(self.call.id, status, text)


def check_calls(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], cutoff: float) -> list[Checked]:
    """Repair names and ids, read and coerce arguments, answer what cannot run. A duplicate call runs once,
    unless something was changed in between."""
    by_name = {tool.name: tool for tool in tools}
    meant = _resolve_names(calls, tuple(by_name), cutoff)
    checked = [_check(call, meant[call.name], by_name, cutoff) for call in _with_unique_ids(calls)]
    first: dict[str, Checked] = {}
    for item in checked:
        if item.verdict != "run" or item.spec is None or item.arguments is None:
            continue
        key = item.signature = signature(item.spec.name, item.arguments)
        if item.spec.effect == "unsafe" or (item.spec.effect == "idempotent" and key not in first):
            first.clear()
        twin = first.setdefault(key, item)
        if twin is not item and item.spec.effect in ("pure", "idempotent"):
            item.verdict = "answered"
            item.answer(f"(the same call as {twin.call.id}: see its result)", "ok")
    return checked


def limit_delegation(calls: Sequence[Checked], most: int) -> None:
    """Answer the delegations beyond ``most`` child turns of one reply (EXEC-13)."""
    children = 0
    for item in calls:
        if item.verdict != "run" or not (item.spec and item.spec.delegates) or item.arguments is None:
            continue
        tasks = item.arguments.get("tasks")
        children += max(1, len(tasks)) if isinstance(tasks, list) else 1
        if children > most:
            item.verdict = "answered"
            item.answer(
                f"over the limit of {most} child turns at a time; not run. Delegate the rest when these are"
                " done."
            )


def _resolve_names(calls: Sequence[ToolCall], known: Sequence[str], cutoff: float) -> dict[str, str | None]:
    """Map the name in each call to the tool that it means. A repair takes milliseconds, so only the first
    ``MAX_REPAIRED`` wrong names are tried."""
    wrong = dict.fromkeys(call.name for call in calls if call.name not in known)
    found = {name: repair_name(name, known, cutoff) for name in islice(wrong, MAX_REPAIRED)}
    return {call.name: call.name if call.name in known else found.get(call.name) for call in calls}


def _check(call: ToolCall, name: str | None, tools: Mapping[str, ToolSpec], cutoff: float) -> Checked:
    parsed = parse(call.arguments)
    if parsed.kind in ("bad", "cut"):
        item = Checked(call, "bad_json")
        item.answer(
            f"the arguments are not valid JSON ({parsed.error}); nothing was run; make the call again"
        )
        return item
    if name is None:
        item = Checked(call, "unknown")
        listed = ", ".join(name for name, tool in tools.items() if not tool.deferred) or "none"
        named = _clip(call.name.strip())
        item.answer(
            f"there is no tool {named!r}; tools: {listed}"
            if named
            else "a tool call needs the name of a tool"
        )
        return item
    arguments = _arguments_text(call, parsed.repaired, parsed.value)
    if (name, arguments) != (call.name, call.arguments):
        call = replace(call, name=name, arguments=arguments)
    if parsed.kind == "not_object":
        item = Checked(call, "answered", tools[name])
        item.answer("the arguments must be a JSON object with the parameters by name; nothing was run")
        return item
    if name == BRIDGE:
        return _unwrap(call, parsed.value or {}, tools, cutoff)
    return Checked(call, "run", tools[name], coerce(parsed.value or {}, tools[name].parameters))


def _clip(name: str) -> str:
    return name if len(name) <= MAX_ECHOED else f"{name[:MAX_ECHOED]}…"


def _unwrap(
    call: ToolCall, given: Mapping[str, Any], tools: Mapping[str, ToolSpec], cutoff: float
) -> Checked:
    """Return the call that is meant, before anything else sees it: rules, approvals, limits and callbacks see
    the tool itself."""
    behind = tuple(name for name, tool in tools.items() if tool.deferred)
    named, wanted = str(given.get("name", "")), given.get("arguments") or {}
    inner = parse(wanted) if isinstance(wanted, str) else None
    arguments = inner.value if inner is not None else wanted
    name = named if named in behind else repair_name(named, behind, cutoff)
    if name is None or not isinstance(arguments, Mapping):
        item = Checked(call, "answered", tools[BRIDGE])
        missing = f"there is no tool {_clip(named)!r} to be called this way; find its name with tool_search"
        item.answer(
            missing
            if name is None
            else "arguments must be a JSON object with the parameters by name; nothing was run"
        )
        return item
    return Checked(call, "run", tools[name], coerce(dict(arguments), tools[name].parameters))


def _arguments_text(call: ToolCall, repaired: bool, value: Mapping[str, Any] | None) -> str:

    return json.dumps(value, ensure_ascii=False) if repaired or not call.arguments.strip() else call.arguments


def _with_unique_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    taken: set[str] = set()
    unique = []
    for number, call in enumerate(calls):
        call_id = call.id or fallback_id(call, number)
        if call_id in taken:
            call_id = f"{call_id}_{number}"
        taken.add(call_id)
        unique.append(call if call_id == call.id else replace(call, id=call_id))
    return unique


def contended_paths(calls: Sequence[Checked]) -> tuple[str, ...]:
    """Return the paths of the calls that could run at the same time, if that depends on where they lead; else
    nothing."""
    together = [item for item in calls if item.outcome is None and _parallel(item) and _paths_of(item)]
    if len(together) < 2 or all(item.spec and item.spec.effect == "pure" for item in together):
        return ()
    return tuple(dict.fromkeys(path for item in together for path in _paths_of(item)))


def segments(
    calls: Sequence[Checked], most: int, workdir: str, real: Mapping[str, str]
) -> Iterator[list[Checked]]:
    """Yield groups of calls that may run at the same time, in order; every other call is a barrier of its
    own. At most ``most`` calls run together. Relative paths begin at ``workdir``; ``real`` maps paths to
    where they lead."""
    run: list[Checked] = []
    for item in calls:
        alone = item.outcome is None and not _parallel(item)
        if run and (alone or len(run) >= most or any(_conflict(item, other, workdir, real) for other in run)):
            yield run
            run = []
        run.append(item)
        if alone:
            yield run
            run = []
    if run:
        yield run


def _parallel(item: Checked) -> bool:
    """Return whether the call may run beside others. Calls of a group are admitted one after the other before
    it begins, so those with paths may need approval; every other call that may need approval is a barrier."""
    spec = item.spec
    return (
        spec is not None
        and spec.concurrency == "parallel"
        and (spec.approval == "never" or bool(spec.path_arguments))
    )


def _conflict(one: Checked, other: Checked, workdir: str, real: Mapping[str, str]) -> bool:
    """Return whether two path tools conflict: one path contains the other, unless both only read."""
    if not (one.spec and other.spec) or one.spec.effect == other.spec.effect == "pure":
        return False
    return any(
        paths_conflict(real.get(a, a), real.get(b, b), workdir)
        for a in _paths_of(one)
        for b in _paths_of(other)
    )


def _paths_of(item: Checked) -> list[str]:
    """Return the paths of a call; an omitted path is the working directory."""
    if item.spec is None or item.arguments is None:
        return []
    return [str(item.arguments.get(name) or "") for name in item.spec.path_arguments]


# ----------------------------------------------------------------------------------------------------
# The rows of the calls of a reply, and the files that were not changed as intended.
#
# The store keeps all of a result, and the model sees a preview when it is long. A failed change of a file is
# named under the answer, because a person who reads "done" must not believe it (EXEC-33).


LEFT_OUT = (
    "\n\n[{left} more calls of the same reply were not run and are forgotten: at most {most} of one reply are"
    " run. Make those that are still needed again.]"
)
STEER = "\n\n[a message from the user, sent while you were working: {text}]"
DENIED = "denied: {why}. Do not try the same thing in other words; ask the user or continue without."
SHOWN = 10
"""Maximum files that are named; the others are counted."""


# Steering text joins the last tool result. Stored messages are immutable. Steering text is therefore added to
# the last result before it is stored: the message is stored once, and the store equals what was sent. Text
# that arrives too late is returned as `pending_steer`.


def store_results(
    turn: TurnState, calls: Sequence[Checked], steer: Sequence[str], news: Sequence[str]
) -> Asks[None]:
    """Store one row for each call, in call order. Append to the last of them the note about omitted calls,
    the user's message, and the reports on background tasks."""
    # Append to the last result before it is stored: a stored row never changes.
    assert turn.call.reply is not None
    left = len(turn.call.reply.tool_calls) - len(calls)
    added = [LEFT_OUT.format(left=left, most=len(calls))] if left else []
    added += [STEER.format(text="\n".join(steer))] if steer else []
    if added := [*added, *(f"\n\n{report}" for report in news)]:
        last = calls[-1]
        assert last.outcome is not None
        last.outcome = replace(last.outcome, text=last.outcome.text + "".join(added))
    note_files(turn, calls)
    rows = yield from _result_rows(turn, calls)
    turn.append(*rows)
    turn.tooling.end_round(
        ToolRound(item.call.name, item.call.arguments, row.text, _outcome(item).status == "ok")
        for item, row in zip(calls, rows, strict=True)
    )
    yield Persist(tuple(rows))
    yield from tell_parts(turn, rows)


def _result_rows(turn: TurnState, calls: Sequence[Checked]) -> Asks[list[Message]]:
    """Build one tool row for each call, in call order. Results over their limit go to a file, and then the
    largest of a reply that is over its limit as a whole; the model gets their preview and the path."""
    texts = [clean(_outcome(item).text) for item in calls]
    previews: list[str | None] = [None] * len(calls)
    for index in _too_long(turn, calls, texts):
        saved: Saved = yield Spill(calls[index].call.id, texts[index])
        where = (
            f"the whole result is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
        )
        previews[index] = shorten(texts[index], turn.settings.tool.preview_chars, where)
    return [
        Message(
            "tool",
            _content(texts[i], _outcome(item)),
            tool_call_id=item.call.id,
            name=item.call.name,
            sent=previews[i],
        )
        for i, item in enumerate(calls)
    ]


def _content(text: str, outcome: ToolOutcome) -> Content:
    return [{"type": "text", "text": text}, *outcome.content] if outcome.content else text


def _outcome(item: Checked) -> ToolOutcome:
    assert item.outcome is not None, f"call {item.call.id} has no outcome"
    return item.outcome


def _too_long(turn: TurnState, calls: Sequence[Checked], texts: Sequence[str]) -> list[int]:
    limits, window = turn.settings.tool, turn.setup.runtime.window
    one, all_of_them = limits.max_result_chars, limits.turn_result_chars
    if window:
        one = min(one, max(8_000, int(0.15 * window * CHARS_PER_TOKEN)))
        all_of_them = min(all_of_them, max(16_000, int(0.30 * window * CHARS_PER_TOKEN)))
    chosen = [
        i
        for i, item in enumerate(calls)
        if len(texts[i]) > ((item.spec and item.spec.max_result_chars) or one)
    ]
    rest = sorted((i for i in range(len(calls)) if i not in chosen), key=lambda i: -len(texts[i]))
    total = sum(len(texts[i]) for i in rest)
    for index in rest:
        if total <= all_of_them or len(texts[index]) <= limits.preview_chars:
            break
        chosen.append(index)
        total -= len(texts[index])
    return sorted(chosen)


# Files that did not change


def note_files(turn: TurnState, calls: Sequence[Checked]) -> None:
    """Record the files of calls that failed; a later call that changes the same file supersedes them."""
    for item in calls:
        if (
            item.spec is None
            or item.arguments is None
            or item.outcome is None
            or not changes_files(item.spec)
        ):
            continue
        for path in _paths(item.spec, item.arguments):
            where = posixpath.normpath(posixpath.join(turn.setup.workdir, path))
            status = item.outcome.status
            problem = "" if status == "ok" else f"{one_line(path, 200)} ({item.spec.name}: {status})"
            turn.tooling.note_file(where, problem)


def changes_files(tool: ToolSpec) -> bool:
    """Return whether the tool may change files that its arguments name."""
    return bool(tool.path_arguments) and tool.effect != "pure"


def footer(turn: TurnState) -> str:
    """Return the text to append to the final answer, or an empty one."""
    if not turn.tooling.unchanged_files or not turn.settings.tool.failed_files_footer:
        return ""
    lines = [f"- {line}" for line in turn.tooling.unchanged_files.values()]
    more = [f"- and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return (
        "\n\n[Files that were not changed, or perhaps not, because a tool failed:\n"
        + "\n".join(lines[:SHOWN] + more)
        + "]"
    )


def _paths(tool: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    return [value for name in tool.path_arguments if isinstance(value := arguments.get(name), str) and value]


NOT_FOR_PROGRAMS = PROGRAMMATIC | {BRIDGE}
"""Tools that no program may call; it may not begin child turns either: only rows of the table make requests
to models."""
TOO_MANY = "not run: one program may make {most} calls of tools"
OUT_OF_TIME = (
    "not started: the calls before it took the {seconds:g} s that those of one reply may take together; make"
    " it again if it is still needed"
)
HANDED_ALREADY = "not handed over: an earlier call of the same reply hands the conversation to {to}"
NOT_STARTED = "cancelled by the user before it started; it had no effect"


def run_calls(turn: TurnState, calls: Sequence[Checked]) -> Asks[bool]:
    """Run every call that has no outcome yet. Return true when the user interrupted; then the rest is not
    started."""
    interrupted, workdir, left = False, turn.setup.workdir, turn.settings.tool.batch_timeout
    real: dict[str, str] = {}
    if paths := contended_paths(calls):
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
            ended = yield from _finish_call(turn, item, outcome, left)
            used = max(used, ended.seconds if _shares_time(item) else 0.0)
            item.outcome = _with_warning(turn, item, _handover_outcome(turn, item, ended))
        left -= used
    return interrupted


# Whether a call may run


def _admit(turn: TurnState, item: Checked) -> Asks[bool]:
    """Decide whether this call may run, and set its outcome if not. Return true when the user interrupted
    instead of answering."""
    if item.outcome is not None or item.spec is None or item.arguments is None:
        return False
    if reason := turn.tooling.guardrails.refuses(
        item.spec.name, item.signature, turn.settings.guardrail, hard_stops(turn)
    ):
        item.answer(f"not run: {reason}. Stop repeating this call.")
        return False
    if turn.setup.checks.calls:
        shown: CallChanged = yield ShowCall(item.call.id, item.spec.name, item.arguments)
        if shown.arguments is not None:
            item.arguments, item.signature = shown.arguments, signature(item.spec.name, shown.arguments)
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
    item.answer(DENIED.format(why=approval.reason), "denied")
    return False


def hard_stops(turn: TurnState) -> bool:
    """Return whether loops are stopped: by default, when no person is present to stop them."""
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
    """Return whether the call has no time limit of its own: such calls share the time of the batch."""
    return item.spec is not None and item.spec.timeout is None


def _with_warning(turn: TurnState, item: Checked, outcome: ToolOutcome) -> ToolOutcome:
    assert item.spec is not None
    ok = outcome.status == "ok"
    if ok:
        turn.tooling.unverified = changes_files(item.spec)
    warning = turn.tooling.guardrails.note(
        item.spec.name,
        item.signature,
        ok,
        outcome.text,
        item.spec.effect,
        turn.settings.guardrail,
        hard_stops(turn),
    )
    return replace(outcome, text=f"{outcome.text}\n\n{warning}") if warning else outcome


def _keep_files(turn: TurnState, ready: Sequence[Checked]) -> Asks[None]:
    """Make a checkpoint before the first tool of the turn that may change files. If that fails, the tool runs
    nevertheless."""
    if not turn.settings.checkpoints.enabled or turn.tooling.kept_files == turn.turn_id:
        return
    for item in ready:
        if item.spec is not None and item.spec.writes_files:
            yield KeepFiles(turn.turn_id, item.spec.name)
            turn.tooling.kept_files = turn.turn_id
            return


def _handover_outcome(turn: TurnState, item: Checked, outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome of a call that may hand the conversation over: only the first of a reply does."""
    tooling = turn.tooling
    if outcome.hands_to and tooling.handed_to:
        return replace(outcome, status="error", text=HANDED_ALREADY.format(to=tooling.handed_to))
    if outcome.hands_to and item.arguments is not None:
        tooling.handed_to, tooling.handed_note = outcome.hands_to, str(item.arguments.get("note") or "")
    return outcome


# Calls that a program makes


def _finish_call(
    turn: TurnState, item: Checked, outcome: ToolOutcome | ProgramAsks, left: float
) -> Asks[ToolOutcome]:
    """Return the outcome of a call, after making the calls that its program requests, one by one."""
    calls = 0
    while isinstance(outcome, ProgramAsks):
        calls += 1
        call = ToolCall(f"{item.call.id}~{calls}", outcome.name, outcome.arguments)
        answer = yield from _call_from_program(turn, call, calls, left)
        outcome = yield AnswerProgram(item.call.id, calls, answer)
    return outcome


def _call_from_program(turn: TurnState, call: ToolCall, calls: int, left: float) -> Asks[ToolOutcome]:
    """Make the call under the same rules as every call of this turn."""
    tools = [
        tool
        for tool in turn.setup.tools
        if tool.name not in NOT_FOR_PROGRAMS and tool.concurrency != "interactive" and not tool.delegates
    ]
    [item] = check_calls([call], tools, turn.settings.fuzzy_name_cutoff)
    if calls > (most := turn.settings.tool.max_calls):
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
