"""Programs that run in the background of an agent, and end with it.

Each has a supervisor of its own, which ends it when this process goes away, also by ``kill -9``. Output goes
to files of bounded size in a temporary folder, so that nothing waits for a reader."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.process import (
    STOP,
    TERM_GRACE,
    environment,
    report_from,
    supervisor_words,
)
from fsm_agent.toolsets.process_supervisor import SupervisorOrder, SupervisorReport
from fsm_agent.toolsets.sandbox import LOCAL, CommandPlace

MAX_RUNNING = 8
MAX_KEPT = 32
"""Jobs that are remembered; of those that ended the oldest are forgotten first, with their output."""
LOG_BYTES = 4_000_000
"""Bytes of the newest output that are kept of a job."""
STOP_SECONDS = 5.0
"""Seconds that a supervisor may take to end its job before it is killed itself."""


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Output from byte ``start`` to before byte ``end`` of everything that was written, ``total`` bytes by
    now."""

    data: bytes
    start: int
    total: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class Job:
    """One program. ``limit`` in seconds; times by the machine's own clock, because the program lives by it
    too."""

    id: str
    command: str
    folder: Path
    process: subprocess.Popen[bytes]
    line: socket.socket
    limit: float
    began: float = field(default_factory=time.monotonic)
    report: SupervisorReport | None = None
    why: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def running(self) -> bool:
        """Also takes note of its end."""
        with self.lock:
            if self.report is None and self.process.poll() is not None:
                self.report = report_from(self.line)
                self.line.close()
                if self.report.late:
                    self.why = f"ended after its limit of {self.limit:g} s"
            return self.report is None

    @property
    def seconds(self) -> float:
        """Return how long the job has run, or ran."""
        return self.report.seconds if self.report else time.monotonic() - self.began

    def ask_to_stop(self, why: str) -> None:
        """Ask the job's keeper to end it. The first reason given is the one that is told."""
        self.why = self.why or why
        with contextlib.suppress(OSError):
            self.line.send(STOP)

    def stop(self, why: str) -> None:
        """End the program and all that it started; it is gone when this returns."""
        if not self.running:
            return
        self.ask_to_stop(why)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert not self.running

    def state(self) -> str:
        """In words, for example ``exited with code 0 after 3.2 s``."""
        if self.running:
            return f"running for {self.seconds:.1f} s"
        assert self.report is not None
        if self.report.error:
            return f"could not be started or watched: {self.report.error}"
        code = self.report.code
        how = self.why or (f"exited with code {code}" if code >= 0 else f"killed by signal {-code}")
        return f"{how}, after {self.seconds:.1f} s"

    def read(self, since: int | None, most: int) -> OutputPage:
        """At most ``most`` bytes from ``since`` on, or as much as is still kept; the newest when ``since`` is
        ``None``."""
        for _ in range(3):  # the supervisor may throw a file away while it is looked at
            with contextlib.suppress(FileNotFoundError):
                return self._read(since, most)
        return OutputPage(b"", since or 0, since or 0)

    def _read(self, since: int | None, most: int) -> OutputPage:
        files = sorted(self.folder.iterdir())
        if not files:
            return OutputPage(b"", 0, 0)
        total = int(files[-1].name) + files[-1].stat().st_size
        start = max(int(files[0].name), total - most if since is None else min(since, total))
        data = b""
        for file in files:
            first = int(file.name)
            with file.open("rb") as opened:
                opened.seek(max(0, start + len(data) - first))
                if start + len(data) >= first:
                    data += opened.read(most - len(data))
        return OutputPage(data, start, total)


class Jobs:
    """The background programs of one agent. ``close`` ends all of them, and so does the end of the
    process."""

    def __init__(
        self, max_running: int = MAX_RUNNING, log_bytes: int = LOG_BYTES, max_kept: int = MAX_KEPT
    ) -> None:
        self.max_running, self.log_bytes, self.max_kept = max_running, log_bytes, max_kept
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()
        self._count = 0
        self._folder: Path | None = None
        self._closing: Callable[[], object] | None = None

    def start(
        self,
        command: str,
        directory: Path,
        limit: float,
        place: CommandPlace = LOCAL,
        root: Path | None = None,
    ) -> Job:
        """Start a shell's command line in ``place``, where ``root`` (default ``directory``) is the working
        directory. Raises ``ToolFailure`` when there are too many, ``OSError`` when it
        cannot be."""
        with self._lock:
            running = [job.id for job in self._jobs.values() if job.running]
            if len(running) >= self.max_running:
                raise ToolFailure(
                    f"{len(running)} jobs are running ({', '.join(running)}), and no more may; stop one"
                    " first."
                )
            self._count += 1
            order = SupervisorOrder(place.shell(command), str(directory), TERM_GRACE, sweep=True, limit=limit)
            inside = place.entered(order, environment(), root or directory)
            job = self._started(f"job{self._count}", command, *inside)
            self._jobs[job.id] = job
            self._forget()
            return job

    def job(self, name: str) -> Job:
        """Raises ``ToolFailure`` that names the jobs there are."""
        with self._lock:
            if name not in self._jobs:
                raise ToolFailure(f"There is no job {name!r}. There are: {', '.join(self._jobs) or 'none'}.")
            return self._jobs[name]

    def all(self) -> list[Job]:
        """Return the jobs, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def close(self) -> None:
        """End every job and take the output away."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._jobs.clear()
            self._folder = self._closing = None

    def _started(self, name: str, command: str, order: SupervisorOrder, environ: dict[str, str]) -> Job:
        folder = self._place() / name
        folder.mkdir(mode=0o700)
        order = order._replace(log=str(folder), log_bytes=self.log_bytes)
        line, far_end = socket.socketpair()
        with far_end:
            try:
                process = subprocess.Popen(  # noqa: S603  # approved by a person
                    supervisor_words(order, far_end),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environ,
                    pass_fds=(far_end.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                line.close()
                folder.rmdir()
                raise
        return Job(name, command, folder, process, line, order.limit)

    def _place(self) -> Path:
        """The folder of the outputs. It is taken away at the latest when the interpreter ends."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fsm-agent-jobs-"))
            self._closing = weakref.finalize(self, _end_all, self._jobs, self._folder)
        return self._folder

    def _forget(self) -> None:
        over = len(self._jobs) - self.max_kept
        for job in [job for job in self._jobs.values() if not job.running][: max(0, over)]:
            del self._jobs[job.id]
            shutil.rmtree(job.folder, ignore_errors=True)


def _end_all(jobs: dict[str, Job], folder: Path) -> None:
    """All at once, so that eight stubborn ones take no longer than one."""
    why = "ended with the agent"
    for job in jobs.values():
        if job.running:
            job.ask_to_stop(why)
    for job in jobs.values():
        job.stop(why)
    shutil.rmtree(folder, ignore_errors=True)
