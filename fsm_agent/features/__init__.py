"""Features of an agent, each an ``Extension`` in its own module, and examples for your own extensions.

The keywords of ``Agent`` build the list of features in a fixed order (``built_in.py``): telemetry, limits,
your extensions, callbacks, hooks, context engine, memory, checkpoints, background tasks. Their layers have
this order in the pipeline, so one place decides which of two layers sees an answer first. An agent loads
telemetry, limits, hooks, a context engine, memory, and the type of an answer only if it has them.

Each feature is made from a ``Ground``: the options of the agent, and what all its turns share.
``other_agents.py`` makes agents for children and handoffs.

In each turn an extension has a ``Part``: the requests that it performs, its layers, the ``Checks`` that
states make because of it, its share of the start of the turn (``Opened``), its subscriptions, and its actions
at the beginning and the end. The table of handlers is built from the parts; the core in
``composition/effect_handler.py`` keeps model, tools, approvals, clock, and store. A handler is a bound
method, so it adds no frame to a request. The type of an answer is a part without an extension, because each
turn may have another type.

A feature is above what it uses. The class for a user (``hooks.py``, ``memory.py``,
``sessions/checkpoints.py``) stays in its room, which the command line and ``doctor`` know without an agent;
the extension is here.

Some features are not extensions: approvals, because admitting and running a call are one decision of the
core; handoffs and children, which are ways to make a turn; skills and MCP servers, which are sources of
tools.

States yield requests of extensions at named points (``AskExtension``), as data: a request type of an
extension would need a codec in the journal, and all code that lists every request would have to know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fsm_agent.approvals.service import Approvals
from fsm_agent.conversation.effects import Saved
from fsm_agent.extension import Extension
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.options import AgentOptions
from fsm_agent.providers.failover import Backend, Backends
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store import Store
from fsm_agent.settings import Settings
from fsm_agent.support.files import private_file, private_folder
from fsm_agent.telemetry import Telemetry
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.toolsets.agent import AgentTools, Background
from fsm_agent.toolsets.agent.child import ChildAgent

if TYPE_CHECKING:
    from fsm_agent.features.context import MemoryRecall
    from fsm_agent.features.other_agents import ChildAgentFactory

RESULTS = "results"
"""Folder in the home directory for long tool results."""


class Ground(Protocol):
    """What a feature is built from. ``make`` makes a child's agent. ``more``: tools that come and go.
    ``auxiliary``: models for summaries. ``extensions``: the user's."""

    options: AgentOptions
    make: Callable[[AgentOptions], ChildAgent]
    settings: Settings
    clock: Clock
    callbacks: Callbacks
    signals: TurnInbox
    approvals: Approvals
    home: Path
    workdir: Path
    store: Store
    backends: Backends
    auxiliary: tuple[Backend, ...]
    telemetry: Telemetry | None
    more: ToolSource | None
    child_factory: ChildAgentFactory
    background: Background | None
    extensions: tuple[Extension, ...]
    agent_tools: AgentTools
    recall: MemoryRecall | None

    @property
    def files(self) -> Extension:
        """The file checkpoints."""


def save(folder: Path, name: str, text: str) -> Saved:
    """Write a file; report a failure in the result, never as an exception."""
    path = folder / re.sub(r"[^\w.-]", "_", name)[-120:]
    try:
        private_folder(folder)
        with open(path, "w", encoding="utf-8", errors="replace", opener=private_file) as file:
            file.write(text)
    except OSError as error:
        return Saved(error=f"{type(error).__name__}: {error}")
    return Saved(str(path))
