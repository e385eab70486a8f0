"""The arguments of ``Agent``, stated once: its keywords and the options of children and of the command line
derive from ``AgentArguments``."""

# The arguments of an agent are a TypedDict. `AgentArguments` lists each argument once. Keywords are
# `Unpack[AgentArguments]`; children and the command line copy the mapping with changes. A type checker cannot
# derive keywords from a dataclass. Each method keeps its four overloads: mypy does not solve the union of a
# type form, an async, and a plain function.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast

from typing_extensions import TypeVar as DefaultTypeVar

from fsm_agent.conversation.messages import AGENT_NAME, Message
from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart, Part
from fsm_agent.errors import ConfigError, expect, expect_name, near
from fsm_agent.runtime.ports import ModelPort

if TYPE_CHECKING:
    import os

    from fsm_agent.approvals.service import Approvals
    from fsm_agent.conversation.compaction import ContextEngine
    from fsm_agent.extension import Extension
    from fsm_agent.features.other_agents import Handoff, OptionedAgent
    from fsm_agent.fsm.pause_point import TurnInbox
    from fsm_agent.hooks import Guardrail, Hooks
    from fsm_agent.memory import MemoryProvider
    from fsm_agent.providers.credentials import ApiKey
    from fsm_agent.runtime.budget import IterationBudget
    from fsm_agent.runtime.ports import Clock
    from fsm_agent.sessions.store import Store
    from fsm_agent.settings import Limits, Settings
    from fsm_agent.telemetry import Telemetry
    from fsm_agent.tools import Tool
    from fsm_agent.tools.decorator import ToolSource
    from fsm_agent.toolsets.agent import ChildTask

Deps = DefaultTypeVar("Deps", default=Any)
T = TypeVar("T")
Piece = str | Part | ImagePart | AudioPart | FilePart
Content = Piece | Sequence[Piece]
"""The content of a user's message: text, a content part, or several of them."""
Model = str | ModelPort | None
History = Sequence[Mapping[str, Any] | Message]

FILE_SERVERS = "mcp"
"""The toolset of the MCP servers in the config file."""
DEFAULT = "default"
DEFAULT_TOOLSETS = ("core", "memory", "skills", "todo", "sessions", FILE_SERVERS)
"""Toolsets that work everywhere. ``delegate`` costs the requests of other turns, and ``clarify`` needs a
person, so an agent has those only if they are named."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a child inherits from its parent. ``more``: its running tools that come and go."""

    order: ChildTask
    depth: int
    approvals: Approvals
    more: ToolSource | None


class AgentArguments(TypedDict, total=False):
    """The keyword arguments of ``Agent`` besides ``output_type``."""

    base_url: str | None
    """Address of the provider, up to ``/v1``, instead of its default."""
    api_mode: str | None
    """Wire format: ``"chat_completions"``, ``"codex_responses"`` (the Responses API) or
    ``"anthropic_messages"``; by default the provider's."""
    api_key: ApiKey
    """A string, several, or an object with ``get()`` and ``refresh()``; by default from the environment."""
    context_window: int | None
    """Tokens for prompt and answer together, if the known value is missing or wrong."""
    tools: Sequence[Tool | Callable[..., Any]] | None
    """Functions, decorated with ``tool`` or plain. An agent with ``tools``, ``mcp`` or ``handoffs`` has those
    and no others, unless ``toolsets`` names some."""
    toolsets: str | Sequence[str] | None
    """Names of built-in groups (``fsm_agent.toolsets``, ``fsm_agent.toolsets.agent``), ``mcp`` for the
    servers of the config file; ``"default"`` for the toolsets of an agent without tools of its own; ``[]``
    for none."""
    system_prompt: str | None
    """The agent's identity, instead of the built-in words. Without built-in tools it is the whole prompt;
    with them the engine adds rules, directory and date."""
    fallbacks: Sequence[Mapping[str, Any]] | None
    """Models to try in this order when the model cannot answer: mappings with the keys model (or a port),
    base_url, api_key, api_mode, context_window. ``None``: those of the config file."""
    settings: Settings | Mapping[str, Any] | None
    """``Settings``, or a mapping with those that differ, such as ``{"max_iterations": 20}``."""
    home: str | os.PathLike[str] | None
    """Folder with the store, notes and config file; by default ``FSM_AGENT_HOME``, else the platform's."""
    session_id: str | None
    """The session to continue, or the name of a new one; by default a new one."""
    callbacks: object | Mapping[str, Callable[..., Any]] | None
    """A mapping or an object; see ``fsm_agent.runtime.callbacks``."""
    clock: Clock | None
    """The clock of every wait and time limit."""
    budget: IterationBudget | None
    """Iterations shared with other agents."""
    auxiliary: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
    """Smaller models for side work: a mapping like those of ``fallbacks``, a list of them, or such lists by
    task (``summary``, ``web``, ``vision``, ``title``). The main model is used if they fail."""
    memory: MemoryProvider | None
    """An external memory besides the files in the home."""
    context_engine: ContextEngine | None
    """Shortens a conversation that is too long, instead of the built-in engine
    (``fsm_agent.conversation.compaction``); children have it, too."""
    hooks: Sequence[Hooks]
    """Your code that sees what passes through its turns, and may change or refuse it (``fsm_agent.hooks``);
    children have it, too."""
    input_guardrails: Sequence[Guardrail | Callable[..., Any]]
    """Functions that check a message before it is sent."""
    output_guardrails: Sequence[Guardrail | Callable[..., Any]]
    """Functions that check an answer before it is delivered."""
    mcp: Mapping[str, Any] | None
    """MCP servers by name instead of those in ``config.toml``, see ``fsm_agent.toolsets.mcp``."""
    workdir: str | os.PathLike[str] | None
    """Folder of the tools for files and commands; by default the current one."""
    store: Store | None
    """An open store, instead of the home's."""
    inherits: Inherited | None
    """What a child inherits from its parent; the engine passes it."""
    source: str
    """The origin of its new sessions, in lists and insights."""
    name: str
    """The agent's name for other agents and for people who read its records."""
    handoffs: Sequence[Handoff | OptionedAgent]
    """Agents that it can hand a conversation to, or a ``Handoff`` for each. A message goes to the current
    agent of the conversation; ``speaker()`` returns it."""
    inbox: TurnInbox | None
    """Receives interrupts and steering; the engine passes that of the agent whose conversation this one
    continues."""
    extensions: Sequence[Extension | str]
    """Features, each in one class (``fsm_agent.extension``), as objects or by the name of an installed one;
    children have them, too."""
    limits: Limits | None
    """The limits of each of its turns, ``Limits(usd=…, tokens=…, seconds=…)``, instead of the settings
    ``limits.turn``; a single turn may have others. A turn ends before it exceeds one."""
    debug: bool
    """Whether a bug in a tool or in the engine ends its turn and is raised to its caller, instead of becoming
    an error result that the model reads. The traceback is in the log and in ``result.bugs`` either way."""
    telemetry: Telemetry | bool | None
    """Whether and where its turns, and those of its children and of agents that it hands over to, are
    reported to OpenTelemetry (``fsm_agent.telemetry``); by default the setting."""


class AgentOptions(AgentArguments, total=False):
    """All arguments of an agent as one value for ``Agent.of``. The options of a child derive from its
    parent's: ``{**options, "name": …}``."""

    model: str | ModelPort | None
    output_type: Any


class TurnOptions(TypedDict, Generic[Deps], total=False):
    """The keyword-only arguments of ``Agent.start`` besides ``output_type``."""

    ephemeral_prompt: str | None
    """Text after the system prompt for this turn only; it is in no transcript, in no later turn, and after
    the part that a provider caches."""
    deps: Deps | None
    """Passed to tools in their ``RunContext``, and never stored."""
    limits: Limits | None
    """Of this turn, and of each that it hands the conversation over to, instead of the agent's. Its children
    have the agent's limits, and so does the turn when it is resumed."""


class TurnArguments(TurnOptions[Deps], total=False):
    """All arguments of ``Agent.start`` besides the message and ``output_type``."""

    system_message: str | None
    conversation_history: Sequence[Mapping[str, Any] | Message] | None
    task_id: str | None


ARGUMENTS = ("model", *AgentArguments.__annotations__, "output_type")
DEFAULTS: AgentOptions = {
    "tools": (), "hooks": (), "input_guardrails": (), "output_guardrails": (), "handoffs": (),
    "extensions": (), "debug": False, "source": "python", "name": AGENT_NAME,
}  # fmt: skip
"""Defaults of arguments other than ``None``."""
KINDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("system_prompt", "base_url", "api_mode"), (str, "a text")),
    "context_window": (int, "a number of tokens"),
    "debug": (bool, "True or False"),
    "inherits": (Inherited, "None: the engine passes it"),
}
"""Types of the arguments that nothing else validates when an agent is made."""
NAMES = ("session_id", "source", "name")
"""Arguments that the store has as names."""
SEQUENCES = ("tools", "hooks", "input_guardrails", "output_guardrails", "extensions")


CHANGE: ContextVar[Callable[[AgentOptions], AgentOptions] | None] = ContextVar(
    "fsm_agent_change", default=None
)
"""Adapts the options of agents made in the current context."""


def options_of(given: AgentOptions) -> AgentOptions:
    """Return all options of an agent, validated and with defaults. Raises ``ConfigError`` for an unknown
    argument, and for one of a wrong type."""
    if unknown := [name for name in given if name not in ARGUMENTS]:
        raise unknown_argument(unknown[0])
    has_tools = given.get("tools") is not None or bool(given.get("mcp")) or bool(given.get("handoffs"))
    options: dict[str, Any] = {**dict.fromkeys(ARGUMENTS), **DEFAULTS, **given}
    for name in SEQUENCES:
        options[name] = sequence_of(name, () if options[name] is None else options[name])
    refuse_other_limits(options["limits"])
    for name, (kind, allowed) in KINDS.items():
        if options[name] is not None:
            expect(name, options[name], kind, allowed)
    for name in NAMES:
        if options[name] is not None:
            expect_name(name, options[name], "a text")
    _check_engine_parts(options)
    if options["clock"] is not None and not callable(getattr(options["clock"], "sleep", None)):
        raise ConfigError(
            "clock has the wrong type", options["clock"], "an object with now() and sleep(seconds)"
        )
    fallbacks = options["fallbacks"]
    if isinstance(fallbacks, str | Mapping) or not isinstance(fallbacks, Iterable | None):
        raise ConfigError("fallbacks has the wrong type", fallbacks, 'a list: [{"model": …}]')
    options["toolsets"] = toolsets_of(options["toolsets"], has_tools=has_tools)
    made, change = cast(AgentOptions, options), CHANGE.get()
    return made if change is None else change(made)


def _check_engine_parts(options: Mapping[str, Any]) -> None:
    from fsm_agent.fsm.pause_point import TurnInbox
    from fsm_agent.runtime.budget import IterationBudget

    if options["budget"] is not None:
        allowed = "IterationBudget(100), of fsm_agent.runtime.budget"
        expect("budget", options["budget"], IterationBudget, allowed)
    if options["inbox"] is not None:
        expect("inbox", options["inbox"], TurnInbox, "None: the engine passes it")


@contextmanager
def changed_options(change: Callable[[AgentOptions], AgentOptions]) -> Iterator[None]:
    """Have ``change`` adapt the options of each agent that is made in this block. A user's factory does not
    know where its agents run, and building each one again would cost as much as the first time."""
    token = CHANGE.set(change)
    try:
        yield
    finally:
        CHANGE.reset(token)


def has_built_in_tools(options: AgentOptions) -> bool:
    """Return whether the agent has built-in tools, and so works on this machine."""
    return any(name != FILE_SERVERS for name in options["toolsets"] or ())


def sequence_of(name: str, given: Iterable[T]) -> tuple[T, ...]:
    """Return the values of an argument that takes several. Raises ``ConfigError`` for a single one."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} has the wrong type", given, f"a list, also of one: {name}=[…]")
    return tuple(given)


def refuse_other_limits(given: object) -> None:
    """Raise ``ConfigError`` for limits that are not ``Limits``."""
    from fsm_agent.settings import Limit

    if given is not None and not isinstance(given, Limit):
        raise ConfigError("limits has the wrong type", given, "Limits(usd=…, tokens=…, seconds=…), or None")


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
    **dict.fromkeys(("usage_limits", "limit"), "limits=Limits(usd=…, tokens=…, seconds=…)"),
    **dict.fromkeys(("model_settings", "extra_body"), 'settings={"request": {…}}'),
}
"""Equivalents here of arguments of other libraries."""


def unknown_argument(name: str) -> ConfigError:
    """Return the error for an argument that ``Agent`` does not have, with its equivalent, if any."""
    from fsm_agent.settings import Settings

    if name in EQUIVALENTS:
        allowed = EQUIVALENTS[name]
    elif name in Settings.model_fields:
        allowed = f'settings={{"{name}": …}}'
    else:
        allowed = near(name, ARGUMENTS)
    return ConfigError("unknown argument of Agent", name, allowed)


def toolsets_of(given: str | Sequence[str] | None, *, has_tools: bool) -> tuple[str, ...]:
    """Return the names of an agent's toolsets. ``has_tools``: it was given tools, and so has no toolsets
    unless it names them. Raises ``ConfigError``. (Why: decision 112.)"""
    if given is None:
        return () if has_tools else DEFAULT_TOOLSETS
    if given != DEFAULT and (isinstance(given, str) or not isinstance(given, Iterable)):
        allowed = 'a list of names, "default" for what an agent without tools has, or [] for none'
        raise ConfigError("toolsets has the wrong type", given, allowed)
    names = (DEFAULT,) if isinstance(given, str) else tuple(given)
    for name in names:
        expect("a toolset", name, str, "the name of a toolset")
    expanded = (one for name in names for one in (DEFAULT_TOOLSETS if name == DEFAULT else (name,)))
    return tuple(dict.fromkeys(expanded))


# ----------------------------------------------------------------------------------------------------
# The models for side work: their tasks, and the order in which they are tried.


TASKS = ("summary", "web", "vision", "title")
"""Summaries of compactions; questions about pages of the web, and about images; titles of sessions."""
Specs = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None
"""One entry like those of ``fallbacks``, or a list of them; a text is an entry with only a model."""
ENTRY = ("model", "base_url", "api_key", "api_mode", "context_window")


def by_task(given: Specs) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the entries for each task. Entries without a task apply to all tasks but titles, which are
    optional; the model in use is tried after them. Raises ``ConfigError`` for an unknown task."""
    if isinstance(given, str) or not isinstance(given, Mapping) or "model" in given:
        return dict.fromkeys(TASKS, _listed(given)) | {"title": ()}
    if unknown := sorted(set(given) - set(TASKS)):
        raise ConfigError("auxiliary names an unknown task", unknown[0], ", ".join(TASKS))
    return {task: _listed(given.get(task)) for task in TASKS}


def _listed(given: Any) -> Sequence[Mapping[str, Any]]:
    entries = [given] if isinstance(given, Mapping | str) else given or ()
    if not isinstance(entries, Iterable):
        raise ConfigError("auxiliary has the wrong type", given, "a model, a list of them, or a dict by task")
    return [{"model": one} if isinstance(one, str) else one for one in entries]


def task_options(options: AgentOptions, task: str) -> AgentOptions:
    """Return the options of an agent whose turns are requests for ``task``: its models first, then the model
    in use with its fallbacks. These may not read images, and are not tried for them if there are vision
    models. ``options`` name a model."""
    given: Mapping[str, Any] = options
    own = {name: given[name] for name in ENTRY if given[name] is not None}
    chain = list(by_task(options["auxiliary"])[task])
    if task != "vision" or not chain:
        chain += [own, *(options["fallbacks"] or ())]
    first: dict[str, Any] = dict.fromkeys(ENTRY) | dict(chain[0])
    changes = {**first, "fallbacks": chain[1:], "tools": (), "toolsets": ()}
    return cast(AgentOptions, {**options, **changes})
