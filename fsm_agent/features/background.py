"""The feature ``background``: reports of tasks that run beside the conversation, its review, and its
title."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fsm_agent.conversation.effects import BeginReview, Done, NameSession
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.sessions.session import Session
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.agent import Background, ChildTask
from fsm_agent.toolsets.agent.review import TITLE, review_of, title_of


@dataclass(eq=False)
class BackgroundTasks(Extension):
    """Of one agent. ``begins``: it may have children. ``takes_notes``: it has notes that a review could
    change. ``window``: returns the tokens that its model reads."""

    name: ClassVar[str] = "background"

    tasks: Background
    begins: bool
    takes_notes: bool
    window: Callable[[], int | None]

    def in_turn(self, here: Here) -> Part:
        return _Tasks(self, here)


class _Tasks(Part):
    def __init__(self, agent: BackgroundTasks, here: Here) -> None:
        super().__init__({BeginReview: self._review, NameSession: self._title})
        self._agent, self._here, self._tasks = agent, here, agent.tasks

    async def opening(self) -> Mapping[str, Any]:
        session, every = self._here.session, self._here.settings.memory.review_every
        due = every > 0 and (session.turns + 1) % every == 0 and self._agent.takes_notes
        unnamed = session.turns == 0 and session.kind == "root" and TITLE in self._tasks.quiet
        return {"review_due": due, "unnamed": unnamed, "news": await self._news()}

    def reopened(self) -> None:
        self._tasks.resumed()

    async def news(self) -> tuple[str, ...]:
        return await self._news() if self._tasks.fresh else ()

    async def _news(self) -> tuple[str, ...]:
        return await self._tasks.news(self._here.session, self._here.fence, self._agent.window())

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
        if here.budget is None or not self._agent.begins:
            return Done()
        budget = here.budget.child(here.settings.delegation.budget, here.settings.memory.review_iterations)
        try:
            await self._tasks.begin([task_of(here.session, here.fence.turn_id, budget)], here.fence)
        except ToolFailure as error:
            here.tell(f"{otherwise}: {error}")
        return Done()
