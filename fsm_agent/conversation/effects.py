"""What a state may ask for, and what it gets back.

Requests are imperatives, replies are nouns; all are plain frozen values, so a turn can be journalled,
replayed and stepped through. A state yields one request and receives its reply, or yields a list and receives
the list of replies: the requests of a list run at the same time.

Each request declares how it is journalled, reused after a crash and replayed (``fsm_agent.request``).
Unless it says otherwise it is pure: cheap, answered at once, asked again when its visit is run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from fsm_agent.conversation.messages import Message, ModelReply, Usage
from fsm_agent.request import Effect, Flush
from fsm_agent.request import Request as Declared

Concurrency = Literal["parallel", "serial", "interactive"]
ApiMode = Literal["chat_completions", "codex_responses", "anthropic_messages"]
OutputMode = Literal["native", "tool", "prompt"]
"""How a model is asked for an answer of a type: its provider holds it to the JSON schema, it calls a tool
whose arguments are the answer, or it is told the schema in words."""
FINAL = "final_result"
"""The tool whose arguments are the answer."""

# Shared values


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the turn knows of a tool; the handler lives behind the tool port. ``parameters`` is a JSON schema
    object. ``timeout`` in seconds and ``max_result_chars`` are ``None`` for the settings' defaults.
    ``path_arguments`` names the arguments that are paths: a ``parallel`` tool that has any runs beside others
    only when their paths are disjoint. ``deferred``: no request names it; the model finds it with
    ``tool_search`` and calls it with ``tool_call``. ``writes_files``: it may change files of the working
    directory, so that a checkpoint of them is made before. ``delegates``: its calls are child turns, of which
    one reply may begin so many, and that no program may begin."""

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
    """What the turn knows of the type of its answer; the type itself lives behind ``CheckAnswer``.
    ``schema``: a JSON schema of an object. ``mode``: how the model is asked for it, ``None`` for what it does
    best. ``wrapped``: the answer is no object by itself, but its member ``result``."""

    name: str
    schema: Mapping[str, Any]
    mode: OutputMode | None = None
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A provider's own sign of an error class: every part that is named must match. ``codes`` and ``words``
    in lower case; one of each is enough."""

    name: str
    statuses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """The provider in use, and what could still be switched to. ``window``: tokens of a prompt, and
    ``most_output`` of a reply, ``None`` when unknown. ``window_learned``: the window is what a
    refusal named in an earlier turn. ``repairs``: changes that its requests are known to
    need. ``vision``, ``audio``, ``files``: what it reads besides text. ``stale_floor``: seconds that a model
    which thinks before it speaks may be silent at least. ``structured_output``: the best of the ways to ask
    it for an answer of a type. ``effort_key``: how chat completions ask for
    reasoning, empty where they cannot. ``manners``: the known provider whose wire this one speaks, where
    that is another. ``prompt_role``: of the row that the system prompt is. ``next_window`` is the
    window of the next usable fallback, ``possible_rekeys`` the most that its pool of keys or one of a usable
    fallback's allows. Flags come from the provider's profile."""

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
        """Has the next fallback more room than the model in use?"""
        return bool(self.next_window and self.window and self.next_window > self.window)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a provider's refusal said of a model, and the reply after it proved. ``name``: ``window`` or
    ``output``, with tokens as ``value``, or the repair that its requests need. A value of 0: it is not so."""

    provider: str
    model: str
    base_url: str | None
    name: str
    value: int = 1


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request as it goes out. ``body`` is the exact JSON text of the wire, never stored, because it
    follows from the transcript; ``estimate`` its size in tokens; ``chars`` its size in characters with images
    counted flat."""

    body: bytes = field(default=b"", metadata={"stored": False})
    stream: bool = True
    toolless: bool = False
    purpose: Literal["turn", "summary"] = "turn"
    estimate: int = 0
    chars: int = 0


@dataclass(frozen=True, slots=True)
class LongContext:
    """A conversation that is to become shorter. ``rows``: the transcript, oldest first. ``window`` of the
    model in tokens, all else in characters (``size_of``): ``size`` now, ``goal`` to get below, ``most`` above
    which nothing is gained; ``room`` that is left after a provider refused the request, ``None`` while none
    did. ``forced``: a provider or a person insists. ``compacted_before``: in this session. ``focus``: what a
    summary should be about. ``preserved``: what an external memory wants to stay known of the rows that
    go."""

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
IN_DOUBT = (
    "Unknown outcome: the process ended while this ran, and nobody can say whether it took effect. It was not"
    " run again. Find out what happened before repeating it."
)
NOT_RUN = (
    "not run: what is done cannot be written down at the moment ({problem}), so nothing is done that cannot"
    " be undone"
)


class TurnRequest(Declared):
    """A request of an agent's turn."""

    __slots__ = ()

    effect: ClassVar[Effect] = "pure"
    intent: ClassVar[bool | None] = False
    reused: ClassVar[bool] = False
    replayed: ClassVar[bool] = True
    """In a replay of the whole turn, does the record answer it? If not, it is performed."""

    def journalled(self, session: Any) -> Mapping[str, Any] | TurnRequest | None:
        """Return what the journal keeps of it: fields as JSON values, a smaller request, or ``None`` for the
        whole. ``session`` is the one that the turn is in, ``None`` where there is none."""
        return None

    def listed(self) -> tuple[str, str, str]:
        """Most of them are in no list."""
        return "", "", ""

    def unwritten(self, problem: str) -> ToolOutcome | None:
        """Return what answers it while nothing can be written down; ``None`` when it is performed all the
        same."""
        return None


@dataclass(frozen=True, slots=True)
class OpenTurn(TurnRequest):
    """Restore the primary provider if it is not cooling down, load the session, read the tools."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Prefetch(TurnRequest):
    """Ask the external memory what is worth knowing for this text of the user."""

    reused: ClassVar[bool] = True

    text: str


@dataclass(frozen=True, slots=True)
class Preserve(TurnRequest):
    """Ask the external memory what a summary of these rows must keep."""

    reused: ClassVar[bool] = True

    rows: tuple[Message, ...]

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return how many rows it has: the session keeps them."""
        return {"rows": len(self.rows)}


@dataclass(frozen=True, slots=True)
class AskEngine(TurnRequest):
    """Ask the user's context engine for one of its three steps. ``goes``, ``window`` and ``summary`` are what
    the step is given besides ``context``."""

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
        """Return the sizes of what the engine is given."""
        return {
            "step": self.step, "rows": len(self.context.rows), "goes": self.goes,
            "window": self.window, "summary": len(self.summary),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncMemory(TurnRequest):
    """Tell the external memory of a completed turn; it is stored in the background."""

    user: str
    answer: str

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return nothing: the texts are in the transcript."""
        return {}


@dataclass(frozen=True, slots=True)
class BeginReview(TurnRequest):
    """Have a child turn look over what was said, in the background, for what is worth keeping."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class NameSession(TurnRequest):
    """Have a child turn find a title for the session, in the background."""

    replayed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class CheckSignals(TurnRequest):
    """Has anybody interrupted, steered, or used up the budget shared with other turns? ``charge`` takes one
    iteration from that shared budget."""

    reused: ClassVar[bool] = True

    charge: bool = False
    take_steer: bool = False

    def journalled(self, session: Any) -> CheckSignals:
        """Return itself, as one of a few values."""
        return self

    def consumes(self, reply: Signals) -> bool:
        """Return whether a person said something meanwhile."""
        return bool(reply.steer)


@dataclass(frozen=True, slots=True)
class CallModel(TurnRequest):
    """One attempt at the model. ``stale_after`` and ``total`` in seconds. ``paragraph`` puts a blank line
    before the first text that is shown. ``auxiliary``: the number of a model for side tasks, instead of the
    one in use. It is number ``attempt`` of ``most`` in a row that may be made for the same thing."""

    effect: ClassVar[Effect] = "unsafe"
    reply: ClassVar[Any]
    intent: ClassVar[bool | None] = True
    reused: ClassVar[bool] = True

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
        """Return that it was lost: it was paid for once, and is not sent again."""
        return LOST

    def doubtful(self, reply: Any) -> bool:
        """Return whether nobody knows if it left."""
        return reply is LOST

    def recorded(self) -> CallModel:
        """What is kept of it: the body follows from the transcript, and keeping each would cost the square of
        its length."""
        return replace(self, request=replace(self.request, body=b""))


@dataclass(frozen=True, slots=True)
class CheckMessage(TurnRequest):
    """Do the guardrails let this text of the user in? ``beside``: those that run beside the first request."""

    text: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class CheckAnswer(TurnRequest):
    """Is this text what was asked for (``typed``), and do the guardrails let it out?"""

    text: str
    typed: bool = True


@dataclass(frozen=True, slots=True)
class CheckLimits(TurnRequest):
    """Could a request of so many tokens, with a reply of so many, pass a limit in money, tokens or time?
    ``summary``: it is for a summary, which other models may be asked for."""

    prompt_tokens: int
    output_tokens: int
    summary: bool = False


@dataclass(frozen=True, slots=True)
class ShowRequest(TurnRequest):
    """Show the user's hooks a request before it is sent; ``attempt`` as of ``CallModel``."""

    request: ModelRequest
    attempt: int = 1

    def recorded(self) -> ShowRequest:
        """What is kept of it, as of ``CallModel``."""
        return replace(self, request=replace(self.request, body=b""))


@dataclass(frozen=True, slots=True)
class ShowCall(TurnRequest):
    """Show the user's hooks a call before anybody is asked whether it may run."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeepFiles(TurnRequest):
    """Make a checkpoint of the working directory's files before ``tool`` changes them. ``key`` is the same
    whenever this very checkpoint is asked for: there is one for each."""

    reused: ClassVar[bool] = True

    key: str
    tool: str

    def listed(self) -> tuple[str, str, str]:
        """Return the tool, and the key of the checkpoint."""
        return self.tool, "idempotent", self.key


@dataclass(frozen=True, slots=True)
class RunTool(TurnRequest):
    """Run one checked and approved call; a program may ask for calls of its own before it has an outcome.
    ``timeout`` in seconds. ``effect`` says what may be done when nobody
    knows whether it ran; ``key`` is the same whenever this very call is repeated, and no other call's."""

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
        """Return the tool's name, its effect and the key of this call."""
        return self.name, self.effect, self.key

    def in_doubt(self) -> ToolOutcome:
        """Return that nobody knows whether it took effect."""
        return ToolOutcome(self.call_id, "unknown", IN_DOUBT)

    def doubtful(self, reply: Any) -> bool:
        """Return whether nobody knows if it took effect."""
        return unknown(reply)

    def unwritten(self, problem: str) -> ToolOutcome | None:
        """Return that an unsafe call was not started."""
        if self.effect != "unsafe":
            return None
        return ToolOutcome(self.call_id, "not_started", NOT_RUN.format(problem=problem))


@dataclass(frozen=True, slots=True)
class AnswerProgram(TurnRequest):
    """Give the program that call ``call_id`` runs what became of the tool call that it asked for, and let it
    go on. ``number`` counts the answers of this program."""

    reused: ClassVar[bool] = True

    call_id: str
    number: int
    outcome: ToolOutcome

    def doubtful(self, reply: Any) -> bool:
        """Return whether nobody knows what the program did."""
        return unknown(reply)


@dataclass(frozen=True, slots=True)
class AskApproval(TurnRequest):
    """May this call run? Waits for a person; nobody there means no. Whoever is asked is told the ``pattern``
    that an answer for longer than once is remembered under, of a child turn the task that it works on
    (``origin``), of a call that needs a yes for what it touches, ``why``, and of a tool that has a sandbox,
    ``where`` the call would run."""

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
        """By what the question is known while it waits for a person."""
        return self.call_id

    @property
    def flush(self) -> Flush:
        return QUESTION

    def listed(self) -> tuple[str, str, str]:
        """Return the tool's name."""
        return self.name, "pure", ""


@dataclass(frozen=True, slots=True)
class ResolvePaths(TurnRequest):
    """Where do these paths lead, when links are followed? Relative ones begin at ``workdir``."""

    paths: tuple[str, ...]
    workdir: str


@dataclass(frozen=True, slots=True)
class Wait(TurnRequest):
    """Wait before the next attempt. ``retry_after`` (seconds, from the provider) wins over the computed
    backoff."""

    reused: ClassVar[bool] = True

    kind: Literal["exception", "invalid", "rebuild", "overflow", "empty"]
    attempt: int
    why: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Rekey(TurnRequest):
    """Refresh the credential in use, or go to the next one."""

    failure_class: str
    status: int | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class RebuildClient(TurnRequest):
    """Throw the connection pool of the primary away and make a new one."""


@dataclass(frozen=True, slots=True)
class SwitchProvider(TurnRequest):
    """Go to the next usable entry of the fallback chain. ``cooldown`` keeps later turns off the primary for a
    while; ``wider_than`` asks for a window larger than this many tokens."""

    why: str
    cooldown: Literal["rate_limit", "none"] = "none"
    wider_than: int | None = None


@dataclass(frozen=True, slots=True)
class SwitchStreaming(TurnRequest):
    """This provider and model cannot stream: ask for whole replies from now on."""


@dataclass(frozen=True, slots=True)
class Persist(TurnRequest):
    """Append these rows to the session. Idempotent by row identity."""

    replayed: ClassVar[bool] = False

    rows: tuple[Message, ...]

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return the numbers of its rows, which the session keeps."""
        return {"rows": len(self.rows) if session is None else session.numbered(self.rows)}


@dataclass(frozen=True, slots=True)
class ReplaceHistory(TurnRequest):
    """These rows are the session from here on; the store keeps the old ones, inactive. ``rotate``: they begin
    a child session instead."""

    replayed: ClassVar[bool] = False

    rows: tuple[Message, ...]
    rotate: bool = False

    def journalled(self, session: Any) -> Mapping[str, Any]:
        """Return how many rows it has: the session keeps them."""
        return {"rows": len(self.rows), "rotate": self.rotate}


@dataclass(frozen=True, slots=True)
class NoteCompaction(TurnRequest):
    """Remember with the session how a compaction, or a summary call, went. ``read`` tells a real count of
    tokens."""

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
    """Save the request that failed, keys masked, so that a person can look at it."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class Transform(TurnRequest):
    """Let the user's ``transform`` callback change the text that is delivered; the transcript keeps what was
    said."""

    text: str


@dataclass(frozen=True, slots=True)
class Tell(TurnRequest):
    """Tell the callbacks. ``channel`` is a name of the callback table; ``values`` are its arguments.
    ``once``: an agent tells these values only the first time."""

    reused: ClassVar[bool] = True
    replayed: ClassVar[bool] = False

    channel: str
    values: tuple[Any, ...] = ()
    once: bool = False

    def journalled(self, session: Any) -> Tell | None:
        """Return the channel alone for what follows from the rest of the journal."""
        return None if self.channel in ("status", "event") else Tell(self.channel)


@dataclass(frozen=True, slots=True)
class CloseTurn(TurnRequest):
    """Release what the turn held; each step on its own, so that none can lose the answer.
    ``chain_exhausted``: every fallback was tried and failed, so the primary is left alone for a moment.
    ``silences``: requests in a row that went silent, for the agent's next turn. ``lessons``: what was learned
    of models, for all turns to come."""

    replayed: ClassVar[bool] = False

    chain_exhausted: bool = False
    silences: int = 0
    lessons: tuple[Lesson, ...] = ()


# Replies


@dataclass(frozen=True, slots=True)
class Compacted:
    """``done``: compactions of this session. ``blocked``: why none should be made automatically for now, or
    empty."""

    done: int = 0
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class Checks:
    """What an agent wants to be asked in a turn. ``message``, ``beside`` (the first request) and ``answer``:
    guardrails; ``answer`` also for a type of the answer. ``output_tool``: the tool whose call is the answer.
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
    """What a turn starts with. ``session_rows`` are the rows stored so far; ``workdir`` is where relative
    paths begin. ``review_due``: it is time that the notes are looked over. ``unnamed``: a
    model is to find a title for the session. ``news``: reports on tasks in the
    background. ``silences``: requests in a row that went silent when the agent's last turn ended.
    ``engine``: the agent has a context engine of the user's. ``checks``: what is asked of it besides.
    ``output``: the type of the answer, if it has one."""

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
    """What was recalled, empty for nothing. ``problem``: why there is less than there could be."""

    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What a context engine said. ``places``: of ``cut``, the rows that go; of ``rows``, those of the shorter
    conversation, in order: of the conversation before, and behind its end of ``made``, the new ones.
    ``problem``: why there is no answer."""

    places: tuple[int, ...] = ()
    prompt: str = ""
    made: tuple[Message, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Signals:
    """``starved``: the budget shared with other turns has nothing left. ``at``: when that was, in seconds.
    ``news``: reports on tasks in the background, when steering texts were asked for."""

    interrupted: bool = False
    message: str | None = None
    steer: tuple[str, ...] = ()
    starved: bool = False
    at: float = 0.0
    news: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that brought no usable reply. A value, because the table has rows for it.

    ``kind``: ``http`` (the provider answered with an error), ``transport`` (no or a broken answer),
    ``stale`` (killed by the watchdog), ``breaker`` (not sent: too many stale attempts in a row),
    ``capped`` (not sent: turn and children have sent all that they may), ``lost`` (its process ended
    before its reply), ``shape`` (200, but no reply in it), ``encode`` (the request could not be written),
    ``local`` (a bug of ours). ``message`` is one masked line of at most 500 characters; ``code`` the
    provider's structured code or type; ``exception`` the class name; ``detail`` all texts of the error,
    lower-cased, for matching. ``retry_after`` in seconds from now. ``sent``: the first byte of the request
    was handed to a connection, so the provider may have got it. ``refreshable`` and ``other_keys`` say
    what the credentials could still do."""

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


LOST = Failure("lost", "the process ended before the reply came; nobody knows whether the request left")
"""In place of a reply to a request to a model, after a crash."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The user interrupted. ``text`` is what was visible by then, ``usage`` what was reported by then;
    ``sent`` as of a ``Failure``."""

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    sent: bool = True


ToolStatus = Literal["ok", "error", "timeout", "cancelled", "denied", "unknown", "not_started"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Exactly one for each call. ``unknown``: it was started and nobody can say whether it took effect.
    ``changed_by``: hooks that changed the text. ``hands_to``: the agent that goes on with the
    conversation."""

    call_id: str
    status: ToolStatus
    text: str
    seconds: float = 0.0
    content: tuple[Mapping[str, Any], ...] = ()
    changed_by: tuple[str, ...] = ()
    hands_to: str = ""


def unknown(reply: Any) -> bool:
    """Return whether a reply is the outcome of a call of which nobody can say whether it took effect."""
    return isinstance(reply, ToolOutcome) and reply.status in ("unknown", "timeout")


@dataclass(frozen=True, slots=True)
class ProgramAsks:
    """The program that call ``call_id`` runs wants this tool called, and waits: in the place of an outcome.
    ``arguments`` as JSON text, as a model would write them."""

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
    """``blocked``: why the message is refused, empty when it is not. ``text``: what was made of it, ``None``
    when nothing was changed. ``by``: the names of the guardrails that did either."""

    blocked: str = ""
    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerChecked:
    """``problem``: what the model is told to mend, empty when the text is an answer. ``blocked``, ``text``
    and ``by`` as of ``MessageChecked``."""

    problem: str = ""
    blocked: str = ""
    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit that stops a turn: its scope, and in US dollars, tokens or seconds (``unit``) the ``limit``
    itself, what was ``spent``, and what the next ``request`` could have taken at most, and at ``least`` with
    a reply of a few words (0 for seconds)."""

    scope: Literal["turn", "tree", "session", "day"]
    unit: Literal["usd", "tokens", "seconds"]
    limit: float
    spent: float
    request: float = 0.0
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitsChecked:
    """``over``: the kind of limit that could be passed, empty for none. ``why``: which one, what was spent,
    and what the request may cost; ``limit``: the same as values. ``output_tokens``: what the reply may have
    so that no limit is passed, ``None`` where there is none in money or tokens."""

    over: Literal["", "cost", "tokens", "time"] = ""
    why: str = ""
    limit: LimitReached | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestChanged:
    """What hooks made of a request. ``options``: fields of its body by name, ``None`` for one to leave out;
    ``rows``: what goes behind its messages, in the form of its wire. ``answer``: a reply in the place of a
    model's, ``blocked``: why there is none; then nothing is sent. ``by``: their names."""

    options: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    answer: str | None = None
    blocked: str = ""
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallChanged:
    """What hooks made of a call: other ``arguments``, or a ``result`` in the place of the tool's; ``None``
    for neither. ``by``: their names."""

    arguments: Mapping[str, Any] | None = None
    result: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waited:
    """How long was waited, in seconds, and whether an interrupt ended it."""

    seconds: float
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """The session that the rows are in now, and when that was."""

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
    """``text`` is ``None`` when nothing was changed. ``by``: the hooks that did."""

    text: str | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The reply of requests that bring nothing back. ``problems`` lists what went wrong without stopping the
    turn."""

    problems: tuple[str, ...] = ()


CallModel.reply, RunTool.reply = ModelReply | Failure | Cancelled, ToolOutcome
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
