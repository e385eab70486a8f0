"""From what an agent is made with to the world that its turns run in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_agent.approvals.repository import Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.composition.child_factory import ChildAgentFactory, Inherited
from fsm_agent.composition.services import RESULTS, Services
from fsm_agent.errors import ConfigError
from fsm_agent.memory.context_injection import MemoryRecall
from fsm_agent.memory.external import ExternalMemory, checked
from fsm_agent.memory.files import Notes
from fsm_agent.memory.provider import MemoryProvider
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.config_file import Config
from fsm_agent.providers.connect import connect
from fsm_agent.providers.credentials import ApiKey
from fsm_agent.providers.failover import Backend, Backends, fallback_backends, make_backend
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.runtime.turn_inbox import TurnInbox
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.support.backoff import Backoff
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.tools.source import ToolSource
from fsm_agent.toolsets import TOOLSETS
from fsm_agent.toolsets import toolsets as tools_of
from fsm_agent.toolsets.agent import AGENT_LEVEL, AGENT_TOOLSETS, AgentTools, Background, Parts, agent_tools
from fsm_agent.toolsets.agent.bridge import bridge_tools
from fsm_agent.toolsets.agent.child import ChildAgent
from fsm_agent.toolsets.mcp.servers import McpServers

Specs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""One entry like those of ``fallbacks``, or a list of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is made with: the arguments of ``Agent`` by their names, with what follows from the
    environment filled in."""

    model: str | ModelPort | None
    base_url: str | None
    api_mode: str | None
    api_key: ApiKey
    context_window: int | None
    tools: tuple[Tool | Callable[..., Any], ...]
    toolsets: Sequence[str]
    system_prompt: str | None
    fallbacks: Sequence[Mapping[str, Any]] | None
    settings: Settings
    home: Path
    config: Config
    callbacks: object | Mapping[str, Callable[..., Any]] | None
    clock: Clock
    budget: IterationBudget | None
    auxiliary: Specs
    memory: MemoryProvider | None
    notes: Notes
    mcp: Mapping[str, Any] | None
    workdir: Path
    store: Store
    inherits: Inherited | None


def composed(given: AgentOptions, make: Callable[..., ChildAgent]) -> Services:
    """The world of an agent; ``make`` makes the agents of its children. Raises ``ConfigError`` for what
    cannot be used."""
    settings, clock, inherits = given.settings, given.clock, given.inherits
    told, signals = Callbacks(given.callbacks), TurnInbox()
    poll, grace = settings.poll.control, settings.tool.interrupt_grace
    backends, notices = _backends(given)
    external = _external(given)
    more = inherits.more if inherits else _servers(given)
    nursery = ChildAgentFactory(
        make, _for_children(given, backends), lambda: world, more, inherits.depth if inherits else 0
    )
    background = _background(given, nursery, told)
    signals.listener = background.interrupt if background is not None else None
    offered = background if settings.delegation.background else None
    parts = Parts(given.store, told, clock, settings, nursery, offered)
    own, registered = _tools(given, external, parts, more)
    world = Services(
        settings=settings,
        clock=clock,
        backends=backends,
        agent_tools=AgentTools(own, clock=clock, interrupt_grace=grace, poll=poll),
        tools=ToolRunner(
            registered,
            clock=clock,
            interrupt_grace=grace,
            poll=poll,
            on_risk=lambda name, why: told.emit("tool_progress", "risk", name, "; ".join(why)),
            more=more,
            reserved=[tool.spec.name for tool in own],
        ),
        callbacks=told,
        approvals=inherits.approvals if inherits else _approvals(given, told),
        backoff=_backoff(settings),
        signals=signals,
        home=given.home,
        workdir=given.workdir,
        store=given.store,
        recall=MemoryRecall(external, told, signals),
        auxiliary=_auxiliary(given),
        budget=given.budget,
        background=background,
        notices=tuple(notices),
    )
    return world


def _backends(given: AgentOptions) -> tuple[Backends, list[str]]:
    """(the primary with its fallbacks, entries that cannot be used, in words)."""
    model, port = given.model, _port(given)
    if not (model is None or isinstance(model, str) or hasattr(model, "call")):
        raise ConfigError(
            "model has the wrong type", type(model).__name__, '"<provider>:<model>" or a model port'
        )
    spec = {
        "model": model,
        "base_url": given.base_url,
        "api_key": given.api_key,
        "api_mode": given.api_mode,
        "context_window": given.context_window,
    }
    choose = given.config.chooser
    primary = make_backend(spec, choose, given.settings, port)
    fallbacks = given.config.fallbacks if given.fallbacks is None else given.fallbacks
    chain, notices = fallback_backends(fallbacks, choose, given.settings, port)
    return Backends(primary, chain, given.settings, given.clock), notices


def _auxiliary(given: AgentOptions) -> tuple[Backend, ...]:
    """The models for side tasks, in the order in which they are tried."""
    specs = given.config.auxiliary if given.auxiliary is None else given.auxiliary
    chain, _ = fallback_backends(
        [specs] if isinstance(specs, Mapping) else specs, given.config.chooser, given.settings, _port(given)
    )
    return tuple(chain)


def _port(given: AgentOptions) -> Callable[[Choice], ModelPort]:
    return lambda choice: connect(choice, given.settings, given.clock)


def _for_children(given: AgentOptions, backends: Backends) -> dict[str, Any]:
    """What a child is made with, too. It does not look for a model again: what was found for its parent is
    named."""
    chosen = backends.current.choice
    names = ("api_mode", "api_key", "context_window", "tools", "toolsets", "system_prompt", "fallbacks",
             "auxiliary", "settings", "home", "clock", "workdir")  # fmt: skip
    found = given.model is None
    return {name: getattr(given, name) for name in names} | {
        "model": f"{chosen.profile.name}:{chosen.model}" if found else given.model,
        "base_url": chosen.base_url if found else given.base_url,
    }


def _tools(
    given: AgentOptions, external: ExternalMemory | None, parts: Parts, more: ToolSource | None
) -> tuple[list[Tool], list[Tool]]:
    """(those that are a part of the agent, all others). A user's tool takes the place of a built-in one of
    its name."""
    if isinstance(given.toolsets, str):
        raise ConfigError("toolsets has the wrong type", given.toolsets, "a list of names")
    if unknown := [name for name in given.toolsets if name not in TOOLSETS and name not in AGENT_TOOLSETS]:
        raise ConfigError("unknown toolset", unknown[0], ", ".join(sorted((*TOOLSETS, *AGENT_TOOLSETS))))
    own = [as_tool(one) for one in (*given.tools, *(external.tools() if external else ()))]
    names = {one.spec.name for one in own}
    groups = [name for name in given.toolsets if name in TOOLSETS]
    mine = [name for name in given.toolsets if name != "delegate" or parts.nursery.allowed]
    home, settings = given.home, given.settings
    offered = [
        *tools_of(groups, given.workdir, home / RESULTS, home, given.notes, settings.web),
        *agent_tools(mine, parts),
        *(bridge_tools(more) if more is not None and settings.tool.bridge_above is not None else ()),
    ]
    built_in = [one for one in offered if one.spec.name not in names]
    agent_level = [one for one in built_in if one.spec.name in AGENT_LEVEL]
    return agent_level, [*(one for one in built_in if one.spec.name not in AGENT_LEVEL), *own]


def _background(given: AgentOptions, nursery: ChildAgentFactory, told: Callbacks) -> Background | None:
    """Tasks in the background are an affair of the agent that a person talks to, not of its children."""
    if given.inherits is not None:
        return None
    able = given.settings.delegation.background and nursery.allowed and "delegate" in given.toolsets
    return Background(nursery, given.store, told, given.clock, given.settings, able=able)


def _servers(given: AgentOptions) -> ToolSource | None:
    return McpServers.of(
        given.mcp, home=given.home, workdir=given.workdir, clock=given.clock, settings=given.settings
    )


def _approvals(given: AgentOptions, told: Callbacks) -> Approvals:
    grants = Grants(lambda: given.store.database, given.store.now)
    poll, rules = given.settings.poll.control, given.settings.approval
    return Approvals(told, given.clock, rules, poll, grants=grants, workdir=str(given.workdir))


def _external(given: AgentOptions) -> ExternalMemory | None:
    if given.memory is None:
        return None
    checked(given.memory)
    return ExternalMemory(given.memory, given.clock, given.settings)


def _backoff(settings: Settings) -> Backoff:
    waits = settings.backoff
    return Backoff(
        exception=(waits.exception.base, waits.exception.cap),
        invalid=(waits.invalid.base, waits.invalid.cap),
        jitter=waits.jitter,
        retry_after_cap=settings.retry_after_cap,
        rng=random.Random(waits.seed),  # noqa: S311 - jitter, not a secret
    )
