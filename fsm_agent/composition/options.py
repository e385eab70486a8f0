"""What an agent is made with, as one value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.approvals.service import Approvals
from fsm_agent.memory.provider import MemoryProvider
from fsm_agent.providers.credentials import ApiKey
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.tools import Tool
from fsm_agent.tools.source import ToolSource
from fsm_agent.toolsets.agent import ChildTask

DEFAULT_TOOLSETS = ("core", "memory", "skills", "todo", "sessions")
"""What works everywhere. ``delegate`` costs the requests of other turns, ``clarify`` needs a person: those
are asked for."""
Specs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""One entry like those of ``fallbacks``, or a list of them."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a child has of its parent. ``more``: its tools that come and go, already running. ``session``: the
    child's own."""

    order: ChildTask
    depth: int
    approvals: Approvals
    more: ToolSource | None
    session: Session


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The arguments of ``Agent``, which says what they mean, by their names and with their defaults. The
    services of an agent are composed from it; the options of a child are made from it with
    ``dataclasses.replace``."""

    model: str | ModelPort | None = None
    base_url: str | None = None
    api_mode: str | None = None
    api_key: ApiKey = None
    context_window: int | None = None
    tools: Sequence[Tool | Callable[..., Any]] = ()
    toolsets: Sequence[str] = DEFAULT_TOOLSETS
    system_prompt: str | None = None
    fallbacks: Sequence[Mapping[str, Any]] | None = None
    settings: Settings | Mapping[str, Any] | None = None
    home: str | os.PathLike[str] | None = None
    session_id: str | None = None
    callbacks: object | Mapping[str, Callable[..., Any]] | None = None
    clock: Clock | None = None
    budget: IterationBudget | None = None
    auxiliary: Specs = None
    memory: MemoryProvider | None = None
    mcp: Mapping[str, Any] | None = None
    workdir: str | os.PathLike[str] | None = None
    store: Store | None = None
    inherits: Inherited | None = None
    source: str = "python"
