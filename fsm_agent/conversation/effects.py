"""The requests that a state may make, and their replies.

Requests are imperatives, replies are nouns; all are plain frozen values, so a turn can be journaled,
replayed and stepped through. A state yields one request and receives its reply, or yields a list, whose
requests run concurrently, and receives the list of replies.

Each request declares how it is journaled, reused after a crash and replayed (``fsm_agent.request``). By
default it is pure: cheap, answered at once, and repeated when its visit is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from fsm_agent.conversation.messages import IN_DOUBT, Message, ModelReply, Usage
from fsm_agent.request import BY_EFFECT, Effect, Flush
from fsm_agent.request import Request as Declared

Concurrency = Literal["parallel", "serial", "interactive"]
ApiMode = Literal["chat_completions", "codex_responses", "anthropic_messages"]
OutputMode = Literal["native", "tool", "prompt"]
"""Ways to ask a model for a typed answer: its provider enforces the JSON schema, the model calls a tool whose
arguments are the answer, or the prompt contains the schema."""
NOTHING = object()
"""Marks a typed answer whose beginning is not a value yet."""
FINAL = "final_result"
"""The name of the tool whose arguments are the answer."""
Point = Literal[
    "Prepare.ready", "BuildMessages.built", "ExecuteTools.run", "ExecuteTools.done", "Finalize"
]  # fmt: skip
"""Points at which extensions may make requests: ready to begin, a request to the model built, the calls of a
reply about to run, all of them done, and the turn about to close."""

# Shared values


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The turn's view of a tool; the handler is behind the tool port. ``parameters``: a JSON schema object.
    ``timeout`` in seconds and ``max_result_chars``: ``None`` for the settings' defaults. ``path_arguments``:
    arguments that are paths; a ``parallel`` tool that has some runs beside others only if their paths are
    disjoint. ``deferred``: not listed in requests; the model finds it with ``tool_search`` and calls it with
    ``tool_call``. ``writes_files``: may change files of the working directory, so a checkpoint precedes it.
    ``delegates``: its calls are child turns, limited in number per reply and forbidden to programs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    concurrency: Concurrency = "serial"
    effect: Effect = "unsafe"
    path_arguments: tuple[str, ...] = ()
    timeout: float | None = None
    max_result_chars: int | None = None
    approval: Literal["never", "ask"] = "never"
    deferred: bool = False
    writes_files: bool = False
    delegates: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The turn's view of the answer's type; the type itself is behind ``CheckAnswer``. ``schema``: a JSON
    schema of an object. ``mode``: how to ask the model, ``None`` for its best way. ``wrapped``: the answer
    is not an object, so it is in the member ``result``."""

    name: str
    schema: Mapping[str, Any]
    mode: OutputMode | None = None
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A provider-specific sign of an error class. All given parts must match; ``codes`` and ``words`` are
    lower-case, and match if one of them does."""

    name: str
    statuses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """The provider in use and what remains to switch to. ``window``: tokens of a prompt, ``most_output`` of
    a reply, ``None`` if unknown. ``window_learned``: the window comes from a refusal in an earlier turn.
    ``repairs``: changes that its requests are known to need. ``vision``, ``audio``, ``files``: inputs
    besides text. ``stale_floor``: minimum seconds of silence to allow a model that thinks before it
    answers. ``structured_output``: its best way to give a typed answer. ``effort_key``: how chat
    completions ask for reasoning, empty if they cannot. ``manners``: the known provider whose wire this one
    speaks, if different. ``prompt_role``: role of the system prompt's message. ``next_window``: window of
    the next usable fallback. ``possible_rekeys``: the most that its pool of keys or that of a usable
    fallback allows. Flags come from the provider's profile."""

    provider: str
    model: str
    base_url: str | None = None
    api_mode: ApiMode = "chat_completions"
    window: int | None = None
    primary: bool = True
    local: bool = False
    aggregator: bool = False
    streaming: bool = True
    vision: bool = True
    manners: str = ""
    audio: bool = False
    files: bool = False
    output_key: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    stale_floor: float = 0.0
    cache_marks: bool = False
    effort_key: Literal["", "reasoning_effort", "reasoning"] = ""
    structured_output: OutputMode = "tool"
    prompt_role: Literal["system", "developer"] = "system"
    usable_fallbacks: int = 0
    possible_rekeys: int = 0
    next_window: int | None = None
    window_learned: bool = False
    most_output: int | None = None
    repairs: frozenset[str] = frozenset()
    error_rows: tuple[ErrorRow, ...] = ()

    @property
    def next_is_wider(self) -> bool:
        """Whether the next fallback has a larger window than the model in use."""
        return bool(self.next_window and self.window and self.next_window > self.window)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A fact about a model that a provider's refusal stated and the next reply confirmed. ``name``:
    ``window`` or ``output`` with tokens as ``value``, or the repair that its requests need. 0 means the
    fact was disproved."""

    provider: str
    model: str
    base_url: str | None
    name: str
    value: int = 1


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One outgoing request. ``body``: the exact JSON text of the wire, never stored, because it follows
    from the transcript. ``estimate``: its size in tokens. ``chars``: its size in characters with images at
    a flat rate."""

    body: bytes = field(default=b"", metadata={"stored": False})
    stream: bool = True
    toolless: bool = False
    purpose: Literal["turn", "summary"] = "turn"
    estimate: int = 0
    chars: int = 0


@dataclass(frozen=True, slots=True)
class LongContext:
    """A conversation to shorten. ``rows``: the transcript, oldest first. ``window`` of the model in tokens,
    all else in characters (``size_of``): current ``size``, ``goal`` to get below, ``most`` above which
    nothing is gained, ``room`` left after a provider refused the request (``None`` before a refusal).
    ``forced``: a provider or a person insists. ``compacted_before``: in this session. ``focus``: subject of
    the summary. ``preserved``: what an external memory wants to keep of the removed rows."""

    rows: tuple[Message, ...]
    window: int
    size: int
    goal: int
    most: float
    room: int | None = None
    forced: bool = False
    compacted_before: bool = False
    focus: str = ""
    preserved: str = ""


# Requests

MODEL = Flush(
    "a request goes to a model",
    "the row that paid for it",
    "a request that is lost is counted: no crash gives a turn more of them than its budget",
)
TOOL = Flush(
    "a tool that is unsafe or idempotent runs",
    "all with its intent",
    "an unsafe call runs at most once, an idempotent one under one key only",
)
PURE_TOOL = Flush("a pure tool runs", "nothing", "it changes nothing, so it may run again")
QUESTION = Flush("a person is asked", "all with its intent", "another process may answer it")
ENGINE = Flush("a context engine is asked", "all with its intent", "it is asked once for each step")
NOT_RUN = (
    "not run: what is done cannot be written down at the moment ({problem}), so nothing is done that cannot"
    " be undone"
)


ONCE = "may have taken effect, which is unknown: the process ended while it ran. It is not performed again"


class TurnRequest(Declared):
    """A request of an agent's turn."""

    __slots__ = ()

    effect: ClassVar[Effect] = "pure"
    intent: ClassVar[bool | None] = False
    reused: ClassVar[bool] = False
    replayed: ClassVar[bool] = True
    """In a replay of the whole turn the record answers the request; if false, it is performed."""

    def journalled(self, session: Any) -> Mapping[str, Any] | TurnRequest | None:
        """Return the part that the journal keeps: fields as JSON values, a smaller request, or ``None`` for
        the whole. ``session``: the turn's session, if any."""
        return None

    def listed(self) -> tuple[str, str, str]:
        """Return name, effect and key for lists of requests; empty for most kinds."""
        return "", "", ""

    def unwritten(self, problem: str) -> Reply | None:
        """Return the answer without a journal; ``None`` if the request is performed anyway."""
        return None


@dataclass(frozen=True, slots=True)
class OpenTurn(TurnRequest):
    """Restore the primary provider if it is not cooling down, load the session, read the tools."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Prefetch(TurnRequest):
    """Ask the external memory what is relevant to this text of the user."""

    reused: ClassVar[bool] = True

    text: str


@dataclass(frozen=True, slots=True)
class Preserve(TurnRequest):
    """Ask the external memory what a summary of these rows must keep."""

    reused: ClassVar[bool] = True

    rows: tuple[Message, ...]

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return the number of rows: the session keeps them."""
        return {"rows": len(self.rows)}


@dataclass(frozen=True, slots=True)
class AskEngine(TurnRequest):
    """Ask the user's context engine for one of its three steps. ``goes``, ``window`` and ``summary``:
    arguments of the step besides ``context``."""

    intent: ClassVar[bool | None] = True
    reused: ClassVar[bool] = True

    step: Literal["cut", "prompt", "rows"]
    context: LongContext
    goes: tuple[int, ...] = ()
    window: int = 0
    summary: str = ""

    @property
    def flush(self) -> Flush:
        return ENGINE

    def journalled(self, session: Any) -> Mapping[str, Any]:
        return {
            "step": self.step, "rows": len(self.context.rows), "goes": self.goes,
            "window": self.window, "summary": len(self.summary),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncMemory(TurnRequest):
    """Report a completed turn to the external memory, which stores it in the background."""

    user: str
    answer: str

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return nothing: the texts are in the transcript."""
        return {}


@dataclass(frozen=True, slots=True)
class BeginReview(TurnRequest):
    """Start a background child turn that reviews the conversation for what is worth keeping."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class NameSession(TurnRequest):
    """Start a background child turn that finds a title for the session."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class CheckSignals(TurnRequest):
    """Check for an interrupt, a steering text, or an exhausted shared budget. ``charge``: take one
    iteration from that budget."""

    reused: ClassVar[bool] = True

    charge: bool = False
    take_steer: bool = False

    def journalled(self, session: Any) -> CheckSignals:
        return self

    def consumes(self, reply: Signals) -> bool:
        """Return whether there is a steering text."""
        return bool(reply.steer)


@dataclass(frozen=True, slots=True)
class CallModel(TurnRequest):
    """One attempt at the model. ``stale_after`` and ``total`` in seconds. ``paragraph``: put a blank line
    before the first visible text. ``auxiliary``: index of a model for side tasks to use instead.
    ``attempt`` of ``most`` in a row for the same purpose."""

    effect: ClassVar[Effect] = "unsafe"
    reply: ClassVar[Any]
    intent: ClassVar[bool | None] = True
    reused: ClassVar[bool] = True
    paid: ClassVar[bool] = True

    request: ModelRequest
    stale_after: float
    total: float
    paragraph: bool = False
    auxiliary: int | None = None
    attempt: int = 1
    most: int = 1

    @property
    def flush(self) -> Flush:
        return MODEL

    def in_doubt(self) -> Failure:
        """Return ``LOST``: it was paid for once and is not sent again."""
        return LOST

    def doubtful(self, reply: Any) -> bool:
        """Return whether it is unknown if the request left."""
        return reply is LOST

    def recorded(self) -> CallModel:
        """Return the request without its body, which follows from the transcript; keeping each would cost
        the square of its length."""
        return replace(self, request=replace(self.request, body=b""))


@dataclass(frozen=True, slots=True)
class CheckMessage(TurnRequest):
    """Run the guardrails on this text of the user. ``beside``: those that run concurrently with the first
    request."""

    text: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class CheckAnswer(TurnRequest):
    """Check that this text is a valid answer (``typed``) and passes the guardrails."""

    text: str
    typed: bool = True


@dataclass(frozen=True, slots=True)
class CheckLimits(TurnRequest):
    """Check whether a request of this size, with a reply of this size, could exceed a limit in money,
    tokens or time. ``summary``: it is for a summary, which other models may serve."""

    prompt_tokens: int
    output_tokens: int
    summary: bool = False


@dataclass(frozen=True, slots=True)
class ShowRequest(TurnRequest):
    """Pass a request to the user's hooks before it is sent; ``attempt`` as in ``CallModel``."""

    request: ModelRequest
    attempt: int = 1

    def recorded(self) -> ShowRequest:
        """Return the request without its body, as in ``CallModel``."""
        return replace(self, request=replace(self.request, body=b""))


@dataclass(frozen=True, slots=True)
class ShowCall(TurnRequest):
    """Pass a call to the user's hooks before approval is requested."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeepFiles(TurnRequest):
    """Make a checkpoint of the working directory's files before ``tool`` changes them. ``key`` identifies
    the checkpoint, so that a repeated request makes only one."""

    reused: ClassVar[bool] = True

    key: str
    tool: str

    def listed(self) -> tuple[str, str, str]:
        return self.tool, "idempotent", self.key


@dataclass(frozen=True, slots=True)
class RunTool(TurnRequest):
    """Run one checked and approved call; a program may request calls of its own first. ``timeout`` in
    seconds. ``effect`` says whether the call may be repeated when its outcome is unknown; ``key`` is the
    same for every repetition of this call and differs from all others."""

    reply: ClassVar[Any]
    intent: ClassVar[bool | None] = True
    reused: ClassVar[bool] = True

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    timeout: float
    effect: Effect = "unsafe"  # type: ignore[misc]  # as its tool says
    key: str = ""

    @property
    def flush(self) -> Flush:
        return PURE_TOOL if self.effect == "pure" else TOOL

    def listed(self) -> tuple[str, str, str]:
        return self.name, self.effect, self.key

    def in_doubt(self) -> ToolOutcome:
        """Return an unknown outcome."""
        return ToolOutcome(self.call_id, "unknown", IN_DOUBT)

    def doubtful(self, reply: Any) -> bool:
        """Return whether the outcome is unknown."""
        return unknown(reply)

    def unwritten(self, problem: str) -> ToolOutcome | None:
        """Return that an unsafe call was not started."""
        if self.effect != "unsafe":
            return None
        return ToolOutcome(self.call_id, "not_started", NOT_RUN.format(problem=problem))


@dataclass(frozen=True, slots=True)
class AnswerProgram(TurnRequest):
    """Send the outcome of the tool call that the program of ``call_id`` requested, and resume the program.
    ``number`` counts the answers of this program."""

    reused: ClassVar[bool] = True

    call_id: str
    number: int
    outcome: ToolOutcome

    def doubtful(self, reply: Any) -> bool:
        """Return whether the program's outcome is unknown."""
        return unknown(reply)


@dataclass(frozen=True, slots=True)
class AskApproval(TurnRequest):
    """Ask a person whether this call may run; with no one to ask, the answer is no. ``pattern``: what a
    lasting answer will match. ``origin``: the child's task. ``why``: why this call needs approval. ``where``:
    where its sandbox would run it."""

    intent: ClassVar[bool | None] = True
    reused: ClassVar[bool] = True

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    pattern: str = ""
    origin: str = ""
    why: str = ""
    where: str = ""

    @property
    def question_id(self) -> str:
        """ID of the pending question."""
        return self.call_id

    @property
    def flush(self) -> Flush:
        return QUESTION

    def listed(self) -> tuple[str, str, str]:
        return self.name, "pure", ""


@dataclass(frozen=True, slots=True)
class ResolvePaths(TurnRequest):
    """Resolve links in these paths; relative ones begin at ``workdir``."""

    paths: tuple[str, ...]
    workdir: str


@dataclass(frozen=True, slots=True)
class Wait(TurnRequest):
    """Wait before the next attempt. ``retry_after`` (seconds, from the provider) overrides the computed
    backoff."""

    reused: ClassVar[bool] = True

    kind: Literal["exception", "invalid", "rebuild", "overflow", "empty"]
    attempt: int
    why: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class AskExtension(TurnRequest):
    """Ask an extension to perform a request of its own, of class ``kind``, at a named point. ``request``: its
    fields; ``effect``: as it declares; ``doubt``: its reply when a crash left the outcome unknown. ``key``
    is the same for every repetition of this request and differs from all others. ``ends``: a failure ends
    the turn."""

    reply: ClassVar[Any]
    intent: ClassVar[bool | None] = None
    reused: ClassVar[bool] = True
    replayed: ClassVar[bool] = False

    extension: str
    point: Point
    kind: str
    request: Mapping[str, Any]
    effect: Effect = "idempotent"  # type: ignore[misc]
    doubt: Mapping[str, Any] | None = None
    key: str = ""
    ends: bool = False

    @property
    def flush(self) -> Flush:
        return BY_EFFECT[self.effect]

    def listed(self) -> tuple[str, str, str]:
        return f"{self.extension} {self.kind}", self.effect, self.key

    def in_doubt(self) -> ExtensionAnswer:
        """Return the declared reply: an unsafe request is performed once."""
        return ExtensionAnswer(self.doubt, f"{self} {ONCE}", doubtful=True)

    def doubtful(self, reply: Any) -> bool:
        """Return whether it is unknown if the request took effect."""
        return isinstance(reply, ExtensionAnswer) and reply.doubtful

    def unwritten(self, problem: str) -> ExtensionAnswer | None:
        """Return the answer to an unsafe request: it is not performed."""
        if self.effect != "unsafe":
            return None
        return ExtensionAnswer(problem=f"{self} was {NOT_RUN.format(problem=problem)}")

    def __str__(self) -> str:
        return f"{self.kind} of extension {self.extension}"


@dataclass(frozen=True, slots=True)
class Rekey(TurnRequest):
    """Refresh the credential in use, or switch to the next one."""

    failure_class: str
    status: int | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class RebuildClient(TurnRequest):
    """Replace the connection pool of the primary."""


@dataclass(frozen=True, slots=True)
class SwitchProvider(TurnRequest):
    """Switch to the next usable entry of the fallback chain. ``cooldown`` keeps later turns off the primary
    for a while; ``wider_than`` requires a larger window, in tokens."""

    why: str
    cooldown: Literal["rate_limit", "none"] = "none"
    wider_than: int | None = None


@dataclass(frozen=True, slots=True)
class SwitchStreaming(TurnRequest):
    """Stop streaming: this provider and model only give whole replies."""


@dataclass(frozen=True, slots=True)
class Persist(TurnRequest):
    """Append these rows to the session. Idempotent by row identity."""

    replayed: ClassVar[bool] = False

    rows: tuple[Message, ...]

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return the numbers of its rows, which the session keeps."""
        return {"rows": len(self.rows) if session is None else session.numbers_of(self.rows)}


@dataclass(frozen=True, slots=True)
class ReplaceHistory(TurnRequest):
    """Replace the session's rows; the store keeps the old ones, inactive. ``rotate``: begin a child session
    instead."""

    replayed: ClassVar[bool] = False

    rows: tuple[Message, ...]
    rotate: bool = False

    def journalled(self, session: Any) -> Mapping[str, Any]:
        return {"rows": len(self.rows), "rotate": self.rotate}


@dataclass(frozen=True, slots=True)
class NoteCompaction(TurnRequest):
    """Record the outcome of a compaction or a summary call with the session. ``read`` reports a real token
    count."""

    what: Literal["succeeded", "nothing_gained", "summary_failed", "read"]
    with_model: bool = True
    fault: Literal["no_provider", "passing", "broken", "timeout"] = "passing"
    over: bool = False


@dataclass(frozen=True, slots=True)
class Spill(TurnRequest):
    """Save a whole tool result to a file and say where it is."""

    call_id: str
    text: str

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return the length of the text, which is in its file."""
        return {"call_id": self.call_id, "chars": len(self.text)}


@dataclass(frozen=True, slots=True)
class DumpRequest(TurnRequest):
    """Save the failed request with keys masked, for a person to inspect."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class Transform(TurnRequest):
    """Pass the delivered text to the user's ``transform`` callback; the transcript keeps the original."""

    text: str


@dataclass(frozen=True, slots=True)
class Tell(TurnRequest):
    """Notify the callbacks. ``channel``: a name of the callback table; ``values``: its arguments. ``once``:
    an agent reports these values only the first time."""

    reused: ClassVar[bool] = True
    replayed: ClassVar[bool] = False

    channel: str
    values: tuple[Any, ...] = ()
    once: bool = False

    def journalled(self, session: Any) -> Tell | None:
        """Return only the channel if the rest of the journal determines the values."""
        return None if self.channel in ("status", "event") else Tell(self.channel)


@dataclass(frozen=True, slots=True)
class CloseTurn(TurnRequest):
    """Release the turn's resources, each step separately, so that none can lose the answer.
    ``chain_exhausted``: every fallback failed, so the primary rests for a moment. ``silences``: consecutive
    silent requests, for the agent's next turn. ``lessons``: facts about models, for later turns."""

    replayed: ClassVar[bool] = False

    chain_exhausted: bool = False
    silences: int = 0
    lessons: tuple[Lesson, ...] = ()


# Replies


@dataclass(frozen=True, slots=True)
class Compacted:
    """``done``: compactions of this session. ``blocked``: why automatic compaction is off for now, or
    empty."""

    done: int = 0
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks that an agent requests in a turn. ``message``, ``beside`` (the first request) and ``answer``:
    guardrails; ``answer`` also for a typed answer. ``output_tool``: the tool whose call is the answer.
    ``limits``: in money, tokens or time. ``requests``, ``calls``: hooks that see them first."""

    message: bool = False
    beside: bool = False
    answer: bool = False
    output_tool: str = ""
    limits: bool = False
    requests: bool = False
    calls: bool = False


NO_CHECKS = Checks()


@dataclass(frozen=True, slots=True)
class Opened:
    """The start of a turn. ``session_rows``: rows stored so far. ``workdir``: base of relative paths.
    ``review_due``: the notes are due for a review. ``unnamed``: the session needs a title. ``news``:
    reports of background tasks. ``silences``: consecutive silent requests at the end of the agent's last
    turn. ``engine``: the user provides a context engine. ``output``: the type of the answer, if any."""

    runtime: Runtime
    tools: tuple[ToolSpec, ...]
    session_rows: tuple[Message, ...] = ()
    system_prompt: str = ""
    workdir: str = "/"
    notices: tuple[str, ...] = ()
    auxiliary: tuple[Runtime, ...] = ()
    compacted: Compacted = Compacted()
    review_due: bool = False
    unnamed: bool = False
    news: tuple[str, ...] = ()
    silences: int = 0
    engine: bool = False
    checks: Checks = NO_CHECKS
    output: OutputSpec | None = None


@dataclass(frozen=True, slots=True)
class Prefetched:
    """What was recalled, possibly empty. ``problem``: why there is less than expected."""

    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A context engine's answer. ``places``: for ``cut``, indexes of the rows to remove; for ``rows``,
    indexes of the shorter conversation in order: into the old conversation followed by ``made``, the new
    rows. ``problem``: why there is no answer."""

    places: tuple[int, ...] = ()
    prompt: str = ""
    made: tuple[Message, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ExtensionAnswer:
    """``value``: an extension's reply to its own request, as JSON, or ``None``. ``problem``:
    what went wrong, with the extension's name, else empty. ``doubtful``: the request may have taken
    effect."""

    value: Mapping[str, Any] | None = None
    problem: str = ""
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Signals:
    """``starved``: the shared budget is exhausted. ``at``: time of the check, in seconds. ``news``: reports
    of background tasks, if steering texts were requested."""

    interrupted: bool = False
    message: str | None = None
    steer: tuple[str, ...] = ()
    starved: bool = False
    at: float = 0.0
    news: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without a usable reply. A value, because the table has rows for it.

    ``kind``: ``http`` (the provider answered with an error), ``transport`` (no answer or a broken one),
    ``stale`` (killed by the watchdog), ``breaker`` (not sent: too many stale attempts in a row), ``capped``
    (not sent: the tree of turns has used all its requests), ``lost`` (its process ended before the reply),
    ``shape`` (200 without a reply), ``encode`` (the request could not be written), ``local`` (a bug of
    ours). ``message``: one masked line of at most 500 characters; ``code``: the provider's structured code
    or type; ``exception``: the class name; ``detail``: all texts of the error, lower-cased, for matching.
    ``retry_after`` in seconds from now. ``sent``: the first byte was handed to a connection, so the
    provider may have received it. ``refreshable`` and ``other_keys``: what the credentials could still do."""

    kind: Literal["http", "transport", "stale", "breaker", "capped", "lost", "shape", "encode", "local"]
    message: str
    status: int | None = None
    code: str = ""
    exception: str = ""
    detail: str = ""
    retry_after: float | None = None
    usage: Usage | None = None
    sent: bool = True
    refreshable: bool = False
    other_keys: int = 0


LOST = Failure("lost", "the process ended before the reply came; the request may or may not have left")
"""Replaces the reply of a model request after a crash."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user interrupted. ``text``: visible so far; ``usage``: reported so far; ``sent`` as in
    ``Failure``."""

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    sent: bool = True


ToolStatus = Literal["ok", "error", "timeout", "cancelled", "denied", "unknown", "not_started"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call, exactly one for each. ``unknown``: it was started and may have taken effect.
    ``changed_by``: hooks that changed the text. ``hands_to``: the agent that takes over the conversation."""

    call_id: str
    status: ToolStatus
    text: str
    seconds: float = 0.0
    content: tuple[Mapping[str, Any], ...] = ()
    changed_by: tuple[str, ...] = ()
    hands_to: str = ""


def unknown(reply: Any) -> bool:
    """Return whether a reply is the outcome of a call that may or may not have taken effect."""
    return isinstance(reply, ToolOutcome) and reply.status in ("unknown", "timeout")


@dataclass(frozen=True, slots=True)
class ProgramAsks:
    """The program of ``call_id`` requests this tool call and waits; replaces an outcome. ``arguments`` as
    JSON text, as a model would write them."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Approval:
    """``scope``: how long the answer is remembered, under ``pattern`` (that of the question when empty)."""

    granted: bool
    reason: str = ""
    scope: Literal["once", "session", "always"] = "once"
    interrupted: bool = False
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class ResolvedPaths:
    """Absolute paths without links, in the order of the question."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageChecked:
    """``blocked``: why the message is refused, else empty. ``text``: the changed message, ``None`` if
    unchanged. ``by``: names of the guardrails that did either."""

    blocked: str = ""
    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerChecked:
    """``problem``: what the model must fix, empty if the answer is valid. ``blocked``, ``text`` and ``by``
    as in ``MessageChecked``."""

    problem: str = ""
    blocked: str = ""
    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit that stops a turn. In US dollars, tokens or seconds (``unit``): the ``limit``, what was
    ``spent``, and the most and the ``least`` that the next ``request`` could take, the latter with a short
    reply (0 for seconds)."""

    scope: Literal["turn", "tree", "session", "day"]
    unit: Literal["usd", "tokens", "seconds"]
    limit: float
    spent: float
    request: float = 0.0
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitsChecked:
    """``over``: the kind of limit that could be exceeded, else empty. ``why``: which one, what was spent,
    and what the request may cost; ``limit``: the same as values. ``output_tokens``: maximum reply that
    exceeds no limit, ``None`` without a limit in money or tokens."""

    over: Literal["", "cost", "tokens", "time"] = ""
    why: str = ""
    limit: LimitReached | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestChanged:
    """Changes that hooks made to a request. ``options``: fields of its body by name, ``None`` to omit one;
    ``rows``: appended messages, in wire form. ``answer``: a reply in place of the model's; ``blocked``: why
    the request is refused; with either, nothing is sent. ``by``: names of the hooks."""

    options: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    answer: str | None = None
    blocked: str = ""
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallChanged:
    """Changes that hooks made to a call: other ``arguments``, or a ``result`` in place of the tool's;
    ``None`` for neither. ``by``: names of the hooks."""

    arguments: Mapping[str, Any] | None = None
    result: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waited:
    """The seconds waited, and whether an interrupt ended the wait."""

    seconds: float
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """The session that now holds the rows, and the time of the change."""

    session_id: str
    parent_session_id: str | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Switched:
    """The runtime after a switch, refresh, rotation or rebuild. ``ok`` is false when it could not be done;
    then ``detail`` says why and the runtime is as before."""

    ok: bool
    runtime: Runtime
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """``path`` is empty and ``error`` set when saving failed."""

    path: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FilesKept:
    """``checkpoint`` is empty when none could be made; ``problem`` says why."""

    checkpoint: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Transformed:
    """``text`` is ``None`` if unchanged. ``by``: names of the hooks that changed it."""

    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The reply to requests that return nothing. ``problems``: errors that did not stop the turn."""

    problems: tuple[str, ...] = ()


CallModel.reply, RunTool.reply = ModelReply | Failure | Cancelled, ToolOutcome
AskExtension.reply = ExtensionAnswer
Request = (
    OpenTurn
    | Prefetch
    | Preserve
    | AskEngine
    | SyncMemory
    | BeginReview
    | NameSession
    | CheckSignals
    | CheckMessage
    | CheckAnswer
    | CheckLimits
    | ShowRequest
    | ShowCall
    | CallModel
    | KeepFiles
    | RunTool
    | AnswerProgram
    | AskApproval
    | ResolvePaths
    | Wait
    | AskExtension
    | Rekey
    | RebuildClient
    | SwitchProvider
    | SwitchStreaming
    | Persist
    | ReplaceHistory
    | NoteCompaction
    | Spill
    | DumpRequest
    | Transform
    | Tell
    | CloseTurn
)
KINDS: Mapping[str, type[TurnRequest]] = {kind.__name__: kind for kind in get_args(Request)}
Reply = (
    Opened
    | Prefetched
    | EngineAnswer
    | ExtensionAnswer
    | Signals
    | MessageChecked
    | AnswerChecked
    | LimitsChecked
    | RequestChanged
    | CallChanged
    | ModelReply
    | Failure
    | Cancelled
    | ToolOutcome
    | ProgramAsks
    | Approval
    | ResolvedPaths
    | Waited
    | Switched
    | Replaced
    | Compacted
    | Saved
    | FilesKept
    | Transformed
    | Done
)
