"""Agents for child turns: like their parent, or like another agent, without what a child may not do; and
the children that work in the background."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fsm_agent.conversation.effects import BeginReview, Done, NameSession, Saved
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import RESULTS, Ground, save
from fsm_agent.options import AgentOptions, Inherited, by_task, task_options
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks, child_callbacks
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings.model import Settings
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, ToolFailure, as_tool
from fsm_agent.tools.decorator import ToolSource
from fsm_agent.toolsets.agent import Background, ChildTask
from fsm_agent.toolsets.agent.background import REVIEW, TITLE, TOOLSETS, review_of, title_of
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


# ----------------------------------------------------------------------------------------------------
# The feature ``background``: reports of tasks that run beside the conversation, its review, and its
# title.


class BackgroundTasks(Extension):
    """Of one agent."""

    name = "background"

    def __init__(self, tasks: Background, ground: Ground) -> None:
        self._tasks, self._ground = tasks, ground

    def in_turn(self, here: Here) -> Part:
        return _Tasks(self._tasks, self._ground, here)


class _Tasks(Part):
    def __init__(self, tasks: Background, ground: Ground, here: Here) -> None:
        super().__init__({BeginReview: self._review, NameSession: self._title})
        self._tasks, self._ground, self._here = tasks, ground, here

    async def opening(self) -> Mapping[str, Any]:
        session, every = self._here.session, self._here.settings.memory.review_every
        due = every > 0 and (session.turns + 1) % every == 0 and self._ground.agent_tools.handles("memory")
        unnamed = session.turns == 0 and session.kind == "root" and TITLE in self._tasks.quiet
        return {"review_due": due, "unnamed": unnamed, "news": await self._news()}

    def reopened(self) -> None:
        self._tasks.resumed()

    async def news(self) -> tuple[str, ...]:
        return await self._news() if self._tasks.fresh else ()

    async def _news(self) -> tuple[str, ...]:
        return await self._tasks.news(
            self._here.session, self._here.fence, self._ground.backends.runtime().window
        )

    async def _review(self, request: BeginReview) -> Done:
        """A review that cannot be begun is reported, and hurts nothing. Children are not reviewed."""
        return await self._begin(review_of, "the conversation is not reviewed")

    async def _title(self, request: NameSession) -> Done:
        """A session without another title keeps its first words."""
        return await self._begin(title_of, "no title is looked for")

    async def _begin(
        self, task_of: Callable[[Session, str, IterationBudget], ChildTask], otherwise: str
    ) -> Done:
        here = self._here
        if here.budget is None or not self._ground.child_factory.allowed:
            return Done()
        budget = here.budget.child(here.settings.delegation.budget, here.settings.memory.review_iterations)
        try:
            await self._tasks.begin([task_of(here.session, here.fence.turn_id, budget)], here.fence)
        except ToolFailure as error:
            here.tell(f"{otherwise}: {error}")
        return Done()


def background_of(ground: Ground) -> Background | None:
    """Tasks in the background are an affair of the agent that a person talks to, not of its children."""
    options = ground.options
    if options["inherits"] is not None:
        return None
    settings, children = ground.settings, ground.child_factory
    delegates = settings.delegation.background and "delegate" in (options["toolsets"] or ())
    background = Background(
        children,
        ground.store,
        ground.callbacks,
        ground.clock,
        settings,
        able=delegates and children.allowed,
        quiet=_quiet(options, settings) if children.allowed else (),
    )
    ground.signals.listeners.append(background.interrupt)
    return background


def _quiet(options: AgentOptions, settings: Settings) -> tuple[str, ...]:
    """Tasks in the background without a report, that this agent begins."""
    review = (REVIEW,) if settings.memory.review == "child" else ()
    return (*review, TITLE) if by_task(options["auxiliary"])[TITLE] else review
