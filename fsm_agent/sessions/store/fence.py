"""Stops a process that lost a turn from doing anything more in it.

A ``Fence`` belongs to one attempt at a turn. Every job that writes for the turn calls ``refuse`` first, in
its own transaction; code that learns of a loss by other means calls ``lose``. Either way the current step is
canceled, and raises ``OwnershipLost``. (Why: decision 103.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from fsm_agent.errors import OwnershipLost, SessionBusy
from fsm_agent.runtime.events import measure
from fsm_agent.sessions.store.database import SqlConnection, must
from fsm_agent.support.files import private_folder, take


def _never() -> bool:
    return False


class Fence:
    """The right of this attempt to write for a turn, as long as the turn's epoch is ``epoch``. A context
    manager around each step: a loss cancels the task inside it. ``why``: the reason for the loss in one line,
    empty while the fence holds. ``handed_out``: a dispatcher decides which process runs the turn. ``alone``
    returns true if no other process can have claimed it, because its owner is known to live. Thread-safe."""

    def __init__(self, turn_id: str, epoch: int = 1) -> None:
        self.turn_id, self.epoch = turn_id, epoch
        self._lock = threading.Lock()
        self.why = self.session = ""
        self.handed_out = False
        self.left: Future[None] | None = None
        self.alone: Callable[[], bool] = _never
        self._step: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False

    def refuse(self, connection: SqlConnection) -> None:
        """Raise ``OwnershipLost`` when the turn has ended, or was claimed under a later epoch. Every
        transaction that writes for the turn calls this first."""
        sql = "SELECT 1 FROM turns WHERE id = ? AND epoch = ? AND ended IS NULL /* FOR UPDATE */"
        must(connection, sql, (self.turn_id, self.epoch), self._ownership_error)
        self.check()

    def _ownership_error(self) -> OwnershipLost:
        measure("fenced_write")
        self.lose(f"turn {self.turn_id} was taken over by another process; this one stops here")
        return OwnershipLost(self.why)

    def check(self) -> None:
        """Raise ``OwnershipLost`` when the turn is known to be lost."""
        if self.why:
            raise OwnershipLost(self.why)

    @property
    def moving(self) -> bool:
        """True while a step runs."""
        return self._step is not None

    @property
    def lost(self) -> bool:
        """True if the turn is known to be lost."""
        return bool(self.why)

    def lose(self, why: str) -> None:
        """Stop: another attempt owns the turn. ``why``: the line shown to the caller."""
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
        if step[1].uncancel() == 0:  # else the caller was canceled as well
            raise OwnershipLost(self.why) from None


NO_TURN = Fence("")
"""The fence of work outside of a turn; nothing is written under it."""


def _busy(session_id: str, turn_id: str) -> SessionBusy:
    return SessionBusy(
        f"session {session_id} is busy: turn {turn_id} is still running; wait for it or interrupt it"
    )


class Fences:
    """The fences of the turns that run in this process: by turn id, the newest of each; and by session, those
    held now, so that only one turn of this process works on a session."""

    def __init__(self) -> None:
        self._fences: weakref.WeakValueDictionary[str, Fence] = weakref.WeakValueDictionary()
        self._held: weakref.WeakValueDictionary[str, Fence] = weakref.WeakValueDictionary()
        # reentrant: the garbage collector may run anywhere, and abandoned events of a turn call ``leaving``
        self._lock = threading.RLock()

    def hold(self, fence: Fence, session_id: str) -> None:
        """Keep other turns of this process off a session until ``release``. Raises ``SessionBusy`` when
        another turn has it; a new attempt at the same turn may replace one that is between two steps."""
        with self._lock:
            self._refuse_if_held(session_id, fence)
            if not fence.session:
                fence.session, self._held[session_id] = session_id, fence

    def release(self, fence: Fence) -> None:
        """Make the session available to other turns of this process."""
        with self._lock:
            if self._held.get(fence.session) is fence:
                del self._held[fence.session]
            fence.session = ""
            left, fence.left = fence.left, None
        if left is not None:
            left.set_result(None)

    def leaving(self, fence: Fence) -> None:
        """Announce that ``fence``, if it holds a session, releases it soon."""
        with self._lock:
            if fence.session and fence.left is None:
                fence.left = Future()

    def left(self, session_id: str) -> Future[None] | None:
        """Return what is done when a turn that is being left releases the session; ``None`` if there is no
        such turn."""
        with self._lock:
            held = self._held.get(session_id)
            return None if held is None else held.left

    def release_turn(self, turn_id: str, epoch: int | None) -> None:
        """``release`` all attempts at a turn, or the one with this epoch."""
        for fence in list(self._held.values()):
            if fence.turn_id == turn_id and epoch in (None, fence.epoch):
                self.release(fence)

    def refuse_if_held(self, session_id: str, turn_id: str) -> None:
        """Raise ``SessionBusy`` when ``hold`` would for this turn."""
        with self._lock:
            self._refuse_if_held(session_id, Fence(turn_id))

    def _refuse_if_held(self, session_id: str, fence: Fence) -> None:
        for other in (self._held.get(session_id), self._fences.get(fence.turn_id)):
            if other is None or other is fence or other.lost:
                continue
            if other.turn_id != fence.turn_id or other.moving:
                raise _busy(session_id, other.turn_id)

    def refuse_if_run(self, session_id: str, turn_id: str) -> None:
        """Raise ``SessionBusy`` when a turn object of this process holds it."""
        with self._lock:
            if any(one.turn_id == turn_id and not one.lost for one in self._held.values()):
                raise _busy(session_id, turn_id)

    def open(self, fence: Fence) -> None:
        """Watch this attempt. An earlier attempt at the same turn is lost."""
        with self._lock:
            before, self._fences[fence.turn_id] = self._fences.get(fence.turn_id), fence
        if before is not None and before is not fence:
            before.lose(f"turn {fence.turn_id} was taken over in this process; this one stops here")

    def record_claim(self, turn_id: str, epoch: int, where: str = "by another process") -> None:
        """Record a turn's new epoch: an earlier attempt at it in this process is lost."""
        with self._lock:
            fence = self._fences.get(turn_id)
        if fence is not None and fence.epoch < epoch:
            fence.lose(f"turn {turn_id} was taken over {where}; this one stops here")

    def get(self, turn_id: str) -> Fence:
        """Return the fence of a turn that runs here; for any other turn, one that refuses every write."""
        with self._lock:
            return self._fences.get(turn_id) or Fence(turn_id, 0)

    def look(self, connection: Any) -> None:
        """Compare all fences with the stored epochs: a turn with a later epoch is lost."""
        with self._lock:
            turns = json.dumps(list(self._fences))
        sql = "SELECT id, epoch FROM turns WHERE id IN (SELECT value FROM json_each(?))"
        for turn_id, epoch in connection.execute(sql, (turns,)).fetchall():
            self.record_claim(turn_id, epoch)


# ----------------------------------------------------------------------------------------------------
# Which process owns a turn, and whether it still lives.
#
# Each process that runs turns locks a file of its own beside the database for its whole life. The system
# releases the lock when the process dies for any reason, so liveness never depends on process numbers or
# times. (Why: decision 30.)


FOLDER = "owners"


class Owners:
    """Knows the processes that run turns in one home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._lock = threading.Lock()
        self._me, self._pid, self._handle = "", 0, -1

    @property
    def me(self) -> str:
        """The name of this process in the database, created with its lock on first use. If the file was
        removed, a new name is created: turns under the old name may be taken over, new ones count as
        alive."""
        with self._lock:
            if not self._me or self._pid != os.getpid() or not self._file(self._me).exists():
                self._me, self._pid = uuid.uuid4().hex[:12], os.getpid()
                self._handle = self._lock_file(self._me)
                weakref.finalize(self, _release_lock, self._file(self._me), self._handle, self._pid)
            return self._me

    def is_alive_here(self, owner: str) -> bool:
        """Return whether ``owner`` is this process and its file exists, so that no process takes over its
        turns."""
        with self._lock:
            return owner == self._me and self._pid == os.getpid() and self._file(owner).exists()

    def leave_to_parent(self) -> None:
        """Close the inherited lock in a forked process: while it is open, no process takes over the turns of
        a parent that has died."""
        if self._handle >= 0:
            os.close(self._handle)

    def _lock_file(self, owner: str) -> int:
        private_folder(self._folder)
        handle = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        take(handle)
        record = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
        os.write(handle, json.dumps(record).encode())
        return handle

    def alive(self, owner: str | None) -> dict[str, Any] | None:
        """Return the owner's process (pid, host, since in seconds), or ``None`` when it is gone."""
        if not owner:
            return None
        if owner == self._me and self._pid == os.getpid():
            return self._read_record(owner)
        try:
            handle = os.open(self._file(owner), os.O_RDWR)
        except OSError:
            return None
        try:
            take(handle)
        except OSError:
            return self._read_record(owner)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            self._file(owner).unlink()
        return None

    def refuse_if_alive(self, session_id: str, holder: str, owner: str | None) -> None:
        """Raise ``SessionBusy`` when another live process runs the turn ``holder`` of the session."""
        if owner == self.me:
            return  # ours, but no turn of this process holds it: it was dropped
        if (found := self.alive(owner)) is not None:
            since = time.strftime("%H:%M:%S", time.localtime(found["since"]))
            raise SessionBusy(
                f"session {session_id} is busy: turn {holder} is running in process {found['pid']} on"
                f" {found['host']} (up since {since}); wait for it, or stop that process and resume the turn"
            )

    def _read_record(self, owner: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self._file(owner).read_text(encoding="utf-8"))
            if isinstance(record, dict):
                return record
        return {"pid": 0, "host": "?", "since": 0.0}

    def _file(self, owner: str) -> Path:
        return self._folder / f"{owner}.lock"


def _release_lock(file: Path, handle: int, pid: int) -> None:
    """Release the lock when the owner no longer needs it; a forked child leaves its parent's alone."""
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(handle)
