"""The feature ``background``: reports of tasks that run beside the conversation, its review, and its
title."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.conversation.effects import BeginReview, Done, NameSession
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features.ground import Ground
from fsm_agent.options import AgentOptions, by_task
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.sessions.session import Session
from fsm_agent.settings.model import Settings
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.agent import Background, ChildTask
from fsm_agent.toolsets.agent.background import REVIEW, TITLE, review_of, title_of


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
