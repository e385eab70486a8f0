"""What keeps a process that lost a turn from doing anything more in it.

A ``Fence`` belongs to one attempt at a turn. Every job that writes for the turn calls ``refuse`` first, in
its own transaction; whoever learns by other means that the turn is somebody else's calls ``lose``. Either way
the step that is being made is cancelled, and raises ``OwnershipLost``. (Why: decision 103.)"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fsm_agent.errors import OwnershipLost
from fsm_agent.runtime.measures import measured
from fsm_agent.sessions.store.connection import SqlConnection, must


def _never() -> bool:
    return False


class Fence:
    """The right of this attempt to write for a turn, as long as the turn's epoch is ``epoch``. A context
    manager around each step: within it a loss cancels the task that makes the step. ``why`` it was lost, in a
    line, empty while it holds. ``handed_out``: somebody else decides which process runs the turn. ``alone``
    says whether nobody else can have claimed it, because its owner is seen to live. Safe to use from any
    thread."""

    def __init__(self, turn_id: str, epoch: int = 1) -> None:
        self.turn_id, self.epoch = turn_id, epoch
        self._lock = threading.Lock()
        self.why = ""
        self.handed_out = False
        self.alone: Callable[[], bool] = _never
        self._step: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False

    def refuse(self, connection: SqlConnection) -> None:
        """Raise ``OwnershipLost`` when the turn has ended, or was claimed under a later epoch. To be called
        first in every transaction that writes for the turn."""
        sql = "SELECT 1 FROM turns WHERE id = ? AND epoch = ? AND ended IS NULL /* FOR UPDATE */"
        must(connection, sql, (self.turn_id, self.epoch), self._taken)
        self.check()

    def _taken(self) -> OwnershipLost:
        measured("fenced_write")
        self.lose(f"turn {self.turn_id} was taken over by another process; this one stops here")
        return OwnershipLost(self.why)

    def check(self) -> None:
        """Raise ``OwnershipLost`` when it is known that the turn is somebody else's."""
        if self.why:
            raise OwnershipLost(self.why)

    @property
    def lost(self) -> bool:
        """Say whether it is known that the turn is somebody else's."""
        return bool(self.why)

    def lose(self, why: str) -> None:
        """Stop: the turn is somebody else's. ``why`` in a line, for whoever runs it."""
        with self._lock:
            if self.why:
                return
            self.why = why
            if self._step is not None:
                loop, task = self._step
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
                    loop.call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with self._lock:
            if self._step is not None and self._step[1] is task:
                self._cancelled = task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a step is made in a task"
        with self._lock:
            self._step, self._cancelled = (asyncio.get_running_loop(), task), False
        if self.why:
            self._step = None
            self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            step, self._step = self._step, None
            cancelled, self._cancelled = self._cancelled, False
        if not cancelled or step is None:
            return
        if step[1].uncancel() == 0:  # else whoever runs the turn was cancelled as well
            raise OwnershipLost(self.why) from None


NO_TURN = Fence("")
"""Where something is done outside of a turn; nothing is written behind it."""


class Fences:
    """The fences of the turns that run in this process, by their ids: one of each turn, the newest."""

    def __init__(self) -> None:
        self._fences: weakref.WeakValueDictionary[str, Fence] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def opened(self, fence: Fence) -> None:
        """Keep an eye on this attempt. An earlier one at the same turn has lost it."""
        with self._lock:
            before, self._fences[fence.turn_id] = self._fences.get(fence.turn_id), fence
        if before is not None and before is not fence:
            before.lose(f"turn {fence.turn_id} was taken over in this process; this one stops here")

    def claimed(self, turn_id: str, epoch: int) -> None:
        """The turn has this epoch now: whoever runs it here under an earlier one has lost it."""
        with self._lock:
            fence = self._fences.get(turn_id)
        if fence is not None and fence.epoch < epoch:
            fence.lose(f"turn {turn_id} was taken over by another process; this one stops here")

    def get(self, turn_id: str) -> Fence:
        """Return the fence of a turn that runs here; of any other, one that nothing passes."""
        with self._lock:
            return self._fences.get(turn_id) or Fence(turn_id, 0)

    def look(self, connection: Any) -> None:
        """Compare all of them with what is stored: a turn that has a later epoch there is lost."""
        with self._lock:
            turns = json.dumps(list(self._fences))
        sql = "SELECT id, epoch FROM turns WHERE id IN (SELECT value FROM json_each(?))"
        for turn_id, epoch in connection.execute(sql, (turns,)).fetchall():
            self.claimed(turn_id, epoch)
