"""Running shell commands, in front and in the background, each after a person has agreed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fsm_agent.approvals.policy import hard_line
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import RunContext, Tool, ToolFailure, cancelled, tool
from fsm_agent.toolsets.confine import resolve
from fsm_agent.toolsets.jobs import Job, Jobs
from fsm_agent.toolsets.output import readable
from fsm_agent.toolsets.process import TERM_GRACE, ProcessEnded, environment, run, run_errors
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.sandbox import LOCAL, CommandPlace
from fsm_agent.toolsets.sandbox.aside import Aside
from fsm_agent.toolsets.sandbox.confined import command_tool
from fsm_agent.toolsets.sandbox.place import LEFT

MAX_SECONDS = 600
MAX_JOB_SECONDS = 86_400
PAGE = 20_000
"""Bytes of a job's output in one answer."""
_LOOK = 0.05
"""Seconds between two looks at a job that is waited for."""

Command = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=20)]


class Terminal:
    """The shell of one working directory."""

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
        folder = await in_daemon_thread(checked, self.root, command, directory)  # a long one takes a while
        place, aside = (LOCAL, None) if outside else (self.place, self.aside)
        with run_errors():
            async with looked_after(aside):
                ended = await run_shell(command, folder, timeout, place, self.root, ctx.progress)
        shown = _noted(_shown(ended), aside)
        if ended.timed_out:
            raise ToolFailure(
                f"Killed after {timeout:g} seconds, with all that it started. Output so far:\n{shown}"
            )
        how = f"exit code {ended.code}" if ended.code >= 0 else f"killed by signal {-ended.code}"
        return f"{how}\n{shown}"


class BackgroundProcess:
    """The jobs of one working directory, in the hands of its model."""

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
        folder, place = checked(self.root, command, directory), LOCAL if outside else self.place
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
        return _noted("\n".join(lines) or "No jobs.", self.aside)

    def job_output(self, job: Name, since: Annotated[int | None, Field(ge=0)] = None) -> str:
        """Read what a background job has written (standard output and error together), and how it is doing.

        Args:
            job: The job's name. since: Where to read on: the number at the end of the last answer. Leave it
            out for the newest output."""
        return _noted(_told(self.jobs.job(job), since), self.aside)

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
            timeout: Seconds to wait at most. The job goes on when they are over.
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
        return _noted(_told(waited_for, since), self.aside)

    def job_stop(self, job: Name) -> str:
        """End a background job and all that it started. A job that has ended already stays as it is.

        Args:
            job: The job's name.
        """
        stopped = self.jobs.job(job)
        stopped.stop("stopped")
        return _noted(_told(stopped, None), self.aside)


def terminal_tools(root: Path, place: CommandPlace = LOCAL, aside: Aside | None = None) -> tuple[Tool, ...]:
    """The terminal. Its own limit ends before the turn's, so that the output so far is not lost. ``aside``
    takes what a command in a sandbox may not leave behind."""
    return (command_tool(Terminal(root, place, aside).terminal, place, MAX_SECONDS + 60),)


def job_tools(root: Path, place: CommandPlace = LOCAL, aside: Aside | None = None) -> tuple[Tool, ...]:
    """job_start, job_list, job_output, job_wait and job_stop. Starting needs a yes, looking and stopping do
    not."""
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
async def looked_after(aside: Aside | None) -> AsyncIterator[None]:
    """Put aside what a command in this block leaves that acts later."""
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


def _noted(text: str, aside: Aside | None) -> str:
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
    """``run`` for a shell's command line in ``place``, where ``root`` (default ``directory``) is the working
    directory."""
    order = SupervisorOrder(place.shell(command), str(directory), TERM_GRACE)
    return await run(*place.entered(order, environment(), root or directory), limit, tells=tells)


def checked(root: Path, command: str, directory: str) -> Path:
    """Where the command runs. Raises ``ToolFailure`` for what is never run, and for what cannot be."""
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


def _shown(ended: ProcessEnded) -> str:
    output = ended.output.strip("\n") or "(no output)"
    return f"{output}\n{LEFT}" if ended.left else output


def _told(job: Job, since: int | None) -> str:
    state = job.state()  # before the output, so that what is read of an ended job is all of it
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
