"""Everything that a turn's requests are performed with, and the files that they leave."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from fsm_agent.approvals.service import Approvals
from fsm_agent.composition.options import AgentOptions
from fsm_agent.conversation.effects import Saved, Tell
from fsm_agent.extension import Extension
from fsm_agent.features.memory import MemoryRecall
from fsm_agent.features.points import Asks
from fsm_agent.memory.files import Notes
from fsm_agent.output import OutputType
from fsm_agent.providers.catalogue import LearnedFacts
from fsm_agent.providers.failover import Backend, Backends
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock
from fsm_agent.runtime.turn_inbox import TurnInbox
from fsm_agent.sessions.checkpoints import FOLDER as CHECKPOINTS
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.support.clock import Backoff
from fsm_agent.support.files import private_file, private_folder
from fsm_agent.telemetry import Telemetry
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.toolsets.agent import AgentTools, Background
from fsm_agent.toolsets.agent.child import ChildFactory
from fsm_agent.toolsets.programs import Programs
from fsm_agent.toolsets.sandbox.aside import ASIDE

RESULTS = "results"
"""Folder of the home directory where long tool results are saved."""
DUMPS = "dumps"
"""Folder of the home directory where requests that failed are saved."""
HOME_FILES = (
    "sessions.db*", "owners", "learned.json*", "key-rests.json*", "config.toml", RESULTS, DUMPS, "logs",
    "*MEMORY.md*", "*USER.md*", "SOUL.md", "skills", "chat_history", "trajectories.jsonl", CHECKPOINTS, ASIDE,
)  # fmt: skip
"""Patterns of all that may be in the home directory."""


def save(folder: Path, name: str, text: str) -> Saved:
    """Write a file; a failure is told, never raised."""
    path = folder / re.sub(r"[^\w.-]", "_", name)[-120:]
    try:
        private_folder(folder)
        with open(path, "w", encoding="utf-8", errors="replace", opener=private_file) as file:
            file.write(text)
    except OSError as error:
        return Saved(error=f"{type(error).__name__}: {error}")
    return Saved(str(path))


class ChildFamilies(ChildFactory, Protocol):
    """Where the children of an agent come from, like it or of another one."""

    def of(self, other: AgentOptions, settings: Settings, most: int) -> ChildFactory:
        """Return where the children come from that are turns of another agent."""
        ...


@dataclass(slots=True, kw_only=True)
class Shared:
    """What an agent has in common with its children."""

    settings: Settings
    clock: Clock
    callbacks: Callbacks
    signals: TurnInbox
    approvals: Approvals
    home: Path
    workdir: Path
    store: Store


@dataclass(slots=True, kw_only=True)
class Household(Shared):
    """What tools that begin child turns are made of. ``child_factory``: where the agents of children come
    from."""

    child_factory: ChildFamilies
    background: Background | None


@dataclass(slots=True, kw_only=True)
class Services(Household):
    """What requests are performed with. ``features``: all extensions of the agent, the outermost first, its
    own among them; ``extensions``: those that were given; ``asks``: what they ask for. ``silences``: requests
    in a row that went silent when the last turn ended. ``told``: what is reported only once. ``debug``: bugs
    are raised. ``telemetry``: where turns are reported, also those of agents that take over."""

    backends: Backends
    backoff: Backoff
    notes: Notes
    recall: MemoryRecall
    learned: LearnedFacts
    checkpoints: Checkpoints
    output: OutputType[Any] | None
    telemetry: Telemetry | None
    auxiliary: tuple[Backend, ...]
    budget: IterationBudget | None
    agent_tools: AgentTools
    tools: ToolRunner
    extensions: tuple[Extension, ...]
    features: tuple[Extension, ...]
    asks: Asks
    notices: tuple[str, ...] = ()
    debug: bool = False
    silences: int = 0
    told: set[Tell] = field(default_factory=set)
    programs: Programs = field(default_factory=Programs)


def parts_of(smaller: Shared) -> dict[str, Any]:
    """The fields of what a larger one is made of."""
    return {one.name: getattr(smaller, one.name) for one in fields(smaller)}
