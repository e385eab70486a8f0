"""``Services``: everything that performs an agent's turns, built from its options."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent.approvals.rules import Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.conversation.effects import Tell
from fsm_agent.conversation.result import NAME
from fsm_agent.conversation.wire.options import check_options
from fsm_agent.errors import ConfigError, near
from fsm_agent.extension import asks_of, extensions_of, tools_in
from fsm_agent.features import RESULTS
from fsm_agent.features.built_in import FileCheckpoints, background_of, features_of, memory_of, output_type_of
from fsm_agent.features.other_agents import AgentTool, ChildAgentFactory, transfer_tools
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.memory import Notes
from fsm_agent.options import DEFAULT, ENTRY, FILE_SERVERS, AgentOptions, by_task
from fsm_agent.providers.catalog import LearnedFacts
from fsm_agent.providers.choose import Choice, connect
from fsm_agent.providers.config_file import Config, config_of, database_secrets, variables_of
from fsm_agent.providers.credentials import hide_from_children, unkept
from fsm_agent.providers.failover import Backend, Backends, fallback_backends, make_backend
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Backoff, SystemClock
from fsm_agent.runtime.events import ToolProgress
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.sessions.checkpoints import FOLDER as CHECKPOINTS
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.settings import DATABASE_VARIABLE, Settings
from fsm_agent.support.files import LOGINS, home_of, make_private, workdir_of
from fsm_agent.telemetry import choose_telemetry
from fsm_agent.tools import as_tool
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.toolsets import TOOLSETS as ALL_TOOLSETS
from fsm_agent.toolsets import toolsets as tools_of
from fsm_agent.toolsets.agent import AGENT_LEVEL, AGENT_TOOLSETS, BEGIN_TURNS, AgentTools, agent_tools
from fsm_agent.toolsets.agent.child import ChildAgent
from fsm_agent.toolsets.sandbox import ASIDE
from fsm_agent.toolsets.tool_context import Programs, bridge_tools

DUMPS = "dumps"
"""Folder of the home directory for failed requests."""
HOME_FILES = (
    "sessions.db*", "owners", "learned.json*", "key-rests.json*", "config.toml", RESULTS, DUMPS, "logs",
    "*MEMORY.md*", "*USER.md*", "SOUL.md", "skills", "chat_history", "trajectories.jsonl", CHECKPOINTS, ASIDE,
    LOGINS,
)  # fmt: skip
"""Patterns of all files that the home directory may contain."""


class Services:
    """Attributes are built in this order: each needs those above it. ``make`` builds child agents.
    ``features``: all extensions of the agent, outermost first, including its own; ``extensions``: those given
    as options; ``asks``: their requests. ``silences``: consecutive requests that went silent when the last
    turn ended. ``reported``: one-time messages already shown. ``debug``: bugs are raised. Raises
    ``ConfigError`` for unusable options."""

    def __init__(self, options: AgentOptions, make: Callable[[AgentOptions], ChildAgent]) -> None:
        if not re.fullmatch(NAME, options["name"]):
            allowed = "1 to 48 letters, digits, underscores and dashes"
            raise ConfigError("the name of an agent cannot be used", options["name"], allowed)
        self.make, self.budget, self.debug = make, options["budget"], bool(options["debug"])
        self.home, self.workdir = home_of(options["home"], os.environ), workdir_of(options["workdir"])
        config = config_of(self.home)
        self.settings = settings = _settings(options, config)
        headers = {name: unkept(text) for name, text in settings.request.headers.items()}
        hide_from_children(
            (*variables_of(config), DATABASE_VARIABLE),
            (*headers.values(), *database_secrets(settings.store.database)),
        )
        self.store = _store(options, self.home, settings)
        self.clock, self.callbacks = options["clock"] or SystemClock(), Callbacks(options["callbacks"])
        self.pending = PendingItems(lambda: self.store.database, self.clock.now)
        self.signals, self.backoff = options["inbox"] or TurnInbox(), _backoff(settings)
        self.learned = LearnedFacts(self.home, settings.learned.days, self.clock.now)
        self.backends, self.auxiliary, sides, notices = _models(
            options, config, settings, self.clock, self.learned, headers
        )
        opened = make_private(self.home, HOME_FILES)
        self.telemetry = choose_telemetry(options["telemetry"], settings.telemetry)
        self.options: AgentOptions = {**with_model(options, self.backends), "auxiliary": sides}
        self.approvals = _approvals(self)
        self.more = _servers(self, config)
        self.child_factory = ChildAgentFactory(self)
        self.background = background_of(self)
        self.programs, self.notes = Programs(), Notes.at(self.home, settings.memory)
        self.recall, self.files = memory_of(self), FileCheckpoints(self)
        self.extensions = extensions_of(options["extensions"], settings.extensions, KeptValues(self.store))
        self.agent_tools, self.tools = _tools(self)
        self.features = features_of(self)
        self.asks, self.output = asks_of(self.features), output_type_of(options["output_type"], settings)
        names = [*self.agent_tools.names, *self.tools.lasting_names]
        unusable = check_options(self.backends.runtimes(), settings.request, names)
        self.notices: Sequence[str] = (*filter(None, (opened,)), *notices, *unusable)
        self.silences, self.reported = 0, set[Tell]()


def _settings(options: AgentOptions, config: Config) -> Settings:
    settings = Settings.of(options["settings"], config.settings)
    if options["limits"] is None:
        return settings
    return settings.model_copy(update={"limits": settings.limits.for_turn(options["limits"])})


def _store(options: AgentOptions, home: Path, settings: Settings) -> Store:
    if options["store"] is not None and not isinstance(options["store"], Store):
        raise ConfigError("store has the wrong type", options["store"], "a Store")
    return options["store"] or store_for(home, settings.store.durability, settings.store.database)


def _approvals(services: Services) -> Approvals:
    """Return the approvals; a child shares those of its parent."""
    inherits, store, settings = services.options["inherits"], services.store, services.settings
    if inherits is not None:
        return inherits.approvals
    return Approvals(
        services.callbacks,
        services.clock,
        settings.approval,
        settings.poll.control,
        grants=Grants(lambda: store.database, store.now),
        workdir=str(services.workdir),
    )


def _models(
    options: AgentOptions,
    config: Config,
    settings: Settings,
    clock: Clock,
    learned: LearnedFacts,
    headers: Mapping[str, str],
) -> tuple[Backends, tuple[Backend, ...], Mapping[str, Any], tuple[str, ...]]:
    """Return (the primary with its fallbacks, the models for summaries in order of preference, usable entries
    for auxiliary work by task, notices about unusable entries)."""
    model = options["model"]
    choose = partial(config.chooser, plain_http=settings.credential.plain_http)
    if not (model is None or isinstance(model, str) or hasattr(model, "call")):
        raise ConfigError(
            "model has the wrong type", type(model).__name__, '"<provider>:<model>" or a model port'
        )

    def port(choice: Choice) -> ModelPort:
        return connect(choice, settings, clock)

    def first(choice: Choice) -> ModelPort:
        return connect(choice, settings, clock, headers)

    given: Mapping[str, Any] = options
    primary = make_backend({name: given[name] for name in ENTRY}, choose, settings, first)
    fallbacks = config.fallbacks if options["fallbacks"] is None else options["fallbacks"]
    chain, notices = fallback_backends(fallbacks, choose, settings, port)
    sides = by_task(config.auxiliary if options["auxiliary"] is None else options["auxiliary"])
    usable = {
        task: [(spec, one) for spec in specs for one in fallback_backends([spec], choose, settings, port)[0]]
        for task, specs in sides.items()
    }
    smaller = {task: [spec for spec, _ in found] for task, found in usable.items()}
    summarizers = tuple(backend for _, backend in usable["summary"])
    return Backends(primary, chain, settings, clock, learned), summarizers, smaller, tuple(notices)


def with_model(options: AgentOptions, backends: Backends) -> AgentOptions:
    """Return the options with the detected model: children do not search for one again."""
    if options["model"] is not None:
        return options
    chosen = backends.current.choice
    return {**options, "model": f"{chosen.profile.name}:{chosen.model}", "base_url": chosen.base_url}


def _tools(services: Services) -> tuple[AgentTools, ToolRunner]:
    """Return (tools that belong to the agent, all others). A user's tool replaces a built-in one of the same
    name."""
    options, settings, home, more = services.options, services.settings, services.home, services.more
    named_groups = options["toolsets"] or ()
    known = sorted((*ALL_TOOLSETS, *AGENT_TOOLSETS, FILE_SERVERS, DEFAULT))
    if unknown := [name for name in named_groups if name not in known]:
        raise ConfigError("unknown toolset", unknown[0], near(unknown[0], known))
    own = [
        as_tool(one)
        for one in (*(options["tools"] or ()), *(() if services.recall is None else services.recall.tools()))
    ]
    own += tools_in(services.extensions, {one.spec.name for one in own})
    names = {one.spec.name for one in own}
    groups = [name for name in named_groups if name in ALL_TOOLSETS]
    mine = [name for name in named_groups if name not in BEGIN_TURNS or services.child_factory.allowed]
    offered = [
        *tools_of(
            groups, services.workdir, home / RESULTS, home, services.notes, settings.web, settings.sandbox
        ),
        *agent_tools(mine, services),
        *(bridge_tools(more) if more is not None and settings.tool.bridge_above is not None else ()),
    ]
    built_in = [one for one in offered if one.spec.name not in names]
    others = [one.held_by(services) for one in own if isinstance(one, AgentTool)]
    others += transfer_tools(options["handoffs"], settings.delegation.max_handoffs)
    agent_level = [*(one for one in built_in if one.spec.name in AGENT_LEVEL), *others]
    outer = [*(one for one in built_in if one.spec.name not in AGENT_LEVEL), *own]
    given: dict[str, Any] = {
        "clock": services.clock,
        "interrupt_grace": settings.tool.interrupt_grace,
        "poll": settings.poll.control,
    }
    callbacks = services.callbacks
    return AgentTools(agent_level, **given), ToolRunner(
        [one for one in outer if not isinstance(one, AgentTool)],
        **given,
        on_risk=lambda name, why: callbacks.publish(ToolProgress("risk", name, "; ".join(why))),
        more=more,
        reserved=[tool.spec.name for tool in agent_level],
    )


def _servers(services: Services, config: Config) -> ToolSource | None:
    """Return the agent's MCP servers, if any: its own, else its parent's, else those of the config file if it
    requests them."""
    options = services.options
    if options["mcp"] is None and options["inherits"] is not None:
        return options["inherits"].more
    if options["mcp"] is None and not (config.mcp and FILE_SERVERS in (options["toolsets"] or ())):
        return None
    from fsm_agent.toolsets.mcp import McpServers

    return McpServers.of(
        options["mcp"],
        home=services.home,
        workdir=services.workdir,
        clock=services.clock,
        settings=services.settings,
        callbacks=services.callbacks,
    )


def _backoff(settings: Settings) -> Backoff:
    waits = settings.backoff
    return Backoff(
        exception=(waits.exception.base, waits.exception.cap),
        invalid=(waits.invalid.base, waits.invalid.cap),
        jitter=waits.jitter,
        retry_after_cap=settings.retry_after_cap,
        rng=random.Random(waits.seed),  # noqa: S311 - jitter, not a secret
    )
