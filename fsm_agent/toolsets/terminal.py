"""Running shell commands, in the foreground and in the background, each with a person's approval."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fsm_agent.approvals.shell import hard_line
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import RunContext, Tool, ToolFailure, cancelled, tool
from fsm_agent.toolsets.files import resolve
from fsm_agent.toolsets.process import (
    STOP,
    TERM_GRACE,
    ProcessEnded,
    environment,
    readable,
    report_from,
    run,
    run_errors,
    supervisor_words,
)
from fsm_agent.toolsets.process_supervisor import SupervisorOrder, SupervisorReport
from fsm_agent.toolsets.sandbox import LEFT, LOCAL, CommandPlace, command_tool

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside

# Background programs of an agent, which end with it.
#
# Each has a supervisor of its own, which ends it when this process goes away, even by ``kill -9``. Output
# goes to bounded files in a temporary folder, so that programs never wait for a reader.


MAX_RUNNING = 8
MAX_KEPT = 32
"""Maximum number of jobs to remember; the oldest ended ones are forgotten first, with their output."""
LOG_BYTES = 4_000_000
"""Bytes of a job's newest output to keep."""
STOP_SECONDS = 5.0
"""Seconds for a supervisor to end its job before it is killed itself."""


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Output from byte ``start`` up to, not including, ``end``, out of ``total`` bytes written so far."""

    data: bytes
    start: int
    total: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class Job:
    """One background program. ``limit`` in seconds. Times come from the machine's own clock, which governs
    the program too."""

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
        """Return whether the job runs; record its end."""
        with self.lock:
            if self.report is None and self.process.poll() is not None:
                self.report = report_from(self.line)
                self.line.close()
                if self.report.late:
                    self.why = f"ended after its limit of {self.limit:g} s"
            return self.report is None

    @property
    def seconds(self) -> float:
        """Return how long the job has run."""
        return self.report.seconds if self.report else time.monotonic() - self.began

    def ask_to_stop(self, why: str) -> None:
        """Ask the job's supervisor to end it. The first reason is the one reported."""
        self.why = self.why or why
        with contextlib.suppress(OSError):
            self.line.send(STOP)

    def stop(self, why: str) -> None:
        """End the program and everything that it started; all of it is gone when this returns."""
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
        """Describe the state, for example ``exited with code 0, after 3.2 s``."""
        if self.running:
            return f"running for {self.seconds:.1f} s"
        assert self.report is not None
        if self.report.error:
            return f"could not be started or watched: {self.report.error}"
        code = self.report.code
        how = self.why or (f"exited with code {code}" if code >= 0 else f"killed by signal {-code}")
        return f"{how}, after {self.seconds:.1f} s"

    def read(self, since: int | None, most: int) -> OutputPage:
        """Read at most ``most`` bytes from ``since`` on, as far as they are kept; the newest if ``since`` is
        ``None``."""
        for _ in range(3):  # the supervisor may delete a file meanwhile
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
        """Start a shell command line in ``place``, where ``root`` (default ``directory``) is the working
        directory. Raises ``ToolFailure`` for too many jobs, ``OSError`` if it cannot be started."""
        with self._lock:
            running = [job.id for job in self._jobs.values() if job.running]
            if len(running) >= self.max_running:
                raise ToolFailure(
                    f"{len(running)} jobs are running ({', '.join(running)}), and no more may; stop one"
                    " first."
                )
            self._count += 1
            order = SupervisorOrder(place.shell(command), str(directory), TERM_GRACE, sweep=True, limit=limit)
            inside = place.enter(order, environment(), root or directory)
            job = self._start_job(f"job{self._count}", command, *inside)
            self._jobs[job.id] = job
            self._forget()
            return job

    def job(self, name: str) -> Job:
        """Return the job. Raises ``ToolFailure`` that lists the known jobs."""
        with self._lock:
            if name not in self._jobs:
                raise ToolFailure(f"There is no job {name!r}. There are: {', '.join(self._jobs) or 'none'}.")
            return self._jobs[name]

    def all(self) -> list[Job]:
        """Return the jobs, oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def close(self) -> None:
        """End every job and delete the output."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._jobs.clear()
            self._folder = self._closing = None

    def _start_job(self, name: str, command: str, order: SupervisorOrder, environ: dict[str, str]) -> Job:
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
        """Return the output folder. It is deleted at the latest when the interpreter exits."""
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
    """End all jobs at once, so that eight stubborn ones take no longer than one."""
    why = "ended with the agent"
    for job in jobs.values():
        if job.running:
            job.ask_to_stop(why)
    for job in jobs.values():
        job.stop(why)
    shutil.rmtree(folder, ignore_errors=True)


MAX_SECONDS = 600
MAX_JOB_SECONDS = 86_400
PAGE = 20_000
"""Maximum bytes of a job's output in one answer."""
_LOOK = 0.05
"""Seconds between checks of a job that is waited for."""

Command = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=20)]


class Terminal:
    """The shell tool of one working directory."""

    def __init__(self, root: Path, place: CommandPlace = LOCAL, aside: Aside | None = None) -> None:
        self.root, self.place, self.aside = root, place, aside

    async def terminal(
        self,
        ctx: RunContext[Any],
        command: Command,
        directory: str = ".",
        timeout: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 120,
        outside: bool = False,
    ) -> str:
        """Run a shell command and return its exit code and output (standard output and error together).

        Nothing can be typed into the command, so use options that answer its questions. Each call is a new
        shell. Very long output is cut in the middle. What the command leaves running in the background is
        ended with it.

        Args:
            command: The command line.
            directory: Where to run it, relative to the working directory.
            timeout: Seconds after which the command and all that it started are killed.
            outside: Run it outside the sandbox, which the user is asked about.
        """
        folder = await in_daemon_thread(
            check_workdir, self.root, command, directory
        )  # a long one takes a while
        place, aside = (LOCAL, None) if outside else (self.place, self.aside)
        with run_errors():
            async with watch_leftovers(aside):
                ended = await run_shell(command, folder, timeout, place, self.root, ctx.progress)
        shown = _with_notes(_format_output(ended), aside)
        if ended.timed_out:
            raise ToolFailure(
                f"Killed after {timeout:g} seconds, with all that it started. Output so far:\n{shown}"
            )
        how = f"exit code {ended.code}" if ended.code >= 0 else f"killed by signal {-ended.code}"
        return f"{how}\n{shown}"


class BackgroundProcess:
    """The background jobs of one working directory, as tools for the model."""

    def __init__(
        self, root: Path, jobs: Jobs, place: CommandPlace = LOCAL, aside: Aside | None = None
    ) -> None:
        self.root, self.jobs, self.place, self.aside = root, jobs, place, aside

    def job_start(
        self,
        command: Command,
        directory: str = ".",
        timeout: Annotated[float, Field(gt=0, le=MAX_JOB_SECONDS)] = 3_600,
        outside: bool = False,
    ) -> str:
        """Start a shell command in the background, such as a server or a long build, and return the name of
        the job at once.

        At most 8 jobs run at the same time. They all end when the session ends.

        Args:
            command: The command line. It must not put itself into the background.
            directory: Where to run it, relative to the working directory.
            timeout: Seconds after which the job and all that it started are ended.
            outside: Run it outside the sandbox, which the user is asked about.
        """
        folder, place = check_workdir(self.root, command, directory), LOCAL if outside else self.place
        aside = None if outside else self.aside
        if aside is not None:
            aside.begin()
        try:
            with run_errors():
                job = self.jobs.start(command, folder, timeout, place, self.root)
        except BaseException:
            if aside is not None:
                aside.end()
            raise
        if aside is not None:
            threading.Thread(target=_end_with, args=(job, aside), daemon=True).start()
        return f"Started {job.id}."

    def job_list(self) -> str:
        """List the background jobs, with how each is doing."""
        lines = [f"{job.id}  {job.state()}  {_one_line(job.command)}" for job in self.jobs.all()]
        return _with_notes("\n".join(lines) or "No jobs.", self.aside)

    def job_output(self, job: Name, since: Annotated[int | None, Field(ge=0)] = None) -> str:
        """Read what a background job has written (standard output and error together), and how it is doing.

        Args:
            job: The job's name.
            since: Where to read on: the number at the end of the last answer. Leave it out for the newest
                output."""
        return _with_notes(_report(self.jobs.job(job), since), self.aside)

    def job_wait(
        self,
        job: Name,
        timeout: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 60,
        text: Annotated[str | None, Field(min_length=1, max_length=500)] = None,
        since: Annotated[int | None, Field(ge=0)] = None,
    ) -> str:
        """Wait until a background job has ended, or has written a text, or the time is up; then read its
        output.

        Args:
            job: The job's name.
            timeout: Seconds to wait at most. The job continues when they are over.
            text: Wait only until this text is in the output, such as "listening on".
            since: Where to read on: the number at the end of the last answer. Leave it out for the newest
                output.
        """
        waited_for, deadline = self.jobs.job(job), time.monotonic() + timeout
        wanted, at = (text or "").encode(), since or 0
        while waited_for.running and time.monotonic() < deadline and not cancelled():
            if wanted:
                page = waited_for.read(at, 1 << 20)
                if wanted in page.data:
                    break
                at = max(page.start, page.end - len(wanted))
            time.sleep(_LOOK)
        return _with_notes(_report(waited_for, since), self.aside)

    def job_stop(self, job: Name) -> str:
        """End a background job and all that it started. A job that has ended already stays as it is.

        Args:
            job: The job's name.
        """
        stopped = self.jobs.job(job)
        stopped.stop("stopped")
        return _with_notes(_report(stopped, None), self.aside)


def terminal_tools(root: Path, place: CommandPlace = LOCAL, aside: Aside | None = None) -> tuple[Tool, ...]:
    """Return the terminal tool. Its own limit ends before the turn's, so that the output so far is not lost.
    ``aside`` moves away files that a sandboxed command may not leave behind."""
    return (command_tool(Terminal(root, place, aside).terminal, place, MAX_SECONDS + 60),)


def job_tools(root: Path, place: CommandPlace = LOCAL, aside: Aside | None = None) -> tuple[Tool, ...]:
    """Return job_start, job_list, job_output, job_wait and job_stop. Only starting a job needs approval."""
    jobs = Jobs()
    background = BackgroundProcess(root, jobs, place, aside)

    def close() -> None:
        jobs.close()
        if aside is not None:
            aside.settle()

    reader = tool(concurrency="parallel", effect="pure")
    tools = (
        command_tool(background.job_start, place),
        reader(background.job_list),
        reader(background.job_output),
        tool(concurrency="parallel", effect="pure", timeout=MAX_SECONDS + 60)(background.job_wait),
        tool(effect="idempotent")(background.job_stop),
    )
    return tuple(dataclasses.replace(one, closer=close) for one in tools)


@contextlib.asynccontextmanager
async def watch_leftovers(aside: Aside | None) -> AsyncIterator[None]:
    """Move away the acting files that a command in this block leaves."""
    if aside is None:
        yield
        return
    await in_daemon_thread(aside.begin)
    try:
        yield
    finally:
        await asyncio.shield(asyncio.ensure_future(in_daemon_thread(aside.end)))


def _end_with(job: Job, aside: Aside) -> None:
    job.process.wait()
    aside.end()


def _with_notes(text: str, aside: Aside | None) -> str:
    notes = "" if aside is None else aside.notes()
    return f"{text}\n{notes}" if notes else text


async def run_shell(
    command: str,
    directory: Path,
    limit: float,
    place: CommandPlace = LOCAL,
    root: Path | None = None,
    tells: Callable[[str], None] | None = None,
) -> ProcessEnded:
    """Run a shell command line with ``run`` in ``place``, where ``root`` (default ``directory``) is the
    working directory."""
    order = SupervisorOrder(place.shell(command), str(directory), TERM_GRACE)
    return await run(*place.enter(order, environment(), root or directory), limit, tells=tells)


def check_workdir(root: Path, command: str, directory: str) -> Path:
    """Return the directory to run in. Raises ``ToolFailure`` for a forbidden or impossible command."""
    if os.name != "posix":
        raise ToolFailure("Commands can be run on POSIX systems only.")
    place = resolve(root, directory)
    if reason := hard_line(command, directory=str(place)):
        raise ToolFailure(f"Refused, and no approval can change that: {reason}.")
    if "\0" in command:
        raise ToolFailure("A command cannot contain a NUL character.")
    if not place.is_dir():
        raise ToolFailure(f"{directory}: no such directory.")
    return place


def _format_output(ended: ProcessEnded) -> str:
    output = ended.output.strip("\n") or "(no output)"
    return f"{output}\n{LEFT}" if ended.left else output


def _report(job: Job, since: int | None) -> str:
    state = job.state()  # before the output, so that an ended job's output is complete
    page = job.read(since, PAGE)
    lost = ""
    if since is not None and page.start > since:
        lost = f"[{page.start - since:,} bytes before this are no longer kept]\n"
    elif since is None and page.start:
        lost = f"[{page.start:,} bytes before this]\n"
    text = readable(page.data).strip("\n") or "(nothing new)"
    more = f"; {page.total - page.end:,} more bytes are there" if page.end < page.total else ""
    return f"{job.id}: {state}\n{lost}{text}\n[read on with since={page.end}{more}]"


def _one_line(command: str) -> str:
    line = " ".join(readable(command.encode("utf-8", "replace")).split())
    return line if len(line) <= 100 else f"{line[:99]}…"
