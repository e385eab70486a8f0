"""From what an agent is made with to the services of its turns."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fsm_agent.approvals.rules import Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.composition.handoffs import AgentTool, transfer_tools
from fsm_agent.composition.model_caller import ENTRY, asked_by, by_task
from fsm_agent.composition.options import DEFAULT, FILE_SERVERS, AgentOptions, Inherited
from fsm_agent.composition.services import HOME_FILES, RESULTS, Household, Services, Shared, parts_of, save
from fsm_agent.conversation.effects import Saved
from fsm_agent.conversation.handover import NAME
from fsm_agent.conversation.wire.options import check_options
from fsm_agent.errors import ConfigError, near
from fsm_agent.extension import Extension, extensions_of, tools_in
from fsm_agent.features.answers import output_type_of
from fsm_agent.features.background import BackgroundTasks
from fsm_agent.features.callbacks import CallbackCalls
from fsm_agent.features.checkpoints import FileCheckpoints
from fsm_agent.features.memory import MemoryRecall
from fsm_agent.features.points import asks_of
from fsm_agent.memory.external import ExternalMemory, MemoryProvider, checked
from fsm_agent.memory.files import Notes
from fsm_agent.providers.catalogue import LearnedFacts
from fsm_agent.providers.choose import Choice, connect
from fsm_agent.providers.config_file import Config, config_of, database_secrets, variables_of
from fsm_agent.providers.credentials import hide_from_children, unkept
from fsm_agent.providers.failover import Backend, Backends, fallback_backends, make_backend
from fsm_agent.runtime.callbacks import Callbacks, listened
from fsm_agent.runtime.events import StatusText, ToolProgress
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.runtime.turn_inbox import TurnInbox
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.settings.model import DATABASE_VARIABLE, Settings
from fsm_agent.support.clock import Backoff, SystemClock
from fsm_agent.support.files import made_private
from fsm_agent.support.home import home_of, workdir_of
from fsm_agent.support.texts import one_line
from fsm_agent.telemetry import tracing_of, wanted_telemetry
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.toolsets import TOOLSETS as ALL_TOOLSETS
from fsm_agent.toolsets import toolsets as tools_of
from fsm_agent.toolsets.agent import (
    AGENT_LEVEL,
    AGENT_TOOLSETS,
    BEGIN_TURNS,
    AgentTools,
    Background,
    ChildTask,
    agent_tools,
)
from fsm_agent.toolsets.agent.child import ChildAgent, ChildFactory
from fsm_agent.toolsets.agent.dispatch import bridge_tools
from fsm_agent.toolsets.agent.review import REVIEW, TITLE, TOOLSETS

# ----------------------------------------------------------------------------------------------------
# Agents for child turns: like their parent, or like another agent, without what a child may not do.


WITHHELD_TOOLSETS = frozenset({"memory", "learn", "clarify", "code"})
WITHHELD = frozenset(
    {"memory", "skill_manage", "clarify", "execute_code", "send_message", "cronjob", "schedule"}
)
"""Tools that a child never has, whoever made them: it does not write notes or skills, ask or message people,
schedule work, or run programs that call tools (AGT-05). A review is there for notes and skills."""


SIDE_ITERATIONS = 3
"""Of a child that only answers: one, and two for a reply that is cut."""


class Borrowed:
    """Tools of a source that somebody else keeps running."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source

    @property
    def labels(self) -> tuple[str, ...]:
        return self._source.labels

    def tools(self) -> Sequence[Tool]:
        return self._source.tools()

    async def ready(self, taken: Collection[str], interrupted: asyncio.Event) -> tuple[str, ...]:
        return ()

    async def find(self, name: str) -> Tool | None:
        return await self._source.find(name)

    async def aclose(self) -> None:
        """Not ours to close."""


class ChildAgentFactory:
    """Makes the agents of children with ``make``: from the options of their parent, and in its shared."""

    def __init__(
        self,
        make: Callable[[AgentOptions], ChildAgent],
        options: AgentOptions,
        shared: Shared,
        more: ToolSource | None,
    ) -> None:
        self._make, self._shared = make, shared
        self._options: AgentOptions = {**options, "mcp": None, "handoffs": ()}  # a child answers its parent
        self._more = None if more is None else Borrowed(more)
        self._depth = 0 if options["inherits"] is None else options["inherits"].depth
        self._settings, self._most = shared.settings, shared.settings.delegation.max_iterations
        self._other = False

    @property
    def allowed(self) -> bool:
        """May an agent of this depth have children at all?"""
        return self._depth < self._shared.settings.delegation.max_depth

    def has_models(self, task: str) -> bool:
        """Say whether there are models for this side task, besides the one in use."""
        return bool(by_task(self._options["auxiliary"])[task])

    def of(self, other: AgentOptions, settings: Settings, most: int) -> ChildFactory:
        """Return where the children come from that are turns of another agent, with its own ``settings``, of
        at most ``most`` iterations. The limits on the tree stay those of its first agent."""
        family = copy.copy(self)
        hooks = (*self._options["hooks"], *other["hooks"])
        telemetry = self._options["telemetry"] if other["telemetry"] is None else other["telemetry"]
        family._options = {**other, "handoffs": (), "hooks": hooks, "telemetry": telemetry}
        family._more, family._most = None, most
        family._other = True
        mine = self._settings
        above: dict[str, Any] = {"delegation": mine.delegation, "limits": settings.limits.within(mine.limits)}
        above["prices"] = {**mine.prices, **settings.prices}
        family._settings = settings.model_copy(update=above)
        return family

    def child(self, order: ChildTask) -> ChildAgent:
        options, more = self._options, self._more
        bounds: dict[str, Any] = {"max_iterations": self._most}
        if order.side_task:
            options, more = asked_by(options, order.side_task), None
            request = self._settings.request.without_hosted().for_another()
            bounds = {**_few(SIDE_ITERATIONS), "request": request}
        elif order.task_id == REVIEW:
            groups = [name for name in options["toolsets"] or () if name in TOOLSETS]
            options, more = {**options, "tools": (), "toolsets": groups}, None
            bounds = _few(self._settings.memory.review_iterations)
        else:
            own = [one for one in map(as_tool, options["tools"] or ()) if one.spec.name not in WITHHELD]
            groups = [name for name in options["toolsets"] or () if name not in WITHHELD_TOOLSETS]
            options = {**options, "tools": own, "toolsets": groups}
        return self._made(order, options, self._settings.model_copy(update=bounds), more)

    def _made(
        self, order: ChildTask, options: AgentOptions, settings: Settings, more: ToolSource | None
    ) -> ChildAgent:
        shared, limits = self._shared, self._shared.settings.delegation
        approvals = shared.approvals.for_child(
            Callbacks(order.callbacks),
            one_line(order.goal, 200),
            ask=limits.approvals == "ask" and not order.unattended,
            rules=settings.approval if self._other else None,
        )
        if Turns(shared.store.database).info(order.parent_turn).imported:
            approvals = approvals.for_imported()
        heard = listened(options["callbacks"], order.callbacks) if self._other else order.callbacks
        return self._make(
            {
                **options,
                "settings": settings,
                "home": shared.home,
                "session_id": order.session_id,
                "callbacks": heard,
                "clock": shared.clock,
                "budget": order.budget,
                "memory": None,
                "output_type": options["output_type"] if self._other else None,
                "input_guardrails": options["input_guardrails"] if self._other else (),
                "output_guardrails": options["output_guardrails"] if self._other else (),
                "workdir": options["workdir"] if self._other and options["workdir"] else shared.workdir,
                "store": shared.store,
                "inbox": None,
                "inherits": Inherited(order, self._depth + 1, approvals, more),
                "source": "child",
            }
        )

    def keep(self, name: str, text: str) -> Saved:
        return save(self._shared.home / RESULTS, name, text)


def _few(most: int) -> dict[str, int]:
    """Limits of a child with little to do."""
    return {"max_iterations": most, "max_attempts_per_turn": 3 * most}


def composed(options: AgentOptions, make: Callable[[AgentOptions], ChildAgent]) -> Services:
    """The services of an agent; ``make`` makes the agents of its children. Raises ``ConfigError`` for what
    cannot be used."""
    if not re.fullmatch(NAME, options["name"]):
        allowed = "1 to 48 letters, digits, underscores and dashes"
        raise ConfigError("the name of an agent cannot be used", options["name"], allowed)
    home = home_of(options["home"], os.environ)
    config = config_of(home)
    settings = Settings.of(options["settings"], config.settings)
    if options["limits"] is not None:
        settings = settings.model_copy(update={"limits": settings.limits.for_turn(options["limits"])})
    headers = {name: unkept(text) for name, text in settings.request.headers.items()}
    hide_from_children(
        (*variables_of(config), DATABASE_VARIABLE),
        (*headers.values(), *database_secrets(settings.store.database)),
    )
    if options["store"] is not None and not isinstance(options["store"], Store):
        raise ConfigError("store has the wrong type", options["store"], "a Store")
    store = options["store"] or store_for(home, settings.store.durability, settings.store.database)
    clock, inherits = options["clock"] or SystemClock(), options["inherits"]
    learned = LearnedFacts(home, settings.learned.days, clock.now)
    backends, auxiliary, sides, notices = _models(options, config, settings, clock, learned, headers)
    if opened := made_private(home, HOME_FILES):
        notices = (opened, *notices)
    telemetry = wanted_telemetry(options["telemetry"], settings.telemetry)
    shared = _shared(options, settings, home, store, clock)
    more = inherits.more if inherits and options["mcp"] is None else _servers(options, config, shared)
    known: AgentOptions = {**named(options, backends), "auxiliary": sides, "telemetry": telemetry}
    factory = ChildAgentFactory(make, known, shared, more)
    household = Household(
        **parts_of(shared), child_factory=factory, background=_background(known, shared, factory)
    )
    external = _external(options["memory"], clock, settings)
    extensions = extensions_of(options["extensions"], settings.extensions, KeptValues(store))
    notes = Notes.at(home, settings.memory)
    agent_tools, tools = _tools(options, household, notes, external, extensions, more)
    names = [*agent_tools.names, *tools.lasting_names]
    notices += tuple(check_options(backends.runtimes(), settings.request, names))
    recall = MemoryRecall(external, shared.callbacks, shared.signals, partial(save, home / RESULTS))
    checkpoints = Checkpoints(home, shared.workdir, settings.checkpoints)
    takes_notes = agent_tools.handles("memory")
    features = (
        *(() if telemetry is None else (tracing_of(telemetry, store),)),
        *_limits(household, backends, auxiliary),
        *extensions,
        CallbackCalls(household.callbacks),
        *_hooks(options, household, backends),
        *_engine(options, household),
        recall,
        FileCheckpoints(checkpoints),
        *_tasks(household, backends, takes_notes),
    )
    return Services(
        **parts_of(household),
        backends=backends,
        backoff=_backoff(settings),
        notes=notes,
        recall=recall,
        learned=learned,
        checkpoints=checkpoints,
        output=output_type_of(options["output_type"], settings),
        telemetry=telemetry,
        auxiliary=auxiliary,
        budget=options["budget"],
        agent_tools=agent_tools,
        tools=tools,
        extensions=extensions,
        features=features,
        asks=asks_of(features),
        notices=notices,
        debug=bool(options["debug"]),
    )


def _shared(
    options: AgentOptions,
    settings: Settings,
    home: Path,
    store: Store,
    clock: Clock,
) -> Shared:
    told, workdir, inherits = (
        Callbacks(options["callbacks"]),
        workdir_of(options["workdir"]),
        options["inherits"],
    )
    grants = Grants(lambda: store.database, store.now)
    return Shared(
        settings=settings,
        clock=clock,
        callbacks=told,
        signals=options["inbox"] or TurnInbox(),
        approvals=inherits.approvals
        if inherits
        else Approvals(
            told, clock, settings.approval, settings.poll.control, grants=grants, workdir=str(workdir)
        ),
        home=home,
        workdir=workdir,
        store=store,
    )


# The features that are extensions, in the order of their layers


def _limits(household: Household, backends: Backends, auxiliary: Sequence[Backend]) -> tuple[Extension, ...]:
    if not household.settings.limits.each:
        return ()
    from fsm_agent.features.limits import Limits

    return (
        Limits(backends, auxiliary, household.store, household.clock, household.settings, household.signals),
    )


def _hooks(options: AgentOptions, household: Household, backends: Backends) -> tuple[Extension, ...]:
    given = options["hooks"], options["input_guardrails"], options["output_guardrails"]
    if not any(map(len, given)):
        return ()
    from fsm_agent.features.hooks import HookCalls

    return (
        HookCalls(
            *given,
            clock=household.clock,
            settings=household.settings,
            tell=lambda text: household.callbacks.publish(StatusText(text)),
            model=backends.runtime,
        ),
    )


def _engine(options: AgentOptions, household: Household) -> tuple[Extension, ...]:
    if options["context_engine"] is None:
        return ()
    from fsm_agent.features.context_engine import EngineCalls

    return (EngineCalls(options["context_engine"], household.clock, household.settings, household.signals),)


def _tasks(household: Household, backends: Backends, takes_notes: bool) -> tuple[Extension, ...]:
    if household.background is None:
        return ()
    begins = household.child_factory.allowed
    return (BackgroundTasks(household.background, begins, takes_notes, lambda: backends.runtime().window),)


def _models(
    options: AgentOptions,
    config: Config,
    settings: Settings,
    clock: Clock,
    learned: LearnedFacts,
    headers: Mapping[str, str],
) -> tuple[Backends, tuple[Backend, ...], Mapping[str, Any], tuple[str, ...]]:
    """(the primary with its fallbacks, the models for summaries in the order in which they are tried, usable
    entries for side work by task, entries that cannot be used, in words)."""
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
    summarisers = tuple(backend for _, backend in usable["summary"])
    return Backends(primary, chain, settings, clock, learned), summarisers, smaller, tuple(notices)


def named(options: AgentOptions, backends: Backends) -> AgentOptions:
    """The options with the model that was found: children do not look for one again."""
    if options["model"] is not None:
        return options
    chosen = backends.current.choice
    return {**options, "model": f"{chosen.profile.name}:{chosen.model}", "base_url": chosen.base_url}


def _tools(
    options: AgentOptions,
    household: Household,
    notes: Notes,
    external: ExternalMemory | None,
    extensions: Sequence[Extension],
    more: ToolSource | None,
) -> tuple[AgentTools, ToolRunner]:
    """(those that are a part of the agent, all others). A user's tool takes the place of a built-in one of
    its name."""
    named_groups = options["toolsets"] or ()
    known = sorted((*ALL_TOOLSETS, *AGENT_TOOLSETS, FILE_SERVERS, DEFAULT))
    if unknown := [name for name in named_groups if name not in known]:
        raise ConfigError("unknown toolset", unknown[0], near(unknown[0], known))
    own = [as_tool(one) for one in (*(options["tools"] or ()), *(external.tools() if external else ()))]
    own += tools_in(extensions, {one.spec.name for one in own})
    names = {one.spec.name for one in own}
    groups = [name for name in named_groups if name in ALL_TOOLSETS]
    mine = [name for name in named_groups if name not in BEGIN_TURNS or household.child_factory.allowed]
    home, settings = household.home, household.settings
    offered = [
        *tools_of(groups, household.workdir, home / RESULTS, home, notes, settings.web, settings.sandbox),
        *agent_tools(mine, household),
        *(bridge_tools(more) if more is not None and settings.tool.bridge_above is not None else ()),
    ]
    built_in = [one for one in offered if one.spec.name not in names]
    others = [one.held_by(household) for one in own if isinstance(one, AgentTool)]
    others += transfer_tools(options["handoffs"], settings.delegation.max_handoffs)
    agent_level = [*(one for one in built_in if one.spec.name in AGENT_LEVEL), *others]
    outer = [*(one for one in built_in if one.spec.name not in AGENT_LEVEL), *own]
    given: dict[str, Any] = {
        "clock": household.clock,
        "interrupt_grace": settings.tool.interrupt_grace,
        "poll": settings.poll.control,
    }
    told = household.callbacks
    return AgentTools(agent_level, **given), ToolRunner(
        [one for one in outer if not isinstance(one, AgentTool)],
        **given,
        on_risk=lambda name, why: told.publish(ToolProgress("risk", name, "; ".join(why))),
        more=more,
        reserved=[tool.spec.name for tool in agent_level],
    )


def _servers(options: AgentOptions, config: Config, shared: Shared) -> ToolSource | None:
    """The MCP servers of an agent that has any: its own, else those of the file if it asks for them."""
    if options["mcp"] is None and not (config.mcp and FILE_SERVERS in (options["toolsets"] or ())):
        return None
    from fsm_agent.toolsets.mcp.servers import McpServers

    return McpServers.of(
        options["mcp"],
        home=shared.home,
        workdir=shared.workdir,
        clock=shared.clock,
        settings=shared.settings,
    )


def _background(options: AgentOptions, shared: Shared, children: ChildAgentFactory) -> Background | None:
    """Tasks in the background are an affair of the agent that a person talks to, not of its children."""
    if options["inherits"] is not None:
        return None
    settings = shared.settings
    delegates = settings.delegation.background and "delegate" in (options["toolsets"] or ())
    background = Background(
        children,
        shared.store,
        shared.callbacks,
        shared.clock,
        settings,
        able=delegates and children.allowed,
        quiet=_quiet(options, settings) if children.allowed else (),
    )
    shared.signals.listeners.append(background.interrupt)
    return background


def _quiet(options: AgentOptions, settings: Settings) -> tuple[str, ...]:
    """Tasks in the background whose report nobody reads, that this agent begins."""
    review = (REVIEW,) if settings.memory.review == "child" else ()
    return (*review, TITLE) if by_task(options["auxiliary"])[TITLE] else review


def _external(memory: MemoryProvider | None, clock: Clock, settings: Settings) -> ExternalMemory | None:
    if memory is None:
        return None
    checked(memory)
    return ExternalMemory(memory, clock, settings)


def _backoff(settings: Settings) -> Backoff:
    waits = settings.backoff
    return Backoff(
        exception=(waits.exception.base, waits.exception.cap),
        invalid=(waits.invalid.base, waits.invalid.cap),
        jitter=waits.jitter,
        retry_after_cap=settings.retry_after_cap,
        rng=random.Random(waits.seed),  # noqa: S311 - jitter, not a secret
    )
