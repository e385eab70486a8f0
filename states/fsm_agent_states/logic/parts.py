"""The parts of a turn. Each has one owner in ``OWNERS``, which may write its fields; all other modules call
its methods.

The stored form of a turn does not show the parts, so a field's name is unique among all of them. None holds
a clock, a connection or a callback. (Why: decision 84.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never

from fsm_agent.conversation.effects import (
    NO_CHECKS,
    AskExtension,
    Cancelled,
    Checks,
    Compacted,
    ExtensionAnswer,
    Failure,
    Lesson,
    LimitReached,
    ModelRequest,
    Opened,
    OutputSpec,
    Runtime,
    Signals,
    ToolSpec,
)
from fsm_agent.conversation.messages import AGENT_NAME, NO_USAGE, Message, ModelReply, Usage
from fsm_agent.conversation.result import HandoffStep
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.fsm.codec import STORED, STORED_AS
from fsm_agent.request import Effect
from fsm_agent.settings import GuardrailSettings
from fsm_agent.support.texts import one_line

# ----------------------------------------------------------------------------------------------------
# Loop detection among the tool calls of one turn: a repeated failure, a tool that keeps failing, a repeated
# result.
#
# Figures: warnings after 2 identical failures, 3 failures of one tool, 2 identical results of a read-only
# tool; hard stops, in a turn that no person attends, after 5, 8 and 5.


REMEMBERED = 128
"""Number of newest calls whose counts are kept, because they are stored with every move. A loop over more
calls is slow enough."""


@dataclass(slots=True)
class Guardrails:
    """Counts of this turn. ``halted`` is the reason of a hard stop, for the exit text and the result's
    ``guardrail``."""

    failed_calls: dict[str, int] = field(default_factory=dict)
    failed_tools: dict[str, int] = field(default_factory=dict)
    same_results: dict[str, tuple[str, int]] = field(default_factory=dict)
    halted: dict[str, Any] | None = None

    def refuses(self, name: str, key: str, limits: GuardrailSettings, hard: bool) -> str | None:
        """Return the reason to refuse the call with this signature, or ``None``. A refusal halts the turn
        after the batch."""
        if not hard:
            return None
        failures = self.failed_calls.get(key, 0)
        if failures >= limits.stop_exact:
            return self._halt(
                "exact_failure", name, failures, f"{name} failed {failures} times with these arguments"
            )
        repeats = self.same_results.get(key, ("", 0))[1]
        if repeats >= limits.stop_no_progress:
            return self._halt("no_progress", name, repeats, f"{name} gave the same result {repeats} times")
        return None

    def note(
        self,
        name: str,
        key: str,
        ok: bool,
        result: str,
        effect: Effect,
        limits: GuardrailSettings,
        hard: bool,
    ) -> str:
        """Count one result of the call with this signature. Return the warning to append to it, or the empty
        string."""
        if ok:
            self.failed_calls.pop(key, None)
            self.failed_tools.pop(name, None)
            return self._note_success(key, result, effect, limits)
        exact = self.failed_calls.get(key, 0) + 1
        _newest(self.failed_calls, key, exact)
        self.failed_tools[name] = same = self.failed_tools.get(name, 0) + 1
        if hard and same >= limits.stop_same:
            self._halt("same_tool", name, same, f"{name} failed {same} times in a row")
        if exact >= limits.warn_exact:
            return (
                f"[loop warning: this exact call failed {exact} times; change the arguments or the approach]"
            )
        if same >= limits.warn_same:
            return f"[loop warning: {name} failed {same} times; find out why before calling it again]"
        return ""

    def _note_success(self, key: str, result: str, effect: Effect, limits: GuardrailSettings) -> str:
        if effect != "pure":
            return ""
        digest = hashlib.sha256(result.encode("utf-8", "replace")).hexdigest()
        before, times = self.same_results.get(key, ("", 0))
        times = times + 1 if digest == before else 1
        _newest(self.same_results, key, (digest, times))
        return (
            f"[the same result {times} times: use what you have]"
            if times >= max(2, limits.warn_no_progress)
            else ""
        )

    def _halt(self, kind: str, tool: str, times: int, reason: str) -> str:
        self.halted = {"kind": kind, "tool": tool, "times": times, "reason": reason}
        return reason


def _newest(counts: dict[str, Any], key: str, value: Any) -> None:
    """Set the value as the newest one, and forget the oldest beyond the limit."""
    counts.pop(key, None)
    counts[key] = value
    while len(counts) > REMEMBERED:
        del counts[next(iter(counts))]


ELSEWHERE = {STORED: False}
"""Metadata of a field that is not in a stored snapshot: it is stored once, or derived from the rest."""

OWNERS: Mapping[str, str | None] = {
    "setup": None,
    "call": "build_messages",
    "accounting": None,
    "recovery": "logic.recover",
    "compaction": "compress",
    "draft": "call_llm",
    "tooling": "logic.running",
    "extended": None,
    "ending": "finalize",
}
"""The one module beside this one that may write the fields of a part; ``None`` if all writes go through
its methods."""


@dataclass(slots=True)
class Setup:
    """What the turn runs on: the main and auxiliary models, the tools, the prompt, and its agent's features.
    ``ephemeral_prompt``: text after the prompt, for this turn only. ``checks``: the optional checks.
    ``agent``: the name of the agent; ``handoffs``: the handoffs to it since the user's message.
    ``output``: the type of the answer, if it has one. ``trace``: the ``traceparent`` of its span, which a
    process that resumes the turn needs; no decision depends on it."""

    runtime: Runtime
    tools: tuple[ToolSpec, ...] = ()
    attended: bool = False
    system_prompt: str = ""
    workdir: str = "/"
    ephemeral_prompt: str = ""
    has_memory: bool = False
    has_engine: bool = False
    review_due: bool = False
    unnamed: bool = False
    checks: Checks = NO_CHECKS
    output: OutputSpec | None = None
    agent: str = AGENT_NAME
    handoffs: tuple[HandoffStep, ...] = ()
    auxiliary: tuple[Runtime, ...] = ()
    trace: str = ""
    tools_written: dict[str, bytes] = field(default_factory=dict, metadata=ELSEWHERE)

    def open(self, opened: Opened) -> None:
        """Apply the reply to ``OpenTurn``."""
        self.system_prompt = opened.system_prompt
        self.review_due, self.unnamed = opened.review_due, opened.unnamed
        self.reopen(opened)

    def reopen(self, opened: Opened, missing: Sequence[ToolSpec] = ()) -> None:
        """Continue with the agent's current features. ``gone``: tools that it has lost but that calls still
        name."""
        self.runtime, self.auxiliary, self.workdir = opened.runtime, opened.auxiliary, opened.workdir
        self.has_engine, self.checks, self.output = opened.engine, opened.checks, opened.output
        self.tools = (*opened.tools, *missing)

    def set_environment(self, *, attended: bool, has_memory: bool) -> None:
        """Set whether the agent that continues the turn has a user who answers, and an external memory."""
        self.attended, self.has_memory = attended, has_memory

    def set_trace(self, trace: str) -> None:
        """Observe the turn under this ``traceparent``."""
        self.trace = trace

    def switch_model(self, runtime: Runtime) -> None:
        """Continue with another model of the chain."""
        self.runtime = runtime

    def switch_runtime(self, runtime: Runtime) -> None:
        """Reach the same provider and model in another way; keep the window learned from an overflow."""
        self.runtime = replace(runtime, window=self.runtime.window)

    def narrow(self, window: int) -> bool:
        """Adopt a window smaller than the known one for the rest of the turn. Return whether it was
        smaller."""
        smaller = self.runtime.window is None or window < self.runtime.window
        if smaller:
            self.runtime = replace(self.runtime, window=window)
        return smaller

    def shorten_replies(self, tokens: int) -> None:
        """Lower the maximum length of the model's replies."""
        self.runtime = replace(self.runtime, most_output=min(tokens, self.runtime.most_output or tokens))

    def keep_written(self, shape: str, tools: bytes) -> bytes:
        """Return the written tool list for requests of this shape, made once."""
        self.tools_written[shape] = tools
        return tools


@dataclass(slots=True)
class CurrentCall:
    """The current call: its request and its reply. ``visible`` and ``thoughts``: the two parts of the reply's
    text; ``issuer``: the model that made them.

    ``prepaid``: the shared budget has already been charged for the next call block.
    ``stepped``: iterations whose start was announced. ``hint``: the request's note on how much of the window
    is left. ``affordable``: tokens that the reply may have without passing a limit in money or tokens.
    """

    request: ModelRequest | None = None
    reply: ModelReply | None = None
    visible: str = ""
    thoughts: str = ""
    issuer: str | None = None
    prepaid: bool = False
    stepped: int = 0
    hint: str = ""
    affordable: int | None = None

    @property
    def estimate(self) -> int:
        """Tokens of the request; 0 without one."""
        return self.request.estimate if self.request else 0

    def take_request(self) -> ModelRequest:
        """Return the request to send, and use up its payment."""
        assert self.request is not None, "BuildMessages is the only door to CallLLM"
        self.prepaid = False
        return self.request

    def set_budget(self, tokens: int | None) -> None:
        """Limit the tokens of the reply; ``None``: to what the request asks for."""
        self.affordable = tokens

    def receive(self, reply: ModelReply, visible: str, thoughts: str, issuer: str) -> None:
        """Take the reply, with its visible text, its reasoning, and its issuer."""
        self.reply, self.visible, self.thoughts, self.issuer = reply, visible, thoughts, issuer

    def reword(self, text: str) -> None:
        """Replace the visible text with a guardrail's version."""
        self.visible = text

    def cancel(self, cancelled: Cancelled, issuer: str) -> None:
        """Record that the user interrupted the call, and keep the reasoning so far."""
        self.thoughts, self.issuer = cancelled.reasoning, issuer


@dataclass(slots=True)
class Accounting:
    """The turn's usage. ``request_count``: requests that were sent, including summaries; ``unsent``:
    those that were paid for but not sent. ``usages``: tokens by provider and model. ``meter``: how full the
    window is; the session shares it."""

    request_count: int = field(default=0, metadata={STORED_AS: "sent"})
    unsent: int = 0
    usages: dict[tuple[str, str], Usage] = field(default_factory=dict)
    last_prompt_tokens: int = 0
    meter: ContextMeter = field(default_factory=ContextMeter)

    @property
    def usage(self) -> Usage:
        """The usage of all requests together."""
        return sum(self.usages.values(), NO_USAGE)

    def charge(self, reply: ModelReply | Failure | Cancelled, runtime: Runtime) -> None:
        """Record what a request to ``runtime`` cost, if it was sent. Each attempt that a row spent ends
        here."""
        self.request_count += reply.sent
        self.unsent += not reply.sent
        if reply.usage is not None:
            key = runtime.provider, runtime.model
            self.usages[key] = self.usages.get(key, NO_USAGE) + reply.usage

    def read(self, tokens: int, request: ModelRequest) -> None:
        """Record that the provider counted ``tokens`` of prompt for this request."""
        self.last_prompt_tokens = tokens
        self.meter.read(tokens, request.chars)

    def mute(self, muted: bool) -> None:
        """Set whether the estimate may not trigger a compaction until a reply gives the prompt's real
        size."""
        self.meter.muted = muted

    def forget(self) -> None:
        """Estimate again: the history was replaced, or another model counts from now on."""
        self.meter.forget()

    def share(self, meter: ContextMeter) -> None:
        """Measure with the meter of the session that the turn is in."""
        self.meter = meter


@dataclass(slots=True)
class Recovery:
    """What went wrong, and the remedies. ``failure_class`` and ``error`` are kept until a reply is
    read.

    ``silences``: consecutive silent requests, including those of the session's last turns. ``repairs_done``:
    changes of the request that this provider needs; ``pending_repair``: the next one. ``output_cap``: tokens
    that a refusal allowed the reply. ``suspected``: what refusals stated about the model, by the names of
    lessons, until a reply confirms it; ``lessons``: what was confirmed. ``scaffold``: rows after the history
    that are sent but never stored."""

    failure: Failure | None = None
    silences: int = 0
    failure_class: str = ""
    error: str = ""
    repairs_done: frozenset[str] = frozenset()
    pending_repair: str = ""
    output_cap: int | None = None
    suspected: dict[str, int] = field(default_factory=dict)
    lessons: tuple[Lesson, ...] = ()
    scaffold: tuple[Message, ...] = ()
    fallback_activated: bool = False

    def begin(self, silences: int, repairs: frozenset[str]) -> None:
        """Take over what the agent knows about its model."""
        self.silences, self.repairs_done = silences, repairs

    def fail(self, failure: Failure) -> None:
        """Record that a call brought no usable reply."""
        self.failure = failure
        self.silences += failure.kind == "stale"

    def crash(self, problem: str, error: BaseException) -> None:
        """Record a bug of our own."""
        self.failure = Failure("local", str(error), exception=type(error).__name__)
        self.failure_class, self.error = "local_bug", problem

    def classify(self, name: str) -> None:
        """Name the class of what went wrong."""
        self.failure_class = name

    def explain(self, name: str, message: str) -> None:
        """Name the class of what went wrong, and keep its message."""
        self.failure_class, self.error = name, one_line(message)

    def settle(self, explanation: str) -> None:
        """Set the final error of a turn without an answer: a whole sentence that says why, with the earlier
        error unless the sentence contains it."""
        known = (self.error or "").rstrip(".")
        self.error = explanation if known in explanation else f"{explanation} Before that: {known}."

    def succeed(self) -> None:
        """Clear the failure: a reply arrived."""
        self.failure_class, self.error, self.silences = "", "", 0

    def prove(self, runtime: Runtime) -> None:
        """Confirm what refusals stated about this model: it has replied."""
        if self.suspected.keys() & {"output", "window"}:  # these bound later requests more tightly
            self.output_cap = None
        for name, value in self.suspected.items():
            self.learn(runtime, name, value)
        self.suspected = {}

    def suspect(self, name: str, value: int = 1) -> None:
        """Record what a refusal states about the model; the next reply confirms it."""
        self.suspected = {**self.suspected, name: value}

    def learn(self, runtime: Runtime, name: str, value: int) -> None:
        """Keep this fact about the model for later turns; 0: the fact was disproved."""
        lesson = Lesson(runtime.provider, runtime.model, runtime.base_url, name, value)
        others = (one for one in self.lessons if replace(one, value=value) != lesson)
        self.lessons = (*others, lesson)

    def give_up(self, failure: Failure) -> None:
        """Record a failure without a request: the model went silent too often."""
        self.failure, self.silences = failure, 0

    def schedule_repair(self, repair: str) -> None:
        """Make this repair in the next BuildMessages, if the table agrees."""
        self.pending_repair = repair

    def schedule_cap(self, tokens: int) -> None:
        """Ask for at most this number of tokens in the next request."""
        self.output_cap = tokens
        self.schedule_repair("output_cap")

    def drop_scaffold(self) -> None:
        """Send nothing more after the history."""
        self.scaffold = ()


@dataclass(slots=True)
class Compaction:
    """Shortening the history. ``forced``: a refusal or a person asks for it, not the threshold.
    ``focus``: what a summary should be about. ``begun_at``: when the current one began, in seconds;
    ``unsummarized``: why the last model that was asked gave no summary. ``chosen``: the places of the rows
    to remove, if the user's context engine chose them. ``compacted_before``: in this session.
    ``compaction_blocked``: why none is tried. ``compressions``: figures of this turn's compactions."""

    forced: bool = False
    focus: str = ""
    begun_at: float = 0.0
    unsummarized: str = ""
    chosen: tuple[int, ...] | None = None
    compacted_before: bool = False
    compaction_blocked: str = ""
    compressions: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, known: Compacted) -> None:
        """Take over what the session knows about its compactions."""
        self.compacted_before, self.compaction_blocked = known.done > 0, known.blocked

    def start(self, at: float) -> None:
        """Begin a compaction."""
        self.begun_at, self.unsummarized, self.chosen = at, "", None

    def choose(self, goes: tuple[int, ...] | None) -> None:
        """Keep the context engine's choice of rows to remove; ``None``: drop the choice."""
        self.chosen = goes

    def record_no_summary(self, why: str) -> None:
        """Record that the model gave no summary."""
        self.unsummarized = why

    def judge(self, known: Compacted) -> None:
        """Take over the session's verdict on the last compaction: whether more of them would help."""
        self.compaction_blocked = known.blocked

    def force(self, focus: str = "") -> None:
        """Order a compaction that must gain something; ``focus``: what its summary should focus on."""
        self.forced, self.focus = True, focus or self.focus

    def relax(self) -> None:
        """Stop forcing a compaction."""
        self.forced = False


Keep = Literal["", "fragment", "partial", "held", "unchecked", "answer"]
"""What a turn keeps of a reply's text: nothing, because the reply has none or its text belongs to calls; a
piece that the next reply continues; a piece of an incomplete reply; a text that came too early and is the
answer if no other comes; the same, waiting for a check by tools; the answer."""


@dataclass(slots=True)
class Draft:
    """The text that becomes the answer, so far.

    ``fragments``: pieces of a truncated reply, to be continued. ``held``: a text written before the
    work was done; ``unchecked``: one that waits for a check by tools. ``prior_content``: text beside
    calls that only do housekeeping. ``partial``: a piece of an incomplete or interrupted reply.
    ``needs_break``: the next text begins a new paragraph. ``rejected``: an answer that was sent back,
    and ``objection``, why.
    ``admitted``: the guardrails that run beside a request admitted the message. ``passed``: the text that
    they let through.
    """

    fragments: list[str] = field(default_factory=list)
    held: str = ""
    unchecked: str = ""
    prior_content: str = ""
    partial: str = ""
    last_reasoning: str | None = None
    answer: str | None = None
    needs_break: bool = False
    rejected: str = ""
    objection: str = ""
    admitted: bool = False
    passed: str | None = None

    @property
    def begun(self) -> str:
        """The pieces to be continued, as one text."""
        return "".join(self.fragments)

    def keep(self, how: Keep, visible: str) -> None:
        """Keep the text of a reply in one of these ways."""
        match how:
            case "fragment":
                self.fragments.append(visible)
            case "answer":
                self.answer = self.begun + visible
            case "held" | "unchecked":
                self.held, self.fragments = self.begun + visible, []
                self.unchecked = self.held if how == "unchecked" else self.unchecked
            case "partial":
                if visible.strip():
                    self.partial, self.needs_break = visible, True
            case "":
                pass
            case _:
                assert_never(how)

    def call_tools(self, prior_content: str) -> None:
        """Clear the gathered text, which was shown beside calls. An answer that waits for its check outlives
        the tools that check it."""
        self.fragments, self.partial, self.held = [], "", self.unchecked
        self.prior_content, self.needs_break = prior_content, True


@dataclass(slots=True)
class ToolRound:
    """The outcomes of one reply's calls, for the step callback and the exit texts."""

    name: str
    arguments: str
    result: str
    ok: bool


@dataclass(slots=True)
class Tooling:
    """What tools did. ``unchanged_files``: those that a tool failed to change, with the reason.
    ``unverified``: whether the last action of a tool changed files. ``kept_files``: the turn that a
    checkpoint of files was requested for; a fork requests its own."""

    unchanged_files: dict[str, str] = field(default_factory=dict)
    guardrails: Guardrails = field(default_factory=Guardrails)
    unverified: bool = False
    kept_files: str = ""
    handed_to: str = ""
    handed_note: str = ""
    last_round: list[ToolRound] = field(default_factory=list, metadata=ELSEWHERE)

    def end_round(self, rounds: Iterable[ToolRound]) -> None:
        """Keep the outcomes of the newest reply's calls."""
        self.last_round = list(rounds)

    def trust_no_checkpoint(self) -> None:
        """Request a checkpoint again: the writer of the stored state may not have made one."""
        self.kept_files = ""

    def note_file(self, path: str, problem: str) -> None:
        """Record a tool's change of this file; ``problem`` is empty if it succeeded. The newest is last."""
        self.unchanged_files.pop(path, None)
        if problem:
            self.unchanged_files[path] = problem


@dataclass(slots=True)
class Extended:
    """Requests of extensions at named points. ``asks``: requests as declared when the turn began,
    so that it makes the same ones wherever it continues. ``replies``: the newest, by extension and kind."""

    asks: tuple[AskExtension, ...] = ()
    replies: Mapping[str, Any] = field(default_factory=dict)

    def note(self, request: AskExtension, answer: ExtensionAnswer) -> None:
        """Keep a reply. After a failure, drop the older one, which would be mistaken for the newest."""
        others = {name: one for name, one in self.replies.items() if name != request.listed()[0]}
        self.replies = others if answer.value is None else {**others, request.listed()[0]: answer.value}


@dataclass(slots=True)
class Ending:
    """How the turn ends, and the messages to its user beside the answer."""

    final_response: str | None = None
    response_transformed: bool = False
    interrupt_message: str | None = None
    blocked: dict[str, str] | None = None
    limit: LimitReached | None = None
    pending_steer: list[str] = field(default_factory=list)
    cleanup_errors: list[str] = field(default_factory=list)

    def refuse(self, by: str, reason: str, what: str) -> None:
        """Record that a guardrail blocked the message or the answer."""
        self.blocked = {"by": by, "reason": reason, "what": what}

    def limit_reached(self, limit: LimitReached | None) -> None:
        """Record the limit that the next request could have exceeded."""
        self.limit = limit

    def hear(self, signals: Signals) -> None:
        """Keep the message of the person who interrupted the turn, the first one if there are several."""
        self.interrupt_message = self.interrupt_message or signals.message

    def cost_a_step(self, problem: str) -> None:
        """Record a bug at the very end; the user reads beside the answer what it affected."""
        self.cleanup_errors.append(problem)
