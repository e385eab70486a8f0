"""What an agent is made with, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypedDict

from typing_extensions import TypeVar

from fsm_agent.conversation.handover import AGENT_NAME
from fsm_agent.errors import ConfigError, near

if TYPE_CHECKING:
    import os

    from fsm_agent.approvals.service import Approvals
    from fsm_agent.composition.handoffs import Handoff, OptionedAgent
    from fsm_agent.conversation.compaction import ContextEngine
    from fsm_agent.conversation.messages import Message
    from fsm_agent.hooks import Guardrail, Hooks
    from fsm_agent.memory.provider import MemoryProvider
    from fsm_agent.providers.credentials import ApiKey
    from fsm_agent.runtime.budget import IterationBudget
    from fsm_agent.runtime.ports import Clock, ModelPort
    from fsm_agent.runtime.turn_inbox import TurnInbox
    from fsm_agent.sessions.session import Session
    from fsm_agent.sessions.store import Store
    from fsm_agent.settings.model import Settings
    from fsm_agent.telemetry import Telemetry
    from fsm_agent.tools import Tool
    from fsm_agent.tools.source import ToolSource
    from fsm_agent.toolsets.agent import ChildTask

Deps = TypeVar("Deps", default=Any)
Out = TypeVar("Out", default=str)
Other = TypeVar("Other")
T = TypeVar("T")

FILE_SERVERS = "mcp"
"""The toolset of the MCP servers that the config file names."""
DEFAULT = "default"
DEFAULT_TOOLSETS = ("core", "memory", "skills", "todo", "sessions", FILE_SERVERS)
"""What works everywhere. ``delegate`` costs the requests of other turns, ``clarify`` needs a person: those
are asked for."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a child has of its parent. ``more``: its tools that come and go, already running. ``session``: the
    child's own."""

    order: ChildTask
    depth: int
    approvals: Approvals
    more: ToolSource | None
    session: Session


def sequence_of(name: str, given: Iterable[T]) -> tuple[T, ...]:
    """The values of an argument that takes several. Raises ``ConfigError`` for a single one."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} has the wrong type", given, f"a list, also of one: {name}=[…]")
    return tuple(given)


EQUIVALENTS = {
    **dict.fromkeys(("instructions", "system", "prompt", "system_message"), "system_prompt="),
    **dict.fromkeys(("result_type", "response_model", "response_format"), "output_type="),
    **dict.fromkeys(("functions", "toolkits"), "tools="),
    **dict.fromkeys(("mcp_servers", "mcp_config"), "mcp="),
    "guardrails": "input_guardrails= or output_guardrails=",
    **dict.fromkeys(("deps", "context", "state"), "run_conversation(…, deps=…)"),
    **dict.fromkeys(("deps_type", "context_type"), "Agent[Deps](…), for type checkers"),
    **dict.fromkeys(("max_turns", "max_steps", "recursion_limit"), 'settings={"max_iterations": …}'),
    **dict.fromkeys(("retries", "max_retries"), 'settings={"api_max_retries": …}'),
    **dict.fromkeys(("limits", "usage_limits"), 'settings={"limits": {"turn": {"usd": …}}}'),
    **dict.fromkeys(("model_settings", "extra_body"), 'settings={"request": {…}}'),
}
"""What arguments of other libraries are called here."""


def unknown_argument(name: str) -> ConfigError:
    """The error for an argument that ``Agent`` does not have: with what it is called here, if anything."""
    from fsm_agent.settings.model import Settings

    known = [one.name for one in fields(AgentOptions)]
    if name in EQUIVALENTS:
        allowed = EQUIVALENTS[name]
    elif name in Settings.model_fields:
        allowed = f'settings={{"{name}": …}}'
    else:
        allowed = near(name, known)
    return ConfigError("unknown argument of Agent", name, allowed)


def toolsets_of(given: str | Sequence[str] | None, *, has_tools: bool) -> tuple[str, ...]:
    """The names of toolsets that an agent has. ``has_tools``: it was given tools of its own, and so has no
    others unless it names them. Raises ``ConfigError``. (Why: decision 112.)"""
    if given is None:
        return () if has_tools else DEFAULT_TOOLSETS
    names = (DEFAULT,) if given == DEFAULT else given
    if isinstance(names, str) or not isinstance(names, Iterable):
        allowed = 'a list of names, "default" for what an agent without tools has, or [] for none'
        raise ConfigError("toolsets has the wrong type", given, allowed)
    expanded = (one for name in names for one in (DEFAULT_TOOLSETS if name == DEFAULT else (name,)))
    return tuple(dict.fromkeys(expanded))


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The arguments of ``Agent``, which says what they mean, by their names and with their defaults. The
    services of an agent are composed from it; the options of a child are made from it with
    ``dataclasses.replace``. ``inbox``: what people say to it, where it goes on with the conversation of
    another agent, which has the same."""

    model: str | ModelPort | None = None
    base_url: str | None = None
    api_mode: str | None = None
    api_key: ApiKey = None
    context_window: int | None = None
    tools: Sequence[Tool | Callable[..., Any]] = ()
    toolsets: Sequence[str] = ()
    system_prompt: str | None = None
    output_type: Any = None
    fallbacks: Sequence[Mapping[str, Any]] | None = None
    settings: Settings | Mapping[str, Any] | None = None
    home: str | os.PathLike[str] | None = None
    session_id: str | None = None
    callbacks: object | Mapping[str, Callable[..., Any]] | None = None
    clock: Clock | None = None
    budget: IterationBudget | None = None
    auxiliary: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None
    memory: MemoryProvider | None = None
    context_engine: ContextEngine | None = None
    hooks: Sequence[Hooks] = ()
    input_guardrails: Sequence[Guardrail | Callable[..., Any]] = ()
    output_guardrails: Sequence[Guardrail | Callable[..., Any]] = ()
    mcp: Mapping[str, Any] | None = None
    workdir: str | os.PathLike[str] | None = None
    store: Store | None = None
    inherits: Inherited | None = None
    source: str = "python"
    name: str = AGENT_NAME
    handoffs: Sequence[Handoff | OptionedAgent] = ()
    inbox: TurnInbox | None = None
    telemetry: Telemetry | bool | None = None

    @property
    def has_built_in_tools(self) -> bool:
        """Say whether it works with tools of ours, and so on this machine."""
        return any(name != FILE_SERVERS for name in self.toolsets)


class AgentArguments(TypedDict, total=False):
    """The arguments of ``Agent`` besides ``model`` and ``output_type``, for type checkers."""

    base_url: str | None
    api_mode: str | None
    api_key: ApiKey
    context_window: int | None
    tools: Sequence[Tool | Callable[..., Any]] | None
    toolsets: str | Sequence[str] | None
    system_prompt: str | None
    fallbacks: Sequence[Mapping[str, Any]] | None
    settings: Settings | Mapping[str, Any] | None
    home: str | os.PathLike[str] | None
    session_id: str | None
    callbacks: object | Mapping[str, Callable[..., Any]] | None
    clock: Clock | None
    budget: IterationBudget | None
    auxiliary: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
    memory: MemoryProvider | None
    context_engine: ContextEngine | None
    hooks: Sequence[Hooks]
    input_guardrails: Sequence[Guardrail | Callable[..., Any]]
    output_guardrails: Sequence[Guardrail | Callable[..., Any]]
    mcp: Mapping[str, Any] | None
    workdir: str | os.PathLike[str] | None
    store: Store | None
    inherits: Inherited | None
    source: str
    name: str
    handoffs: Sequence[Handoff | OptionedAgent]
    inbox: TurnInbox | None
    telemetry: Telemetry | bool | None


class TurnArguments(TypedDict, Generic[Deps], total=False):
    """The arguments of ``Agent.start`` besides the message and ``output_type``, for type checkers."""

    system_message: str | None
    conversation_history: Sequence[Mapping[str, Any] | Message] | None
    task_id: str | None
    ephemeral_prompt: str | None
    deps: Deps | None
