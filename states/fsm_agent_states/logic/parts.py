"""The parts of a turn, each with one owner: who may write its fields is in ``OWNERS``, all others call its
methods.

What is stored of a turn does not show the parts, so a field's name is used once over all of them. None holds
a clock, a connection or a callback. (Why: decision 84.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never

from fsm_agent.conversation.arguments import signature
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
from fsm_agent.conversation.handover import AGENT_NAME, HandoffStep
from fsm_agent.conversation.messages import NO_USAGE, Message, ModelReply, Usage
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.fsm.codec import STORED, STORED_AS
from fsm_agent.request import Effect
from fsm_agent.settings.model import GuardrailSettings
from fsm_agent.support.texts import one_line

# ----------------------------------------------------------------------------------------------------
# Loop detection among tool calls of one turn: the same failure again, the same tool failing, the same
# result again.
#
# Figures: warnings after 2 identical failures, 3 failures of one tool, 2 identical results of a read-only
# tool; hard stops, in a turn that no person attends, after 5, 8 and 5.


REMEMBERED = 128
"""Calls whose counts are kept, the newest: they are stored with every move. A loop among more calls than that
is slow enough."""


@dataclass(slots=True)
class Guardrails:
    """Counts of this turn. ``halted`` is the reason of a hard stop, for the exit text and the result's
    ``guardrail``."""

    failed_calls: dict[str, int] = field(default_factory=dict)
    failed_tools: dict[str, int] = field(default_factory=dict)
    same_results: dict[str, tuple[str, int]] = field(default_factory=dict)
    halted: dict[str, Any] | None = None

    def refuses(
        self, name: str, arguments: Mapping[str, Any], limits: GuardrailSettings, hard: bool
    ) -> str | None:
        """A reason not to run this call at all, or ``None``. A refusal halts the turn after the batch."""
        if not hard:
            return None
        key = signature(name, arguments)
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
        arguments: Mapping[str, Any],
        ok: bool,
        result: str,
        effect: Effect,
        limits: GuardrailSettings,
        hard: bool,
    ) -> str:
        """Count one result; the text to append to it as a warning, or nothing."""
        key = signature(name, arguments)
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
"""Not part of a stored snapshot: it is stored once, or made of the rest again."""

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
"""The one module beside this one that may write the fields of a part; ``None`` where all is done by
methods."""


@dataclass(slots=True)
class Setup:
    """What the turn runs on: the main and auxiliary models, the tools, the prompt, and what its agent has.
    ``ephemeral_prompt``: text behind the prompt for this turn alone. ``checks``: the optional checks.
    ``agent``: the name of the agent; ``handoffs``: how the conversation reached it since the user's message.
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
        """Take over what the turn is opened with."""
        self.system_prompt = opened.system_prompt
        self.review_due, self.unnamed = opened.review_due, opened.unnamed
        self.reopen(opened)

    def reopen(self, opened: Opened, gone: Sequence[ToolSpec] = ()) -> None:
        """Continue with what the agent has now. ``gone``: tools that it no longer has but calls still
        name."""
        self.runtime, self.auxiliary, self.workdir = opened.runtime, opened.auxiliary, opened.workdir
        self.has_engine, self.checks, self.output = opened.engine, opened.checks, opened.output
        self.tools = (*opened.tools, *gone)

    def set_environment(self, *, attended: bool, has_memory: bool) -> None:
        """Set what the agent that continues the turn has: a user who answers, an external memory."""
        self.attended, self.has_memory = attended, has_memory

    def set_trace(self, trace: str) -> None:
        """Observe the turn under this ``traceparent``."""
        self.trace = trace

    def switch_model(self, runtime: Runtime) -> None:
        """Continue with another model of the chain."""
        self.runtime = runtime

    def switch_runtime(self, runtime: Runtime) -> None:
        """Reach the same provider and model in another way; keep what an overflow taught of its window."""
        self.runtime = replace(runtime, window=self.runtime.window)

    def narrow(self, window: int) -> bool:
        """A window that is smaller than the one we knew of is believed for the rest of the turn; was it?"""
        smaller = self.runtime.window is None or window < self.runtime.window
        if smaller:
            self.runtime = replace(self.runtime, window=window)
        return smaller

    def shorten_replies(self, tokens: int) -> None:
        """The model is said to write no longer replies than this."""
        self.runtime = replace(self.runtime, most_output=min(tokens, self.runtime.most_output or tokens))

    def keep_written(self, shape: str, tools: bytes) -> bytes:
        """The tool list as it is written for requests of this shape; made once."""
        self.tools_written[shape] = tools
        return tools


@dataclass(slots=True)
class CurrentCall:
    """The call in hand: its request, and what came back. ``visible`` and ``thoughts``: the reply's text in
    its two parts; ``issuer``: who made them.

    ``prepaid``: the budget that several turns share has been asked for the next call block already.
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
        """Return the request, which is about to be sent, and use up what was paid for it."""
        assert self.request is not None, "BuildMessages is the only door to CallLLM"
        self.prepaid = False
        return self.request

    def set_budget(self, tokens: int | None) -> None:
        """Limit the tokens of the reply; ``None``: to what the request asks for."""
        self.affordable = tokens

    def receive(self, reply: ModelReply, visible: str, thoughts: str, issuer: str) -> None:
        """Take the reply, with what is spoken and what is thought in it, and who made it."""
        self.reply, self.visible, self.thoughts, self.issuer = reply, visible, thoughts, issuer

    def reword(self, text: str) -> None:
        """A guardrail made this of what is shown of the reply."""
        self.visible = text

    def cancel(self, cancelled: Cancelled, issuer: str) -> None:
        """Note that the user interrupted the call, and keep what the model thought until then."""
        self.thoughts, self.issuer = cancelled.reasoning, issuer


@dataclass(slots=True)
class Accounting:
    """What the turn has used. ``request_count``: requests that went out, summaries included; ``unsent``:
    those that were paid for and did not. ``usages``: tokens by provider and model. ``meter``: how full the
    window is; the session shares it."""

    request_count: int = field(default=0, metadata={STORED_AS: "sent"})
    unsent: int = 0
    usages: dict[tuple[str, str], Usage] = field(default_factory=dict)
    last_prompt_tokens: int = 0
    meter: ContextMeter = field(default_factory=ContextMeter)

    @property
    def usage(self) -> Usage:
        """Of all requests together."""
        return sum(self.usages.values(), NO_USAGE)

    def charge(self, reply: ModelReply | Failure | Cancelled, runtime: Runtime) -> None:
        """Note what a request to ``runtime`` cost, if it went out. Each attempt that a row spent ends
        here."""
        self.request_count += reply.sent
        self.unsent += not reply.sent
        if reply.usage is not None:
            key = runtime.provider, runtime.model
            self.usages[key] = self.usages.get(key, NO_USAGE) + reply.usage

    def read(self, tokens: int, request: ModelRequest) -> None:
        """The provider counted ``tokens`` of prompt for this request."""
        self.last_prompt_tokens = tokens
        self.meter.read(tokens, request.chars)

    def mute(self, muted: bool) -> None:
        """Should the estimate call for no compaction until a reply says how long the prompt really is?"""
        self.meter.muted = muted

    def forget(self) -> None:
        """The history was replaced, or another model counts from here on: estimate afresh."""
        self.meter.forget()

    def share(self, meter: ContextMeter) -> None:
        """Measure with the meter of the session that the turn is in."""
        self.meter = meter


@dataclass(slots=True)
class Recovery:
    """What went wrong, and what is done about it. ``failure_class`` and ``error`` are kept until a reply is
    read.

    ``silences``: requests in a row that went silent, those of the session's last turns included.
    ``repairs_done``: changes of the request that this provider needs; ``pending_repair``: the next one.
    ``output_cap``: tokens that a refusal allowed the reply. ``suspected``: what refusals said of the model,
    by the names of lessons, until a reply proves it; ``lessons``: what was proved. ``scaffold``: rows after
    the history that are sent and never stored.
    """

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
        """Take over what the agent knows of its model."""
        self.silences, self.repairs_done = silences, repairs

    def fail(self, failure: Failure) -> None:
        """A call brought no usable reply."""
        self.failure = failure
        self.silences += failure.kind == "stale"

    def crash(self, problem: str, error: BaseException) -> None:
        """A bug of our own."""
        self.failure = Failure("local", str(error), exception=type(error).__name__)
        self.failure_class, self.error = "local_bug", problem

    def classify(self, name: str) -> None:
        """Name the class of what went wrong."""
        self.failure_class = name

    def explain(self, name: str, message: str) -> None:
        """Name the class of what went wrong, and keep what was said of it."""
        self.failure_class, self.error = name, one_line(message)

    def settle(self, explanation: str) -> None:
        """The turn ends without an answer: the error is the whole sentence that says why, with what was wrong
        before where the sentence does not say it."""
        known = (self.error or "").rstrip(".")
        self.error = explanation if known in explanation else f"{explanation} Before that: {known}."

    def succeed(self) -> None:
        """A reply came: nothing is wrong any more."""
        self.failure_class, self.error, self.silences = "", "", 0

    def prove(self, runtime: Runtime) -> None:
        """A reply came from this model: what refusals before it said is true."""
        if self.suspected.keys() & {"output", "window"}:  # they bound later requests better than it does
            self.output_cap = None
        for name, value in self.suspected.items():
            self.learn(runtime, name, value)
        self.suspected = {}

    def suspect(self, name: str, value: int = 1) -> None:
        """A refusal says this of the model; the next reply proves it."""
        self.suspected = {**self.suspected, name: value}

    def learn(self, runtime: Runtime, name: str, value: int) -> None:
        """Keep this of the model for later turns; 0: what was learned is not so."""
        lesson = Lesson(runtime.provider, runtime.model, runtime.base_url, name, value)
        others = (one for one in self.lessons if replace(one, value=value) != lesson)
        self.lessons = (*others, lesson)

    def give_up(self, failure: Failure) -> None:
        """The model went silent too often: it is not asked this time."""
        self.failure, self.silences = failure, 0

    def schedule_repair(self, repair: str) -> None:
        """Make this repair in the next BuildMessages, if the table agrees."""
        self.pending_repair = repair

    def schedule_cap(self, tokens: int) -> None:
        """Ask for no more than this number of tokens in the next request."""
        self.output_cap = tokens
        self.schedule_repair("output_cap")

    def drop_scaffold(self) -> None:
        """Send nothing more behind the history."""
        self.scaffold = ()


@dataclass(slots=True)
class Compaction:
    """Making the history shorter. ``forced``: not our wish, a refusal (or a person) asks for it.
    ``focus``: what a summary should be about. ``begun_at``: when the one at hand began, in seconds;
    ``unsummarized``: why the last model that was asked gave it no summary. ``chosen``: the places of the rows
    that go, if the user's context engine said so. ``compacted_before``: in this session.
    ``compaction_blocked``: why none is tried. ``compressions``: figures of those of this turn."""

    forced: bool = False
    focus: str = ""
    begun_at: float = 0.0
    unsummarized: str = ""
    chosen: tuple[int, ...] | None = None
    compacted_before: bool = False
    compaction_blocked: str = ""
    compressions: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, known: Compacted) -> None:
        """Take over what the session knows of its compactions."""
        self.compacted_before, self.compaction_blocked = known.done > 0, known.blocked

    def start(self, at: float) -> None:
        """A compaction begins now."""
        self.begun_at, self.unsummarized, self.chosen = at, "", None

    def choose(self, goes: tuple[int, ...] | None) -> None:
        """The context engine says which rows go; ``None``: what it said does not count any more."""
        self.chosen = goes

    def not_summarized(self, why: str) -> None:
        """The model that was asked gave no summary."""
        self.unsummarized = why

    def judge(self, known: Compacted) -> None:
        """What the session makes of the last compaction: are more of them of use?"""
        self.compaction_blocked = known.blocked

    def force(self, focus: str = "") -> None:
        """Order a compaction that must gain something; ``focus``: what its summary is to dwell on."""
        self.forced, self.focus = True, focus or self.focus

    def relax(self) -> None:
        """Nothing forces a compaction any more."""
        self.forced = False


Keep = Literal["", "fragment", "partial", "held", "unchecked", "answer"]
"""What a turn keeps of a reply's text: nothing, because the reply has none or its text belongs to calls; a
piece that the next reply continues; a piece of an incomplete reply; a text that came too early and is the
answer if no other comes; the same, waiting for a check by tools; the answer."""


@dataclass(slots=True)
class Draft:
    """The text that becomes the answer, as far as there is any.

    ``fragments``: pieces of a reply that was cut, to be continued. ``held``: a text that was said before the
    work was done; ``unchecked``: one that waits for a check by tools. ``prior_content``: what was said beside
    calls that only put things in order. ``partial``: a piece of an incomplete or interrupted reply.
    ``needs_break``: what comes next is a paragraph of its own. ``rejected``: an answer that was sent back,
    and ``objection``, why.
    ``admitted``: the message is let in by those who look at it beside a request. ``passed``: the text that
    was let out.
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
        """The pieces that are to be continued, as one text."""
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
        """What was gathered went out beside calls. An answer that waits for its check outlives the tools that
        check it."""
        self.fragments, self.partial, self.held = [], "", self.unchecked
        self.prior_content, self.needs_break = prior_content, True


@dataclass(slots=True)
class ToolRound:
    """What one reply's calls led to, for the step callback and the exit texts."""

    name: str
    arguments: str
    result: str
    ok: bool


@dataclass(slots=True)
class Tooling:
    """What tools did. ``unchanged_files``: those that a tool was to change and did not, with why.
    ``unverified``: was the last thing that a tool did a change of files? ``kept_files``: the turn that a
    checkpoint of files was asked for; another one in a fork, which asks for its own."""

    unchanged_files: dict[str, str] = field(default_factory=dict)
    guardrails: Guardrails = field(default_factory=Guardrails)
    unverified: bool = False
    kept_files: str = ""
    handed_to: str = ""
    handed_note: str = ""
    last_round: list[ToolRound] = field(default_factory=list, metadata=ELSEWHERE)

    def end_round(self, rounds: Iterable[ToolRound]) -> None:
        """Keep what the calls of the newest reply led to."""
        self.last_round = list(rounds)

    def trust_no_checkpoint(self) -> None:
        """Ask for one again, whatever is stored: who wrote that may not have made any."""
        self.kept_files = ""

    def note_file(self, path: str, problem: str) -> None:
        """A tool was to change this file; ``problem`` is empty when it did. The newest is last."""
        self.unchanged_files.pop(path, None)
        if problem:
            self.unchanged_files[path] = problem


@dataclass(slots=True)
class Extended:
    """What extensions ask for at named points. ``asks``: requests as they were declared when the turn began,
    so that it asks for the same wherever it continues. ``replies``: the newest, by extension and kind."""

    asks: tuple[AskExtension, ...] = ()
    replies: Mapping[str, Any] = field(default_factory=dict)

    def note(self, request: AskExtension, answer: ExtensionAnswer) -> None:
        """Keep a reply. After a failure it is dropped: an older one would be taken for the newest."""
        others = {name: one for name, one in self.replies.items() if name != request.listed()[0]}
        self.replies = others if answer.value is None else {**others, request.listed()[0]: answer.value}


@dataclass(slots=True)
class Ending:
    """How the turn ends, and what its user reads beside the answer."""

    final_response: str | None = None
    response_transformed: bool = False
    interrupt_message: str | None = None
    blocked: dict[str, str] | None = None
    limit: LimitReached | None = None
    pending_steer: list[str] = field(default_factory=list)
    cleanup_errors: list[str] = field(default_factory=list)

    def refuse(self, by: str, reason: str, what: str) -> None:
        """A guardrail let the message, or the answer, not through."""
        self.blocked = {"by": by, "reason": reason, "what": what}

    def limit_reached(self, limit: LimitReached | None) -> None:
        """The next request could have passed this limit."""
        self.limit = limit

    def hear(self, signals: Signals) -> None:
        """Keep what a person said who interrupted the turn, the first of it."""
        self.interrupt_message = self.interrupt_message or signals.message

    def cost_a_step(self, problem: str) -> None:
        """Record a bug at the very end: the user reads beside the answer what it spoiled."""
        self.cleanup_errors.append(problem)
