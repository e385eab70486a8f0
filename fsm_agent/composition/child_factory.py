"""Agents for child turns: like their parent, without what a child may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fsm_agent.composition.options import AgentOptions, Inherited
from fsm_agent.composition.services import RESULTS, Services, save
from fsm_agent.conversation.effects import Saved
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.source import ToolSource
from fsm_agent.toolsets.agent import ChildTask
from fsm_agent.toolsets.agent.child import ChildAgent
from fsm_agent.toolsets.agent.review import REVIEW, TOOLSETS

WITHHELD_TOOLSETS = frozenset({"memory", "learn", "clarify", "code"})
WITHHELD = frozenset(
    {"memory", "skill_manage", "clarify", "execute_code", "send_message", "cronjob", "schedule"}
)
"""Tools that a child never has, whoever made them: it does not write notes or skills, ask or message people,
schedule work, or run programs that call tools (AGT-05). A review is there for notes and skills."""


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
    """Makes the agents of children with ``make``: from the options of their parent, and in its services."""

    def __init__(
        self,
        make: Callable[[AgentOptions], ChildAgent],
        options: AgentOptions,
        services: Services,
        more: ToolSource | None,
    ) -> None:
        self._make, self._options, self._services = make, options, services
        self._more = None if more is None else Borrowed(more)
        self._depth = 0 if options.inherits is None else options.inherits.depth

    @property
    def allowed(self) -> bool:
        """May an agent of this depth have children at all?"""
        return self._depth < self._services.settings.delegation.max_depth

    def child(self, order: ChildTask) -> ChildAgent:
        services, options = self._services, self._options
        limits, callbacks = services.settings.delegation, Callbacks(order.callbacks)
        session = services.store.session(order.session_id)
        session.kind, session.source, session.parent = "child", "child", order.parent_session
        own = [] if order.task_id == REVIEW else [as_tool(one) for one in options.tools]
        goal, review = one_line(order.goal, 200), order.task_id == REVIEW
        groups = [
            name
            for name in options.toolsets
            if (name in TOOLSETS if review else name not in WITHHELD_TOOLSETS)
        ]
        most = services.settings.memory.review_iterations if review else limits.max_iterations
        bounds = {"max_iterations": most} | ({"max_attempts_per_turn": 3 * most} if review else {})
        approvals = services.approvals.for_child(
            callbacks, goal, ask=limits.approvals == "ask" and not order.unattended
        )
        if Turns(services.store.database).info(order.parent_turn).imported:
            approvals = approvals.for_imported()
        return self._make(
            replace(
                options,
                tools=[one for one in own if one.spec.name not in WITHHELD],
                toolsets=groups,
                settings=services.settings.model_copy(update=bounds),
                home=services.home,
                session_id=order.session_id,
                callbacks=order.callbacks,
                clock=services.clock,
                budget=order.budget,
                memory=None,
                mcp=None,
                workdir=services.workdir,
                store=services.store,
                inherits=Inherited(
                    order, self._depth + 1, approvals, None if review else self._more, session
                ),
                source="child",
            )
        )

    def keep(self, name: str, text: str) -> Saved:
        return save(self._services.home / RESULTS, name, text)
