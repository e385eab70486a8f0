"""Child turns: tasks that the model delegates to separate agents, which do not see its conversation
(AGT-05, AGT-06).

The key of the call names the children, and each is a turn of its own in the journal. A delegation
interrupted by the end of its process is therefore repeated safely: children that ended are looked up, those
that began are resumed under the rules of every turn, and only the rest start from the beginning."""

# A delegation is idempotent because its key names its children. The child sessions are named after the call.
# A resumed parent looks up finished children, resumes started ones, and starts the rest.

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.agent.background import Background
from fsm_agent.toolsets.agent.child import (
    Care,
    Child,
    ChildEnded,
    ChildFactory,
    ChildFamily,
    ChildTask,
    fit_answer,
    room,
)
from fsm_agent.toolsets.tool_context import here

NAME = "delegate_task"
LONGEST = 86_400.0
"""Seconds; what ends a child sooner is its own budget, and the limits on doing nothing."""
MAX_TASK = 100_000
"""Characters of one task with its context."""
LATER = (
    "They work in the background. Each report comes by itself, with the results of a later tool call or in"
    " front of the next message. Do not wait for them, do not ask for them, and do not do their work"
    " yourself."
)


class Task(BaseModel):
    """One piece of work."""

    goal: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_TASK,
            description="What is to be done, and what the answer must hold.",
        ),
    ]
    context: Annotated[
        str,
        Field(max_length=MAX_TASK, description="All that one must know for it: files, facts, constraints."),
    ] = ""


class Delegation:
    """The children of one agent. ``most``: iterations that one may take, instead of the setting."""

    def __init__(
        self,
        child_factory: ChildFactory,
        store: Store,
        callbacks: Callbacks,
        clock: Clock,
        settings: Settings,
        most: int | None = None,
    ) -> None:
        self._child_factory, self._store, self._callbacks = child_factory, store, callbacks
        self._clock, self._most = clock, most
        self._limits, self._care = settings.delegation, Care(callbacks, clock, settings)
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def delegate_task(
        self,
        goal: Annotated[str, Field(max_length=MAX_TASK)] = "",
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        tasks: list[Task] | None = None,
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """Give work to one or more assistants that do it with your tools and report back. They know nothing
        of this conversation and cannot ask you, so tell each one everything. Only their final answers come
        back.

        Good for work that would fill this conversation with detail, and for several tasks that do not depend
        on each other: those of one call run at the same time. Check what they report before you rely on it.

        Args:
            goal: What one assistant is to do; leave it out when tasks are given.
            context: All that it must know for it.
            tasks: Several tasks at once, instead of goal and context.
        """
        orders = self.orders(goal, context, tasks, idempotency_key)
        ended = await self.raised(orders, idempotency_key)
        return {
            "results": [
                self._report(order, end, len(orders)) for order, end in zip(orders, ended, strict=True)
            ]
        }

    async def end_of(self, key: str, goal: str, context: str = "", **more: Any) -> ChildEnded:
        """Run the one child of a call to its end; ``more`` of its ``ChildTask``."""
        [end] = await self.raised([self.order(key, goal, context, **more)], key)
        return end

    async def raised(self, orders: Sequence[ChildTask], key: str) -> list[ChildEnded]:
        """Run the children of one call to their ends."""
        children = [
            Child(order, self._child_factory, self._store, self._callbacks, self._clock) for order in orders
        ]
        async with self._alone(key):
            return await ChildFamily(children, self._care, here().interrupted).raised()

    def orders(self, goal: str, context: str, tasks: Sequence[Task] | None, key: str) -> list[ChildTask]:
        """What a call asks for, one order for each child. Raises ``ToolFailure`` for nothing, or too much."""
        asked = list(tasks or ()) or ([Task(goal=goal, context=context)] if goal.strip() else [])
        if not asked:
            raise ToolFailure("There is nothing to do: give a goal, or tasks.")
        if len(asked) > self._limits.max_children:
            raise ToolFailure(
                f"{len(asked)} tasks; at most {self._limits.max_children} at a time. Nothing was started."
            )
        return [self.order(key, task.goal, task.context, number) for number, task in enumerate(asked)]

    @contextlib.asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """The same call, made again, waits until the children of the first time have stopped."""
        before, mine = self._running.get(key), asyncio.current_task()
        assert mine is not None, "a tool runs in a task"
        self._running[key] = mine
        try:
            if before is not None and before.get_loop() is mine.get_loop():
                await asyncio.wait({before})
            yield
        finally:
            if self._running.get(key) is mine:
                del self._running[key]

    def order(self, key: str, goal: str, context: str = "", number: int = 0, **more: Any) -> ChildTask:
        """Return the task of child ``number`` of the call that runs here; the same when it is made again."""
        scene, most = here(), self._most or self._limits.max_iterations
        budget = scene.budget.child(self._limits.budget, most) if scene.budget else IterationBudget(most)
        return ChildTask(
            session_id=f"c-{scene.turn_id}.{key[:8] or scene.call_id[-8:]}.{number}",
            parent_session=scene.session.id,
            parent_turn=scene.turn_id,
            task_id=f"{scene.call_id}.{number}",
            goal=goal,
            context=context,
            budget=budget,
            deps=scene.deps,
            **more,
        )

    def fitted(self, order: ChildTask, text: str, among: int = 1) -> str:
        """An answer as its parent sees it, one of ``among``."""
        scene = here()
        limit = room(self._limits, scene.session.meter.tokens, scene.window, among)
        return fit_answer(text, limit, order.session_id, self._child_factory)

    def _report(self, order: ChildTask, end: ChildEnded, among: int) -> dict[str, Any]:
        """The report on one child to the parent's model: how it ended, its answer, and its usage."""
        text = self.fitted(order, end.text, among)
        told = {"task": order.goal[:200], "status": end.status, "summary": text, "turn": end.turn_id}
        return (
            told
            | {"iterations": end.iterations, "tokens": end.tokens}
            | ({"error": end.error} if end.error else {})
        )


def delegating(made: Tool, description: str = "") -> Tool:
    """Return a tool whose calls are child turns, perhaps with another description."""
    spec = replace(made.spec, delegates=True, description=description or made.spec.description)
    return replace(made, spec=spec)


class LooseDelegation:
    """``delegate_task`` of an agent that need not wait for its children."""

    def __init__(self, delegation: Delegation, background: Background) -> None:
        self._delegation, self._background = delegation, background

    async def delegate_task(
        self,
        goal: Annotated[str, Field(max_length=MAX_TASK)] = "",
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        tasks: list[Task] | None = None,
        background: bool = False,
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """Give work to one or more assistants that do it with your tools and report back. They know nothing
        of this conversation and cannot ask you, so tell each one everything. Only their final answers come
        back.

        Good for work that would fill this conversation with detail, and for several tasks that do not depend
        on each other: those of one call run at the same time. Check what they report before you rely on it.

        Args:
            goal: What one assistant is to do; leave it out when tasks are given.
            context: All that it must know for it.
            tasks: Several tasks at once, instead of goal and context.
            background: Do not wait. You get handles at once, and each report comes to you by itself later,
                also when you have answered meanwhile. For long work whose result you do not need for what you
                do now.
        """
        if not background:
            return await self._delegation.delegate_task(goal, context, tasks, idempotency_key)
        orders = self._delegation.orders(goal, context, tasks, idempotency_key)
        await self._background.begin(orders, here().fence)
        started = [{"task": order.goal[:200], "handle": order.session_id} for order in orders]
        return {"started": started, "note": LATER}


def delegate_tool(
    child_factory: ChildFactory,
    store: Store,
    callbacks: Callbacks,
    clock: Clock,
    settings: Settings,
    background: Background | None = None,
) -> Tool:
    """Idempotent by the call's key, which names the children. Without ``background`` it always waits."""
    made = Delegation(child_factory, store, callbacks, clock, settings)
    handler = made.delegate_task if background is None else LooseDelegation(made, background).delegate_task
    return delegating(tool(concurrency="parallel", effect="idempotent", timeout=LONGEST)(handler))
