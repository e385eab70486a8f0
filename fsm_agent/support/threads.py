"""Threads that never keep the process alive, an event loop for the synchronous API, and what waits on a loop:
interrupts and pipes."""

# Threads of synchronous tools are reused. Starting one costs more than most calls. Their number is unlimited,
# so a stuck tool blocks no other.

# One event loop in a daemon thread. Synchronous calls must work inside a running loop (notebooks), and
# connections must outlive a call, so one loop in a daemon thread serves them all. The caller's loop blocks
# meanwhile, which in a web server shows only under load; a RuntimeWarning therefore recommends `arun`.
# Raising would break notebooks.

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from io import BufferedWriter, FileIO
from typing import Any, TypeVar

# Threads for blocking work, kept idle for a while afterwards because starting one costs more than most
# calls.
#
# They are daemons, because a hung tool must not keep the process from exiting, and their number is
# unlimited: concurrency is the turn's decision, and a tool that never ends must not block others. (Why:
# decision 61.)


IDLE = 10.0
"""Idle seconds after which a thread ends."""

Job = Callable[[], None]
Inbox = queue.SimpleQueue[Job | None]
"""Jobs for a thread; ``None`` ends it."""


class Workers:
    """Runs jobs, which must not raise, in the thread that became idle last, or in a new one."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle_for = idle
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []

    def run(self, job: Job) -> None:
        """Run a job. Raises ``RuntimeError`` when the machine can start no more threads."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = Inbox()
            threading.Thread(target=self._work, args=(inbox,), name="fsm-agent-worker", daemon=True).start()
        inbox.put(job)

    def rest(self) -> None:
        """End the idle threads."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def forget(self) -> None:
        """Drop all threads after a fork of the process, where they do not exist."""
        self._lock, self._idle = threading.Lock(), []

    def _work(self, inbox: Inbox) -> None:
        while True:
            try:
                job = inbox.get(timeout=self._idle_for)
            except queue.Empty:
                with self._lock:
                    if inbox not in self._idle:  # just chosen: its job is about to arrive
                        continue
                    self._idle.remove(inbox)
                return
            if job is None:
                return
            job()
            del job  # an idle thread must not keep its objects alive
            with self._lock:
                self._idle.append(inbox)


WORKERS = Workers()


T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *values: Any) -> T:
    """Run a blocking function in a pooled thread. Unlike an executor, it does not delay process exit."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        nonlocal function, values, context
        threading.current_thread().name = f"fsm-agent-{getattr(function, '__name__', 'call')}"
        value, error = None, None
        try:
            value = context.run(function, *values)
        except BaseException as caught:
            error = caught if isinstance(caught, Exception) else RuntimeError(repr(caught))
        del function, values, context  # release them before any caller is notified
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, value, error)

    WORKERS.run(work)
    return await future


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed, which costs less per packet. Callers' loops are never
    replaced."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def in_a_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like ``asyncio.run``, on a loop from ``new_loop``."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


class LoopThread:
    """One event loop in a daemon thread, shared by all synchronous calls, so that connections outlive a
    call."""

    def __init__(self) -> None:
        # reentrant: the garbage collector may run while it is held, and what it finalizes may call ``submit``
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inherited: list[asyncio.AbstractEventLoop | None] = []

    def forget(self) -> None:
        """Drop the loop after a fork of the process, where its thread does not exist. It is kept, because
        freeing it would change what the parent's loop waits for."""
        self._inherited.append(self._loop)
        self._lock, self._loop = threading.RLock(), None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine's result. Safe inside a running loop of another thread, such as a
        notebook's."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start the coroutine on this loop, from any thread, without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._start_loop())

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on this loop, and wait for it on the caller's."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = new_loop()
                threading.Thread(
                    target=_run_on, args=(self._loop,), daemon=True, name="fsm-agent-loop"
                ).start()
            return self._loop


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. ``SystemExit`` and ``KeyboardInterrupt`` of a task also end
    ``run_forever``, although the caller of the task has them: other callers must not wait forever."""
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


class Interrupt(asyncio.Event):
    """An event that also calls functions at once, within ``set``. A callback of the loop would come after a
    task that is scheduled already, and that task might run to its end first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: set[Callable[[], None]] = set()

    def set(self) -> None:
        """Set the event in the loop of its waits."""
        super().set()
        for call in tuple(self.calls):
            call()


def warn_if_blocking(name: str, instead: str) -> None:
    """Warn the caller of function ``name`` that it blocks the event loop of this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    caller, level = sys._getframe(1), 2
    while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("fsm_agent."):
        caller, level = caller.f_back, level + 1
    warnings.warn(
        f"{name} blocks the event loop that it is called in until the turn has ended; use {instead} there",
        RuntimeWarning,
        stacklevel=level,
    )


LOOP = LoopThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.forget)
    os.register_at_fork(after_in_child=LOOP.forget)


# Pipes on a loop: this process's own, and those to other processes.


def own_streams() -> tuple[FileIO, BufferedWriter]:
    """Return the process's input and output for exclusive use by a protocol; other code gets an empty
    input, and standard error as its output. They stay open until the process ends, because a reader still
    waits for input."""
    sys.stdout.flush()
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb")


async def connect_own_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return ``own_streams`` as streams of the running loop. Raises ``ValueError`` if they are not pipes or
    sockets."""
    loop, (reading, writing) = asyncio.get_running_loop(), own_streams()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), writing
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


CHUNK = 65_536
"""Bytes that are read from a pipe at once."""


class BoundedLines:
    """Splits bytes into lines. One of more than ``most`` bytes becomes ``None``, and is not kept."""

    def __init__(self, most: int) -> None:
        self._most, self._held, self._skips = most, bytearray(), False

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """Return the lines that this piece completes."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield from self._add(part)
            if not self._skips:
                yield bytes(self._held)
            self._held, self._skips = bytearray(), False
        yield from self._add(rest)

    def _add(self, part: bytes) -> Iterator[None]:
        if self._skips:
            return
        self._held += part
        if len(self._held) > self._most:
            self._held, self._skips = bytearray(), True
            yield None


async def send(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write ``data`` and wait until there is room for more. Raises ``ConnectionError`` if the other end is
    gone, on any event loop: uvloop raises a different error for a closed pipe."""
    try:
        pipe.write(data)
        await pipe.drain()
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error
