"""What features are made from: the options of an agent, and what its turns share."""

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
from fsm_agent.settings.model import Settings
from fsm_agent.support.files import private_file, private_folder
from fsm_agent.telemetry import Telemetry
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.toolsets.agent import AgentTools, Background
from fsm_agent.toolsets.agent.child import ChildAgent

if TYPE_CHECKING:
    from fsm_agent.features.children import ChildAgentFactory
    from fsm_agent.features.memory import MemoryRecall

RESULTS = "results"
"""Folder of the home directory where long tool results are saved."""


class Ground(Protocol):
    """``make`` makes the agent of a child. ``more``: tools that come and go. ``auxiliary``: models for
    summaries. ``extensions``: those that the user gave."""

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
        """The checkpoints of files."""


def save(folder: Path, name: str, text: str) -> Saved:
    """Write a file; a failure is in the result, never raised."""
    path = folder / re.sub(r"[^\w.-]", "_", name)[-120:]
    try:
        private_folder(folder)
        with open(path, "w", encoding="utf-8", errors="replace", opener=private_file) as file:
            file.write(text)
    except OSError as error:
        return Saved(error=f"{type(error).__name__}: {error}")
    return Saved(str(path))
