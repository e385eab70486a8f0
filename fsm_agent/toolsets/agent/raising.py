"""Children while they run: watched for signs of life, stopped together, each with its own end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fsm_agent.conversation.wire import CHARS_PER_TOKEN
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.deadline import Stopwatch
from fsm_agent.runtime.events import StatusText
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings.model import DelegationSettings, Settings
from fsm_agent.support.texts import shorten
from fsm_agent.toolsets.agent.child import Child, ChildEnded, ChildFactory


class Care:
    """How children are looked after. ``quiet``: nobody waits for them, so no signs of life are told."""

    def __init__(
        self, callbacks: Callbacks, clock: Clock, settings: Settings, *, quiet: bool = False
    ) -> None:
        self._callbacks, self._clock, self._limits = callbacks, clock, settings.delegation
        self.pause = min(settings.poll.control, self._limits.heartbeat)
        self.beat = float("inf") if quiet else self._limits.heartbeat

    def stalled(self, child: Child) -> str:
        """Why a child is given up, or nothing."""
        limit = self._limits.stale_in_tool if child.in_tool else self._limits.stale_idle
        idle = child.idle()
        where = "in a tool" if child.in_tool else "without doing anything"
        return f"stopped after {idle:.0f} s {where}" if idle > limit else ""

    def heartbeat(self, children: Sequence[Child]) -> None:
        """Tell the parent's people what its children are doing."""
        busy = [child.doing for child in children if child.end is None]
        self._callbacks.publish(
            StatusText(f"{len(busy)} of {len(children)} delegated tasks at work: {'; '.join(busy)}")
        )

    def watch(self) -> Stopwatch:
        """Return a stopwatch that runs from now."""
        return Stopwatch(self._clock)


class ChildFamily:
    """The children of one call. An interrupt goes to all of them, and their answers so far are kept."""

    def __init__(self, children: Sequence[Child], care: Care, interrupted: asyncio.Event) -> None:
        self.children, self._care, self._interrupted = children, care, interrupted

    async def raised(self) -> list[ChildEnded]:
        """How each ended, in order of the tasks. Raises ``TurnSuspended`` when one of them waits for an
        answer, after the others have ended."""
        work = [asyncio.ensure_future(child.run()) for child in self.children]
        try:
            await self._watched(work)
        except asyncio.CancelledError:
            if not self._interrupted.is_set():
                await _stopped(work)
                raise
            for child in self.children:
                child.interrupt("the user interrupted")
            try:
                await asyncio.wait(work)
            except asyncio.CancelledError:
                await _stopped(work)
                raise
        failed = [error for task in work if (error := task.exception()) is not None]
        if failed:
            raise failed[0]
        return [task.result() for task in work]

    async def _watched(self, work: Sequence[asyncio.Future[ChildEnded]]) -> None:
        since = self._care.watch()
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=self._care.pause, return_when=asyncio.ALL_COMPLETED)
            for child in self.children:
                if child.end is None and (why := self._care.stalled(child)):
                    child.interrupt(why)
            if since.elapsed() >= self._care.beat and not all(task.done() for task in work):
                since.restart()
                self._care.heartbeat(self.children)


async def _stopped(work: Sequence[asyncio.Future[ChildEnded]]) -> None:
    """Stop the children where they are; each can be resumed."""
    for task in work:
        task.cancel()
    await asyncio.wait(work)


def room(limits: DelegationSettings, used: int, window: int | None, among: int) -> int:
    """Characters for one of ``among`` answers: a share of what the parent's window, in tokens, has left
    (AGT-05)."""
    if window is None:
        return limits.summary_max_chars
    free = max(0, window - used) * CHARS_PER_TOKEN
    return min(
        limits.summary_max_chars, max(limits.summary_min_chars, int(free * limits.headroom_fraction / among))
    )


def fitted(text: str, limit: int, name: str, child_factory: ChildFactory) -> str:
    """The answer, or its head and tail and where the whole of it is."""
    if len(text) <= limit:
        return text
    saved = child_factory.keep(f"{name}.txt", text)
    return shorten(text, limit - 200, f"the whole answer is in {saved.path}" if saved.path else saved.error)
