"""Agents for child turns: like their parent, without what a child may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.approvals.service import Approvals
from fsm_agent.composition.services import RESULTS, Services, save
from fsm_agent.conversation.effects import Saved
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings.model import DelegationSettings
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.source import ToolSource
from fsm_agent.toolsets.agent import ChildTask
from fsm_agent.toolsets.agent.child import ChildAgent

WITHHELD_TOOLSETS = frozenset({"memory", "clarify", "code"})
WITHHELD = frozenset({"memory", "clarify", "execute_code", "send_message", "cronjob", "schedule"})
"""Tools that a child never has, whoever made them: it does not write notes, ask or message people, schedule
work, or run programs that call tools (AGT-05)."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a child has of its parent. ``more``: its tools that come and go, already running. ``session``: the
    child's own."""

    order: ChildTask
    depth: int
    approvals: Approvals
    more: ToolSource | None
    session: Session


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
    """``make`` makes an agent, ``given`` is what the parent was made with, ``world`` what it lives in."""

    def __init__(
        self,
        make: Callable[..., ChildAgent],
        given: Mapping[str, Any],
        world: Callable[[], Services],
        more: ToolSource | None,
        depth: int,
    ) -> None:
        self._make, self._given, self._world = make, given, world
        self._more, self._depth = None if more is None else Borrowed(more), depth

    @property
    def allowed(self) -> bool:
        """May an agent of this depth have children at all?"""
        limits: DelegationSettings = self._given["settings"].delegation
        return self._depth < limits.max_depth

    def child(self, order: ChildTask) -> ChildAgent:
        world = self._world()
        limits, callbacks = world.settings.delegation, Callbacks(order.callbacks)
        session = world.store.session(order.session_id)
        session.kind, session.source, session.parent = "child", "child", order.parent_session
        goal = one_line(order.goal, 200)
        approvals = world.approvals.for_child(
            callbacks, goal, ask=limits.approvals == "ask" and not order.unattended
        )
        if Turns(world.store.database).info(order.parent_turn).imported:
            approvals = approvals.for_imported()
        return self._make(
            **{
                **self._given,
                "tools": [one for one in map(as_tool, self._given["tools"]) if one.spec.name not in WITHHELD],
                "toolsets": [name for name in self._given["toolsets"] if name not in WITHHELD_TOOLSETS],
                "settings": world.settings.model_copy(update={"max_iterations": limits.max_iterations}),
                "session_id": order.session_id,
                "callbacks": order.callbacks,
                "budget": order.budget,
                "store": world.store,
                "inherits": Inherited(order, self._depth + 1, approvals, self._more, session),
            }
        )

    def keep(self, name: str, text: str) -> Saved:
        return save(self._world().home / RESULTS, name, text)
