"""Threads for what would block a loop, kept for a while after their work because starting one costs more than
most calls.

They are daemons, because a wedged tool must not keep the process from exiting, and their number has no limit:
how many calls run at the same time is the turn's decision, and a tool that never ends keeps nobody else
waiting. (Why: decision 61.)"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

IDLE = 10.0
"""Seconds without work after which a thread ends."""

Job = Callable[[], None]
Inbox = queue.SimpleQueue[Job | None]
"""``None`` ends its thread."""


class Workers:
    """``run`` a job, which must not raise, in the thread that became idle last, or in a new one."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle_for = idle
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []

    def run(self, job: Job) -> None:
        """Raises ``RuntimeError`` when the machine can start no more threads."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = Inbox()
            threading.Thread(target=self._work, args=(inbox,), name="fsm-agent-worker", daemon=True).start()
        inbox.put(job)

    def rest(self) -> None:
        """End the threads that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def forget(self) -> None:
        """In a fork of the process, where none of the threads is."""
        self._lock, self._idle = threading.Lock(), []

    def _work(self, inbox: Inbox) -> None:
        while True:
            try:
                job = inbox.get(timeout=self._idle_for)
            except queue.Empty:
                with self._lock:
                    if inbox not in self._idle:  # chosen in this very moment: the job is on its way
                        continue
                    self._idle.remove(inbox)
                return
            if job is None:
                return
            job()
            del job  # what it holds is not kept alive by an idle thread
            with self._lock:
                self._idle.append(inbox)


WORKERS = Workers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.forget)
