"""Agents for child turns: like their parent, or like another agent, without what a child may not do."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Sequence
from typing import Any

from fsm_agent.conversation.effects import Saved
from fsm_agent.features.ground import RESULTS, Ground, save
from fsm_agent.options import AgentOptions, Inherited, by_task, task_options
from fsm_agent.runtime.callbacks import Callbacks, child_callbacks
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings.model import Settings
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, as_tool
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.toolsets.agent import ChildTask
from fsm_agent.toolsets.agent.background import REVIEW, TOOLSETS
from fsm_agent.toolsets.agent.child import ChildAgent, ChildFactory

WITHHELD_TOOLSETS = frozenset({"memory", "learn", "clarify", "code"})
WITHHELD = frozenset(
    {"memory", "skill_manage", "clarify", "execute_code", "send_message", "cronjob", "schedule"}
)
"""Tools that a child never has, also those of its user: it does not write notes or skills, ask or message
people, schedule work, or run programs that call tools (AGT-05). A review is there for notes and skills."""


SIDE_ITERATIONS = 3
"""Of a child that only answers: one, and two for a reply that is cut."""


class Borrowed:
    """Tools of a source that the parent keeps running."""

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
    """Makes the agents of children from the options of their parent, and of what it is made."""

    def __init__(self, parent: Ground) -> None:
        self._parent, options, self._settings = parent, parent.options, parent.settings
        self._options: AgentOptions = {**options, "mcp": None, "handoffs": ()}  # a child answers its parent
        self._more = None if parent.more is None else Borrowed(parent.more)
        self._depth = 0 if options["inherits"] is None else options["inherits"].depth
        self._most, self._other = parent.settings.delegation.max_iterations, False

    @property
    def allowed(self) -> bool:
        """May an agent of this depth have children at all?"""
        return self._depth < self._parent.settings.delegation.max_depth

    def has_models(self, task: str) -> bool:
        """Say whether there are models for this side task, besides the one in use."""
        return bool(by_task(self._options["auxiliary"])[task])

    def of(self, other: AgentOptions, settings: Settings, most: int) -> ChildFactory:
        """Return where the children come from that are turns of another agent, with its own ``settings``, of
        at most ``most`` iterations. The limits on the tree stay those of its first agent."""
        family = copy.copy(self)
        hooks = (*self._options["hooks"], *other["hooks"])
        telemetry = self._parent.telemetry if other["telemetry"] is None else other["telemetry"]
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
            options, more = task_options(options, order.side_task), None
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
        parent, limits = self._parent, self._parent.settings.delegation
        approvals = parent.approvals.for_child(
            Callbacks(order.callbacks),
            one_line(order.goal, 200),
            ask=limits.approvals == "ask" and not order.unattended,
            rules=settings.approval if self._other else None,
        )
        if Turns(parent.store.database).info(order.parent_turn).imported:
            approvals = approvals.for_imported()
        heard = child_callbacks(options["callbacks"], order.callbacks) if self._other else order.callbacks
        return parent.make(
            {
                **options,
                "settings": settings,
                "home": parent.home,
                "session_id": order.session_id,
                "callbacks": heard,
                "clock": parent.clock,
                "budget": order.budget,
                "memory": None,
                "output_type": options["output_type"] if self._other else None,
                "input_guardrails": options["input_guardrails"] if self._other else (),
                "output_guardrails": options["output_guardrails"] if self._other else (),
                "workdir": options["workdir"] if self._other and options["workdir"] else parent.workdir,
                "store": parent.store,
                "inbox": None,
                "inherits": Inherited(order, self._depth + 1, approvals, more),
                "source": "child",
            }
        )

    def keep(self, name: str, text: str) -> Saved:
        return save(self._parent.home / RESULTS, name, text)


def _few(most: int) -> dict[str, int]:
    """Limits of a child with little to do."""
    return {"max_iterations": most, "max_attempts_per_turn": 3 * most}
