"""Every figure of a turn that a user may change, in one place, with its default and its allowed range.

Nested names are the field names joined by dots (``budget.grace_call``); in the environment ``FSM_AGENT_`` and
double underscores (``FSM_AGENT_BUDGET__GRACE_CALL=false``); in the config file ``[settings.budget]``.
Seconds, tokens and characters as the docstrings say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from typing_extensions import TypedDict, Unpack

from fsm_agent.errors import ConfigError, expect

# Every setting can be set alone. Each group has a default for each field, even where two groups differ only
# in defaults. A user's choice is recognized by its value, because stored settings do not record who set them.


ENV_PREFIX = "FSM_AGENT_"
_PREFIX = ENV_PREFIX.lower()  # pydantic-settings takes names in any case
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
CacheTtl = Literal["5m", "1h"]
SecondMessage = Literal["queue", "steer", "interrupt"]

# Each number has a minimum and a maximum, so that arithmetic cannot overflow. A test tries both ends.
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Chars = Annotated[int, Field(ge=1_000, le=1_000_000_000)]
FewChars = Annotated[int, Field(ge=100, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Patience = Annotated[float, Field(gt=0, le=86_400)]
"""Seconds for a library in which ``None`` means no limit."""
Ratio = Annotated[float, Field(gt=0, le=1)]
Heartbeat = Annotated[float, Field(ge=0.1, le=3600)]
"""Seconds between two signs of life. Each is a line for a person; too many slow down the awaited work."""
LimitScope = Literal["turn", "tree", "session", "day"]
BudgetMode = Literal["independent", "shared", "tree_cap"]
Verdict = Literal["ask", "allow", "deny"]


def _kinds(annotation: Any) -> set[Any]:
    """The types in an annotation, without flags."""
    parts = get_args(annotation)
    found = set().union(*map(_kinds, parts)) if parts else {annotation}
    return found if bool not in found else set()


def _no_flag_as_number(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse ``True``: Python counts it as one, but it is never meant as a number."""
    if isinstance(value, bool) and _kinds(cls.model_fields[str(info.field_name)].annotation) & {int, float}:
        raise ValueError("a flag is not a number")
    return value


class Group(BaseModel):
    """Every field has a default, so that each can be set alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _numbers = field_validator("*", mode="before")(_no_flag_as_number)


def contradiction(allowed: str, **values: Any) -> PydanticCustomError:
    """The error of a group whose fields are each in range but contradict each other."""
    return PydanticCustomError("contradiction", "{allowed}", {"allowed": allowed, "values": values})


class Budget(Group):
    """``grace_call``: one last call without tools when the iterations are used up. ``max_free_rounds``:
    default max_iterations."""

    grace_call: bool = True
    max_free_rounds: Count | None = None


class Wave(Group):
    """Exponential backoff in seconds: base doubled each time, up to cap."""

    base: Seconds
    cap: Seconds

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.cap < self.base:
            raise contradiction("a cap that is not below the base", cap=self.cap, base=self.base)
        return self


class ExceptionWave(Wave):
    """Backoff after a failed attempt."""

    base: Seconds = 2
    cap: Seconds = 60


class InvalidWave(Wave):
    """Backoff after an empty or malformed reply."""

    base: Seconds = 5
    cap: Seconds = 120


class BackoffSettings(Group):
    """``jitter``: up to this share of the delay is added at random."""

    exception: ExceptionWave = ExceptionWave()
    invalid: InvalidWave = InvalidWave()
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.5
    seed: Seed | None = None


class BySize(Group):
    """Seconds without a chunk, by the size of the request in tokens. A single number sets all three."""

    base: Seconds
    above_50k: Seconds
    above_100k: Seconds

    @model_validator(mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        return for_all_sizes(value)

    def of(self, tokens: int) -> float:
        """Return the seconds for a request with this number of tokens."""
        return self.above_100k if tokens > 100_000 else self.above_50k if tokens > 50_000 else self.base

    @property
    def each(self) -> tuple[float, ...]:
        """Return all three figures, smallest requests first."""
        return self.base, self.above_50k, self.above_100k


def for_all_sizes(value: Any) -> Any:
    """Expand a number into a limit for each size; return anything else unchanged."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return dict.fromkeys(BySize.model_fields, value) if is_number else value


class StreamSizes(BySize):
    """Seconds of silence allowed in a streamed reply."""

    base: Seconds = 180
    above_50k: Seconds = 240
    above_100k: Seconds = 300


class WholeSizes(BySize):
    """Seconds of silence allowed before a reply that is not streamed."""

    base: Seconds = 90
    above_50k: Seconds = 150
    above_100k: Seconds = 240


_STREAM = StreamSizes()


class Stale(Group):
    """When an attempt without a new chunk counts as dead. ``local`` applies to servers on this machine,
    unless ``stream`` differs from its default. ``giveup``: consecutive dead attempts that open the
    breaker."""

    stream: StreamSizes = StreamSizes()
    whole: WholeSizes = WholeSizes()
    local: Seconds = 900
    giveup: Positive = 5

    def after(self, tokens: int, *, streaming: bool, local: bool, floor: float = 0.0) -> float:
        """Seconds of silence allowed for a request of this size; ``floor`` is the model's own. A value
        that differs from the default wins, because the settings stored with a turn do not say which values
        the user set."""
        if (own := self.stream.of(tokens)) != _STREAM.of(tokens):
            return own
        if local:
            return self.local
        return max(floor, (self.stream if streaming else self.whole).of(tokens))


class Timeout(Group):
    """Seconds that one request may take in total, to connect, and between two chunks."""

    total: Patience = 1800
    connect: Patience = 30
    read: Patience = 120


class Poll(Group):
    """``control``: how often limits are checked; ``heartbeat``: how often a long wait reports itself.
    Seconds."""

    control: Annotated[float, Field(ge=0.001, le=60)] = 0.3
    heartbeat: Heartbeat = 30


class Cooldown(Group):
    """Seconds that the primary model rests after a rate limit, and after the whole chain failed."""

    rate_limit: Seconds = 60
    chain_exhausted: Seconds = 5


class Credential(Group):
    """Seconds that a failed key rests: after 401, after 429 or 402. ``auth_refresh_max``: refreshes per key
    and turn. ``strategy``: which of several ready keys a turn starts with. ``plain_http``: model hosts that
    may receive a key and a conversation without TLS."""

    strategy: Literal["fill_first", "round_robin", "random", "least_used"] = "fill_first"
    cooldown_auth: Seconds = 300
    cooldown_other: Seconds = 3600
    auth_refresh_max: Count = 2
    plain_http: tuple[str, ...] = ()


class Length(Group):
    """Truncated replies. ``cap_base`` and ``cap_max`` in tokens."""

    max_continuations: Count = 3
    tool_retries: Count = 4
    cap_base: Tokens = 4096
    cap_max: Tokens = 32_768


class Continue(Group):
    """How often the model is asked to continue an incomplete reply. ``ack`` needs ``acks_enabled``: replies
    that only announce an action, ``None`` for the Responses API only; ``verify`` needs ``verify_enabled``:
    files were changed and nothing was checked afterwards."""

    incomplete: Count = 3
    ack: Count = 2
    scratchpad: Count = 2
    verify: Count = 1
    acks_enabled: bool | None = None
    verify_enabled: bool = False


class Empty(Group):
    """How often a model that says nothing is nudged, given its own reasoning back, and asked again."""

    nudges: Count = 1
    prefills: Count = 2
    retries: Count = 3


class Compression(Group):
    """``threshold`` as a share of the usable window, raised to ``small_window_floor`` below 512,000 tokens
    and to ``tiny_window`` up to 64,000. ``min_progress``: what counts as smaller. The rows that
    ``protect_first``, ``tail_ratio`` and ``tail_floor`` protect are removed, too, if a provider still refuses
    the request; ``max_per_streak`` bounds how often. ``without_model``: if no model gives a summary, a list
    of what was done replaces it; otherwise the history is unchanged. ``engine_timeout``: seconds that each
    step of a custom context engine may take."""

    enabled: bool = True
    mode: Literal["in_place", "rotate"] = "in_place"
    threshold: Ratio = 0.5
    small_window_floor: Ratio = 0.75
    tiny_window: Ratio = 0.85
    host_threshold: Ratio = 0.85
    protect_first: Count = 3
    tail_ratio: Annotated[float, Field(ge=0.10, le=0.80)] = 0.20
    soft_factor: Annotated[float, Field(ge=1, le=5)] = 1.5
    tail_floor: Annotated[int, Field(ge=3, le=1_000_000)] = 8
    max_per_streak: Count = 3
    preflight_passes: Count = 3
    min_progress: Annotated[float, Field(gt=0, lt=1)] = 0.05
    without_model: bool = True
    engine_timeout: Seconds = 30


class Tools(Group):
    """Running tools. ``max_calls``: of one reply; calls beyond it get an error. Seconds
    and characters; ``max_result_chars`` bounds one result, ``turn_result_chars`` those of one reply,
    ``batch_timeout``: what the calls of one reply may take together, except calls with their own limit;
    ``preview_chars``: the part of a result saved to a file that stays in the context.
    ``failed_files_footer``: the final answer names files that a failed tool left unchanged. ``bridge_above``:
    with more tools than this, requests omit those of MCP servers; the model finds them with
    ``tool_search`` and calls them with ``tool_call``."""

    max_calls: Annotated[int, Field(ge=1, le=10_000)] = 128
    max_workers: Annotated[int, Field(ge=1, le=64)] = 8
    batch_timeout: Seconds = 420
    interrupt_grace: Seconds = 3
    delay: Seconds = 0
    max_result_chars: Chars = 100_000
    turn_result_chars: Chars = 200_000
    preview_chars: FewChars = 1_500
    failed_files_footer: bool = True
    bridge_above: Count | None = None


class GuardrailSettings(Group):
    """Loop detection. ``hard_stop``: on by default when no person can stop the turn (no approval
    callback)."""

    warn_exact: Count = 2
    warn_same: Count = 3
    warn_no_progress: Count = 2
    stop_exact: Positive = 5
    stop_same: Positive = 8
    stop_no_progress: Positive = 5
    hard_stop: bool | None = None


class ApprovalSettings(Group):
    """Who may approve calls. ``timeout`` in seconds, after which a missing answer counts as a denial.
    ``policy``: for tools by name, ``ask`` a person, ``allow``, or ``deny``. ``allow`` and ``deny``:
    patterns, see ``fsm_agent.approvals.rules``; deny wins. ``bypass`` allows everything that is not denied
    and not on a hard line; it is read once, when the agent is created. ``question_timeout``: seconds that a
    question of the model waits for an answer. ``unanswered``: the result of a question without an answer in
    time, or without a person to ask: the answer is no (``deny``), or the turn is suspended until an answer
    arrives in any process (``suspend``)."""

    timeout: Seconds = 60
    policy: dict[str, Verdict] = Field(default_factory=dict)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    bypass: bool = False
    question_timeout: Seconds = 600
    unanswered: Literal["deny", "suspend"] = "deny"

    def stricter(self, other: ApprovalSettings) -> Self:
        """Return these rules plus everything that ``other`` asks about or denies."""
        asked = {name for name, verdict in other.policy.items() if verdict == "ask"}
        policy = self.policy | {name: "ask" for name in asked if self.policy.get(name) != "deny"}
        policy |= {name: "deny" for name, verdict in other.policy.items() if verdict == "deny"}
        return self.model_copy(update={"policy": policy, "deny": (*self.deny, *other.deny)})


class DelegationSettings(Group):
    """Child turns. ``background``: the model may give tasks without waiting. ``budget``: see
    ``fsm_agent.runtime.budget``. ``max_children`` of one reply; ``max_depth``: levels of children.
    ``max_handoffs``: how often agents may hand the conversation over before the user speaks again.
    ``approvals``: what a child does when it needs approval: ``deny``, or ``ask`` the person who approves for
    its parent. ``summary_max_chars``: of a child's answer as its parent sees it, which also takes no more
    than ``headroom_fraction`` of the room that the parent's window has left, shared by the children, but may
    always be ``summary_min_chars``. Seconds: ``heartbeat`` between two signs of life, ``stale_idle`` and
    ``stale_in_tool`` after which a child that does nothing, or whose tool runs, is stopped."""

    background: bool = False
    budget: BudgetMode = "tree_cap"
    max_iterations: Count = 50
    max_children: Count = 3
    max_depth: Count = 1
    max_handoffs: Count = 5
    max_attempts_per_tree: Positive | None = None
    tree_cap_factor: Annotated[float, Field(ge=1, le=100)] = 3
    approvals: Literal["deny", "ask"] = "deny"
    summary_max_chars: FewChars = 24_000
    headroom_fraction: Ratio = 0.5
    summary_min_chars: FewChars = 2_000
    heartbeat: Heartbeat = 30
    stale_idle: Seconds = 450
    stale_in_tool: Seconds = 1_200


Usd = Annotated[float, Field(gt=0, le=1_000_000)]
EXTENSION_NAME = r"^[a-z][a-z0-9_-]{0,39}\Z"
ExtensionName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*:\S.*$")]
PerMillion = Annotated[float, Field(ge=0, le=100_000)]


class LimitValues(TypedDict, total=False):
    """The keywords of ``Limits``."""

    usd: float | None
    tokens: int | None
    seconds: float | None


class Limit(Group):
    """US dollars, tokens (of prompts and replies together) and seconds that may be spent. Each is unlimited
    unless it is given."""

    usd: Usd | None = None
    tokens: Tokens | None = None
    seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None

    @property
    def given(self) -> bool:
        """Return whether any limit is given."""
        return (self.usd, self.tokens, self.seconds) != (None, None, None)

    def smaller(self, other: Limit) -> Self:
        """Return the smaller of the two limits for each unit."""
        both = {
            name: [one for one in (value, getattr(other, name)) if one is not None] for name, value in self
        }
        return self.model_copy(update={name: min(found, default=None) for name, found in both.items()})


class Limits(Limit):
    """What a turn may spend, as ``Agent(limits=…)`` and ``run_conversation(…, limits=…)`` take it. Raises
    ``ConfigError`` for another name, and for a value out of range."""

    def __init__(self, **values: Unpack[LimitValues]) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            from fsm_agent.settings.errors import words_at

            first = error.errors()[0]
            name, known = str(first["loc"][0]), ", ".join(Limit.model_fields)
            if name not in Limit.model_fields:
                raise ConfigError("there is no such limit", name, known) from None
            allowed = words_at(Limit, [name], "a number")
            raise ConfigError(f"limit {name} is out of range", first["input"], allowed) from None


class LimitSettings(Group):
    """Limits on requests to models, checked before each of them: in a ``turn``; in its ``tree``,
    which is the turn and its descendants; in its ``session``, children included; and by all sessions of
    the home in a local ``day``. Time spent waiting for a person does not count. See docs/budgets.md."""

    turn: Limit = Limit()
    tree: Limit = Limit()
    session: Limit = Limit()
    day: Limit = Limit()

    def for_turn(self, limit: Limit) -> Self:
        """Return these limits, with the units given in ``limit`` replaced in those of a turn."""
        given = limit.model_dump(exclude_none=True)
        return self.model_copy(update={"turn": self.turn.model_copy(update=given)})

    @property
    def each(self) -> dict[LimitScope, Limit]:
        """Return the nonempty limits by scope."""
        named: dict[LimitScope, Limit] = {
            "turn": self.turn,
            "tree": self.tree,
            "session": self.session,
            "day": self.day,
        }
        return {scope: limit for scope, limit in named.items() if limit.given}

    def within(self, above: LimitSettings) -> Self:
        """Return the limits of an agent that works for another one: its own for a turn, and for the other
        scopes the smaller of both."""
        scopes = {
            name: getattr(self, name).smaller(getattr(above, name)) for name in ("tree", "session", "day")
        }
        return self.model_copy(update=scopes)

    def named(self, what: Literal["usd", "tokens", "seconds"]) -> str:
        """Return the name of the first limit in money, tokens or seconds, or an empty string."""
        found = (scope for scope, limit in self.each.items() if getattr(limit, what) is not None)
        return next((f"limits.{scope}.{what}" for scope in found), "")


class ModelPrice(Group):
    """US dollars per million tokens of one model. ``cache_read`` and ``cache_write``: of a prompt that is
    read from the provider's cache, or written to it; by default as ``input``."""

    input: PerMillion
    output: PerMillion
    cache_read: PerMillion | None = None
    cache_write: PerMillion | None = None


class Cache(Group):
    """How long a provider keeps a marked prompt."""

    ttl: CacheTtl = "5m"


class Interrupt(Group):
    """``keep_partial``: text shown before an interrupt stays in the transcript. ``second_message``: what
    happens to a message that arrives while a turn runs: it is answered after the turn (``queue``), given to
    the model with its next tool result (``steer``), or ends the turn and is answered then (``interrupt``). By
    default, ``chat`` queues it, and Python raises ``SessionBusy``."""

    keep_partial: bool = True
    second_message: SecondMessage | None = None


class PrefillRow(BaseModel):
    """A row sent before every conversation, as if it were part of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["user", "assistant"]
    content: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Prompt(Group):
    """``enforce_tool_use``: prompt the model to act instead of announcing: ``auto`` for families that need
    it, true, false, or parts of model names. ``machine``: name the directory, the system, Python and the
    date; ``context_files``: read AGENTS.md and similar files. Both default to true if the agent has built-in
    tools. ``context_file_chars``: characters of one file, default 6 % of the window, 20,000 to 500,000.
    ``platform``: how answers are shown; ``platform_hint``: your own hint, added or, with
    ``replace_platform_hint``, instead. ``session_line``, ``model_line``: name the session, and the model and
    its provider. ``ephemeral``: a text after the prompt that is never stored or cached. ``prefill``: rows
    (``role`` user or assistant, ``content``) sent before each conversation and never stored. ``budget_hint``,
    ``context_hint``: the used share of the iterations, and of the room for the conversation, from which
    requests state how much is left."""

    enforce_tool_use: Literal["auto"] | bool | tuple[str, ...] = "auto"
    machine: bool | None = None
    context_files: bool | None = None
    context_file_chars: Annotated[int, Field(ge=1_000, le=10_000_000)] | None = None
    platform: Literal["terminal", "chat", "plain", "telegram", "discord", "slack"] | None = None
    platform_hint: str = ""
    replace_platform_hint: bool = False
    session_line: bool = False
    model_line: bool = False
    ephemeral: str = ""
    prefill: tuple[PrefillRow, ...] = ()
    budget_hint: Ratio | None = None
    context_hint: Ratio | None = None


class Memory(Group):
    """``memory_chars`` and ``user_chars``: limits of MEMORY.md and USER.md in characters. ``review_every``:
    turns of a session after which a ``memory:review`` event says that the notes are due for a review, 0 for
    never. ``review``: with ``child``, a child turn of at most ``review_iterations`` does it in the
    background, with only the tools for notes and skills. Seconds for an external memory provider:
    ``prefetch_timeout`` before a turn, ``drain_timeout`` for storing the rest at the end."""

    memory_chars: Annotated[int, Field(ge=100, le=100_000)] = 2_200
    user_chars: Annotated[int, Field(ge=100, le=100_000)] = 1_375
    review_every: Count = 10
    review: Literal["event", "child"] = "event"
    review_iterations: Annotated[int, Field(ge=1, le=50)] = 5
    prefetch_timeout: Seconds = 8
    drain_timeout: Seconds = 5


class Mcp(Group):
    """MCP servers. Seconds: ``start_timeout`` that a turn waits for servers that are starting,
    ``connect_timeout`` after which a start has failed, ``call_timeout`` for a call of a tool without
    its own limit. ``max_message_bytes``: maximum size of one message from a server."""

    start_timeout: Seconds = 10
    connect_timeout: Seconds = 60
    call_timeout: Seconds = 120
    max_message_bytes: Annotated[int, Field(ge=10_000, le=1_000_000_000)] = 16_000_000


DATABASE_VARIABLE = f"{ENV_PREFIX}STORE__DATABASE_URL"
"""The environment variable that may hold a password."""


class Storage(Group):
    """``durability``: ``full`` survives a power cut at any moment; ``normal`` may lose the last moves then,
    never to a crash of the process alone. ``index``: index messages for search in the background after each
    turn, instead of at the next search. ``trajectories``: append each ended turn, secrets
    masked, to ``trajectories.jsonl`` in the home. ``database_url``: keep sessions in this PostgreSQL database
    (``postgresql://user:password@host/name``) instead of a file in the home; the address
    is never stored or shown."""

    durability: Literal["full", "normal"] = "full"
    index: bool = True
    trajectories: bool = False
    database_url: SecretStr | None = None

    @field_validator("database_url")
    @classmethod
    def _of_postgresql(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value is not None else "postgresql://"
        if not text.startswith(("postgresql://", "postgres://")):
            scheme = re.match(r"[a-z][a-z0-9+.-]{0,19}://", text)  # the rest may hold a password
            given = f"an address that begins with {scheme[0]}" if scheme else "a text that is not an address"
            raise name_taken(given, "an address that begins with postgresql://")
        return value

    @field_serializer("database_url")
    def _nowhere(self, value: SecretStr | None) -> None:
        """Turns keep the settings they began with, but this one belongs to the home."""

    @property
    def database(self) -> str | None:
        """Return the database's address."""
        return self.database_url.get_secret_value() if self.database_url is not None else None


class DispatchSettings(Group):
    """Turns that workers run (``fsm-agent worker``). ``temporal``: HOST:PORT of a Temporal server that
    assigns them; without one, workers poll the store. ``namespace``: of that server. ``slots``: turns that a
    worker runs at once. ``heartbeat``: seconds without a sign of life from a worker, after which Temporal
    reassigns its turns."""

    temporal: Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")] | None = None
    namespace: Annotated[str, Field(min_length=1)] = "default"
    slots: Annotated[int, Field(ge=1, le=1_000)] = 4
    heartbeat: Annotated[float, Field(ge=1, le=600)] = 10


class LearnedSettings(Group):
    """Facts about a model learned from refusals: its window, its longest reply, missing support for images or
    streaming, and so on. ``days``: how long they hold in all sessions of the home; 0 for the turn only."""

    days: Annotated[float, Field(ge=0, le=365)] = 7


class Web(Group):
    """Web access of tools. ``allow_private_hosts``: names or addresses in your own network that may be
    fetched, besides public ones; ``*.example.org`` for all subdomains. ``only_hosts``: if given, no other
    host is fetched. ``timeout`` in seconds for a whole page including redirects, ``max_bytes`` its maximum
    size."""

    allow_private_hosts: tuple[str, ...] = ()
    only_hosts: tuple[str, ...] = ()
    timeout: Annotated[float, Field(gt=0, le=600)] = 30
    max_bytes: Annotated[int, Field(ge=1_000, le=100_000_000)] = 2_000_000


class CheckpointSettings(Group):
    """Copies of the working directory's files, made before the first tool of a turn that may change them and
    restored by ``fsm-agent undo``; not in a home directory, and not without git. ``keep``: how many per
    directory. None is made above ``max_files`` files or ``max_bytes``; a file above
    ``max_file_bytes`` is left out. ``timeout``: seconds that making one may take."""

    enabled: bool = True
    keep: Annotated[int, Field(ge=1, le=1_000)] = 50
    max_files: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    max_file_bytes: Annotated[int, Field(ge=1_000, le=1_000_000_000)] = 10_000_000
    max_bytes: Annotated[int, Field(ge=1_000, le=100_000_000_000)] = 500_000_000
    timeout: Seconds = 30


class SandboxSettings(Group):
    """Where the terminal, background jobs and ``execute_code`` run: on this machine with your rights
    (``local``), or in a sandbox made by ``bubblewrap`` (Linux), ``docker`` or ``podman`` (from ``image``,
    which must exist). ``policy``: ``ask`` before a command as usual, or ``free``: a command inside needs no
    approval, unless ``network`` is on or there are ``writable`` folders besides the working directory; a
    command outside always needs it. ``readable``: other files and folders it may read. Paths are absolute, of
    the home (``~``), or in the working directory. ``environment``: variables it sees, besides the usual
    ones."""

    backend: Literal["local", "bubblewrap", "docker", "podman"] = "local"
    policy: Literal["ask", "free"] = "ask"
    network: bool = False
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w./:@-]*$")] = "python:3.13-slim"

    @property
    def free(self) -> bool:
        """Return whether a command inside needs no approval."""
        closed = not (self.network or self.writable)
        return self.policy == "free" and self.backend != "local" and closed


class PartSettings(Group):
    """Images, audio and files in messages. ``max_bytes``: of one of them; a larger one is refused.
    ``image_bytes`` and ``image_side``: bytes, and pixels of the longer side, above which an image is scaled
    down. ``pdf_chars``: of a PDF's text, if a model takes no files. ``assume``: inputs besides text that
    every model is assumed to read, whatever the catalog says (``image``, ``audio``, ``file``)."""

    max_bytes: Annotated[int, Field(ge=1_000, le=500_000_000)] = 24_000_000
    image_bytes: Annotated[int, Field(ge=10_000, le=500_000_000)] = 3_700_000
    image_side: Annotated[int, Field(ge=100, le=100_000)] = 8_000
    pdf_chars: Annotated[int, Field(ge=1_000, le=10_000_000)] = 200_000
    assume: tuple[Literal["image", "audio", "file"], ...] = ()


OURS = frozenset(
    (
        *("model", "messages", "input", "system", "instructions", "tools", "stream", "stream_options"),
        *("store", "include", "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature"),
        *("reasoning", "reasoning_effort", "thinking", "output_config", "tool_choice"),
        *("parallel_tool_calls", "top_p", "seed", "stop", "stop_sequences"),
    )
)
"""Fields of a request that the engine writes."""


OUR_HEADERS = frozenset(
    (
        *("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "host", "user-agent"),
        *("content-type", "content-length", "content-encoding", "accept", "accept-encoding", "connection"),
        *("transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive"),
        *("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"),
    )
)
"""Headers of a request that the engine or the signer writes."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HostedName = Literal["web_search", "code_execution"]
HOSTED_NAMES: tuple[HostedName, ...] = get_args(HostedName)


def name_taken(given: object, allowed: str) -> PydanticCustomError:
    """The error of a reserved name. It shows nothing else of the input."""
    return PydanticCustomError("taken", "{allowed}", {"allowed": allowed, "given": given})


class RequestSettings(Group):
    """Options of each request to a model. ``tool_choice``: ``auto``, ``none``, ``required`` or a
    tool's name; a forced call applies until a tool has run in the turn. ``stop``: texts at which a reply
    ends. ``hosted_tools``: tools that the provider runs itself, ``web_search`` and ``code_execution``, as a
    list, or with the provider's options for each. ``extra_body``: further fields of the body, and
    ``extra_headers``: further headers, whose values are never shown or stored; both for the model in use
    and not for fallbacks."""

    tool_choice: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    parallel_tool_calls: bool | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=4)] = ()
    hosted_tools: dict[HostedName, dict[str, JsonValue]] = {}
    extra_body: dict[str, JsonValue] = {}
    extra_headers: dict[str, SecretStr] = {}

    @field_validator("hosted_tools", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple | Mapping):
            return value
        for name in value:
            if name not in HOSTED_NAMES:
                raise name_taken(name, ", ".join(HOSTED_NAMES))
        return value if isinstance(value, Mapping) else {name: {} for name in value}

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if ours := sorted(OURS & value.keys()):
            raise name_taken(ours[0], "fields that the engine does not write itself")
        return value

    @field_validator("extra_headers", mode="before")
    @classmethod
    def _sendable(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise name_taken(None, "a table of texts")
        for name, text in value.items():
            text = text.get_secret_value() if isinstance(text, SecretStr) else text
            if not isinstance(name, str) or not _HEADER.fullmatch(name):
                raise name_taken(None, "names of headers: letters, digits and -")
            if name.lower() in OUR_HEADERS:
                raise name_taken(name, f"any but {', '.join(sorted(OUR_HEADERS))}")
            if not isinstance(text, str) or not (
                text.isascii() and text.isprintable() and text == text.strip()
            ):
                raise name_taken(name, "a value of printable ASCII, without blanks around it")
        return value

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the given options, without ``hosted_tools`` and the extra ones."""
        names = ("tool_choice", "parallel_tool_calls", "top_p", "seed", "stop")
        return tuple(name for name in names if getattr(self, name) not in (None, ()))

    @property
    def headers(self) -> dict[str, str]:
        """Return the extra headers."""
        return {name: value.get_secret_value() for name, value in self.extra_headers.items()}

    def without_hosted(self) -> RequestSettings:
        """Return the same for a request in which no tool may run."""
        return self.model_copy(update={"hosted_tools": {}}) if self.hosted_tools else self

    def for_another(self) -> RequestSettings:
        """Return the same for another model, without provider-specific fields and secrets, which must not
        reach it."""
        return self.model_copy(update={"extra_body": {}, "extra_headers": {}})


class TelemetrySettings(Group):
    """``enabled``: spans and metrics of turns go to OpenTelemetry; ``None``: on the command line if
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` names a collector. ``contents``: messages of people, models and tools are
    sent too, without secrets. ``propagate``: model providers get a ``traceparent`` header."""

    enabled: bool | None = None
    contents: bool = False
    propagate: bool = False


class Settings(BaseSettings):
    """All settings: arguments override the environment, which overrides the defaults; ``of`` also reads the
    config file. ``reasoning_effort``: how much a reasoning model should think before it answers, as close to
    this as it supports; ``None`` leaves it to the model. ``max_turns_at_once``: of all agents in the process;
    further turns wait, first come, first served (child turns do not); ``None`` for any number.
    ``output_retries``: how often one model may correct its answer. ``output_mode``: how a model is asked for
    a typed answer: enforced by its provider, with a tool call, with a prompt, or the way it does best.
    ``properties``: what happens if a turn breaks a property of its table (``fsm-agent verify`` proves them):
    nothing, a line in the log, or the end of the turn. ``prices``: of models by ``<provider>:<model>``,
    before the list prices. ``extensions``: installed extensions that agents have, by name, each with its own
    settings (``fsm_agent.extension``).

    Names of settings in groups may also be joined by dots: ``Settings.of({"limits.turn.usd": 1})``. Raises
    ``ConfigError`` (one line: what, given, allowed) for an unknown name or a value out of range.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    _numbers = field_validator("*", mode="before")(_no_flag_as_number)

    max_iterations: Annotated[int, Field(ge=0, le=100_000)] = 90
    api_max_retries: Annotated[int, Field(ge=1, le=100)] = 3
    max_attempts_per_turn: Positive | None = None
    max_attempts_per_call_block: Positive | None = None
    max_lost_requests: Count = 10
    max_turns_at_once: Positive | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    reasoning_effort: Effort | None = None
    retry_after_cap: Seconds = 600
    invalid_tool_strikes: Positive = 3
    invalid_json_retries: Count = 3
    output_retries: Count = 2
    output_mode: Literal["auto", "native", "tool", "prompt"] = "auto"
    hook_timeout: Seconds = 30.0
    fuzzy_name_cutoff: Ratio = 0.7
    explain_abnormal_end: bool = True
    dump_failed_requests: bool = True
    properties: Literal["off", "warn", "stop"] = "off"
    budget: Budget = Budget()
    backoff: BackoffSettings = BackoffSettings()
    stale: Stale = Stale()
    timeout: Timeout = Timeout()
    poll: Poll = Poll()
    primary_cooldown: Cooldown = Cooldown()
    credential: Credential = Credential()
    length: Length = Length()
    continuation: Continue = Continue()
    empty: Empty = Empty()
    compression: Compression = Compression()
    tool: Tools = Tools()
    guardrail: GuardrailSettings = GuardrailSettings()
    limits: LimitSettings = LimitSettings()
    prices: dict[ModelName, ModelPrice] = {}
    approval: ApprovalSettings = ApprovalSettings()
    interrupt: Interrupt = Interrupt()
    cache: Cache = Cache()
    delegation: DelegationSettings = DelegationSettings()
    prompt: Prompt = Prompt()
    memory: Memory = Memory()
    learned: LearnedSettings = LearnedSettings()
    web: Web = Web()
    sandbox: SandboxSettings = SandboxSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    mcp: Mcp = Mcp()
    store: Storage = Storage()
    dispatch: DispatchSettings = DispatchSettings()
    parts: PartSettings = PartSettings()
    request: RequestSettings = RequestSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    extensions: dict[ExtensionName, dict[str, JsonValue]] = {}

    def __init__(self, **given: Any) -> None:
        given = dict(_expand_dots(given))
        try:
            if _in_environment():
                super().__init__(**given)
            else:  # only the arguments: building the other sources costs five times as much as checking
                BaseModel.__init__(self, **given)
        except (ValidationError, SettingsError) as error:
            raise _explain(error) from None

    @classmethod
    def of(
        cls, value: Settings | Mapping[str, Any] | None = None, file: Mapping[str, Any] | None = None
    ) -> Settings:
        """Settings from a mapping: over the environment, over ``file`` (``[settings]`` of the config file),
        over the defaults. An instance is used unchanged."""
        if isinstance(value, Settings):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError("settings have the wrong type", value, "a Settings instance or a mapping")
        for name in value or ():
            expect("the name of a setting", name, str, "a text")
        layers = (file or {}, from_environment(), value or {})
        return cls(**reduce(merge, map(_expand_dots, layers)))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment; no other source is read."""
        return (init_settings, env_settings) if _in_environment() else (init_settings,)

    def attempts_per_turn(self) -> int:
        """R5: four attempts an iteration on average, and never fewer than 24; at most as many as its tree may
        have."""
        own = self.max_attempts_per_turn or max(24, 4 * self.max_iterations)
        return min(own, self.delegation.max_attempts_per_tree or own)

    def attempts_per_tree(self) -> int:
        """For a turn and all of its descendants together: by default the attempts of one turn times the
        number of iterations in the tree."""
        own = self.delegation.max_attempts_per_tree
        return own or int(self.attempts_per_turn() * self.delegation.tree_cap_factor)

    def sends_per_block(self, chain: int) -> int:
        """Return enough for a fallback chain of ``chain`` entries."""
        return self.max_attempts_per_call_block or max(12, self.api_max_retries * (1 + chain) + 3)


def from_environment() -> dict[str, Any]:
    """The settings in the environment, nested. Raises ``ConfigError`` for a list or table that is not
    JSON."""
    try:
        return EnvSettingsSource(Settings)() if _in_environment() else {}
    except SettingsError as error:
        raise _explain(error) from None


def unknown_variables() -> list[str]:
    """Variables that look like settings but are unknown. A typo would otherwise have no effect and
    go unnoticed."""
    others, groups = {"FSM_AGENT_HOME", "FSM_AGENT_MODEL"}, Settings.model_fields
    ours = (name for name in os.environ if name.startswith(ENV_PREFIX) and name not in others)
    return sorted(
        name for name in ours if name.removeprefix(ENV_PREFIX).lower().partition("__")[0] not in groups
    )


def _in_environment() -> bool:
    """Is any setting in the environment? Looking up each setting there would cost ten times as much as
    everything else."""
    names = (name.lower() for name in os.environ)
    ours = (name.removeprefix(_PREFIX).partition("__")[0] for name in names if name.startswith(_PREFIX))
    return any(name in Settings.model_fields for name in ours)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both, group by group; ``above`` wins."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = (
            merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
        )
    return result


def dot_names(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested groups into one mapping of ``nested.name``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict)
        found |= dot_names(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def _expand_dots(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Expand dotted names (``limits.turn.usd``) into nested groups, and a number for all sizes into one
    for each, so that a layer above can replace a single one of them."""
    if any("." in str(name) for name in layer):
        layer = reduce(merge, (_nest(str(name), value) for name, value in layer.items()))
    stale = layer.get("stale")
    if not isinstance(stale, Mapping):
        return layer
    sizes = {name: for_all_sizes(stale[name]) for name in ("stream", "whole") if name in stale}
    return {**layer, "stale": {**stale, **sizes}}


def _nest(name: str, value: Any) -> dict[str, Any]:
    above, dot, last = name.rpartition(".")
    return _nest(above, {last: value}) if dot else {name: value}


def _explain(error: ValidationError | SettingsError) -> ConfigError:
    from fsm_agent.settings.errors import explain  # it imports the classes above

    return explain(error)
