"""Child turns: tasks that the model gives to agents of their own, which see nothing of its conversation (AGT-05, AGT-06).

The key of the call names the children, and each is a turn of its own in the journal. So a delegation that was in flight when its
process ended is simply made again: children that had ended are looked up, those that had begun are resumed, under the rules that
hold for every turn, and only the rest begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from fsm_agent.agenttools.child import Child, Ended, Nursery, Order
from fsm_agent.agenttools.scene import Scene, here
from fsm_agent.budget import IterationBudget
from fsm_agent.callbacks import Callbacks
from fsm_agent.ports import Clock
from fsm_agent.settings import Settings
from fsm_agent.store import Store
from fsm_agent.texts import shorten
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.watch import Stopwatch
from fsm_agent.wire import CHARS_PER_TOKEN

NAME = "delegate_task"
LONGEST = 86_400.0
"""Seconds; what ends a child sooner is its own budget, and the limits on doing nothing."""
MAX_TASK = 100_000
"""Characters of one task with its context."""


class Task(BaseModel):
    """One piece of work."""

    goal: Annotated[
        str, Field(min_length=1, max_length=MAX_TASK, description="What is to be done, and what the answer must hold.")
    ]
    context: Annotated[
        str, Field(max_length=MAX_TASK, description="All that one must know for it: files, facts, constraints.")
    ] = ""


class Delegation:
    """The children of one agent."""

    def __init__(self, nursery: Nursery, store: Store, callbacks: Callbacks, clock: Clock, settings: Settings) -> None:
        self._nursery, self._store, self._callbacks, self._clock = nursery, store, callbacks, clock
        self._limits, self._poll = settings.delegation, settings.poll.control
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def delegate_task(
        self,
        goal: Annotated[str, Field(max_length=MAX_TASK)] = "",
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        tasks: list[Task] | None = None,
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """Give work to one or more assistants that do it with your tools and report back. They know nothing of this conversation
        and cannot ask you, so tell each one everything. Only their final answers come back.

        Good for work that would fill this conversation with detail, and for several tasks that do not depend on each other:
        those of one call run at the same time. Check what they report before you rely on it.

        Args:
            goal: What one assistant is to do; leave it out when tasks are given.
            context: All that it must know for it.
            tasks: Several tasks at once, instead of goal and context.
        """
        asked = list(tasks or ()) or ([Task(goal=goal, context=context)] if goal.strip() else [])
        if not asked:
            raise ToolFailure("There is nothing to do: give a goal, or tasks.")
        if len(asked) > self._limits.max_children:
            raise ToolFailure(f"{len(asked)} tasks; at most {self._limits.max_children} at a time. Nothing was started.")
        scene = here()
        family = Family([self._child(scene, idempotency_key, number, task) for number, task in enumerate(asked)], self, scene)
        async with self._alone(idempotency_key):
            ended = await family.raised()
        told = [self._told(scene, child, end, len(asked)) for child, end in zip(family.children, ended, strict=True)]
        return {"results": told}

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

    def _child(self, scene: Scene, key: str, number: int, task: Task) -> Child:
        order = Order(
            session_id=f"c-{scene.turn_id}.{key[:8] or scene.call_id[-8:]}.{number}",
            parent_session=scene.session.id,
            parent_turn=scene.turn_id,
            task_id=f"{scene.call_id}.{number}",
            goal=task.goal,
            context=task.context,
            budget=self._budget(scene),
        )
        return Child(order, self._nursery, self._store, self._callbacks, self._clock)

    def _budget(self, scene: Scene) -> IterationBudget:
        most = self._limits.max_iterations
        return IterationBudget(most) if scene.budget is None else scene.budget.child(self._limits.budget, most)

    def _told(self, scene: Scene, child: Child, end: Ended, among: int) -> dict[str, Any]:
        """What the parent's model is told of one child: how it ended, its answer, what it took."""
        limit, text = self._room(scene, among), end.text
        if len(text) > limit:
            saved = self._nursery.keep(f"{child.order.session_id}.txt", text)
            text = shorten(text, limit - 200, f"the whole answer is in {saved.path}" if saved.path else saved.error)
        told = {"task": child.order.goal[:200], "status": end.status, "summary": text, "turn": end.turn_id}
        return told | {"iterations": end.iterations, "tokens": end.tokens} | ({"error": end.error} if end.error else {})

    def _room(self, scene: Scene, among: int) -> int:
        """Characters for one answer: a share of what the parent's window has left (AGT-05)."""
        limits = self._limits
        if scene.window is None:
            return limits.summary_max_chars
        free = max(0, scene.window - scene.session.meter.tokens) * CHARS_PER_TOKEN
        return min(limits.summary_max_chars, max(limits.summary_min_chars, int(free * limits.headroom_fraction / among)))

    # What ``Family`` asks

    def stalled(self, child: Child) -> str:
        """Why a child is given up, or nothing."""
        limit = self._limits.stale_in_tool if child.in_tool else self._limits.stale_idle
        idle = child.idle()
        where = "in a tool" if child.in_tool else "without doing anything"
        return f"stopped after {idle:.0f} s {where}" if idle > limit else ""

    def heartbeat(self, children: Sequence[Child]) -> None:
        busy = [child.doing for child in children if child.end is None]
        self._callbacks.emit("status", f"{len(busy)} of {len(children)} delegated tasks at work: {'; '.join(busy)}")

    @property
    def pause(self) -> float:
        return min(self._poll, self._limits.heartbeat)

    @property
    def beat(self) -> float:
        return self._limits.heartbeat

    def watch(self) -> Stopwatch:
        return Stopwatch(self._clock)


class Family:
    """The children of one call, while they run. An interrupt goes to all of them, and their answers so far are kept."""

    def __init__(self, children: Sequence[Child], delegation: Delegation, scene: Scene) -> None:
        self.children, self._delegation, self._scene = children, delegation, scene

    async def raised(self) -> list[Ended]:
        """How each ended, in order of the tasks."""
        work = [asyncio.ensure_future(child.run()) for child in self.children]
        try:
            await self._watched(work)
        except asyncio.CancelledError:
            if not self._scene.interrupted.is_set():
                await _stopped(work)
                raise
            for child in self.children:
                child.interrupt("the user interrupted")
            try:
                await asyncio.wait(work)
            except asyncio.CancelledError:
                await _stopped(work)
                raise
        return [task.result() for task in work]

    async def _watched(self, work: Sequence[asyncio.Future[Ended]]) -> None:
        since = self._delegation.watch()
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=self._delegation.pause, return_when=asyncio.ALL_COMPLETED)
            for child in self.children:
                if child.end is None and (why := self._delegation.stalled(child)):
                    child.interrupt(why)
            if since.elapsed() >= self._delegation.beat and not all(task.done() for task in work):
                since.restart()
                self._delegation.heartbeat(self.children)


async def _stopped(work: Sequence[asyncio.Future[Ended]]) -> None:
    """Stop the children where they are; each can be resumed."""
    for task in work:
        task.cancel()
    await asyncio.wait(work)


def delegate_tool(nursery: Nursery, store: Store, callbacks: Callbacks, clock: Clock, settings: Settings) -> Tool:
    """Idempotent by the call's key, which names the children."""
    made = Delegation(nursery, store, callbacks, clock, settings).delegate_task
    return tool(concurrency="parallel", effect="idempotent", timeout=LONGEST)(made)
