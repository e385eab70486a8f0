"""Runs a command under a supervisor, in its own process group, with bounded output. POSIX only, because of
process groups."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsm_agent.providers.credentials import keyless_environment
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets import process_supervisor
from fsm_agent.toolsets.process_supervisor import SupervisorOrder, SupervisorReport

# A program's output, bounded and reduced to plain text.


HEAD = TAIL = 20_000
"""Bytes kept from the beginning and from the end of the output."""
LINE = 1_000
"""Bytes at the end that are searched for the newest line."""
BLOCK = 50_000
"""Characters to clean at once, which takes a few milliseconds; control sequences are rarely longer."""

_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*+(?:\x1b\\|\x9c)?"  # device control and private strings
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colors, cursor, screen
    r"|\x1b[ -/]*+[0-~]"
)
_STRUCK = re.compile("[^\n\x08]\x08")
_OTHER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 except tab and newline, C1, bidirectional marks, and letters that only a model can see."""


class Output:
    """Keeps the head and the tail of the output and counts the rest."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self.total += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 4 * TAIL:
            del self.tail[:-TAIL]

    def last_line(self) -> str:
        """Return the newest non-empty line so far."""
        newest = (self.tail or self.head)[-LINE:]
        return next((line for line in reversed(readable(newest).split("\n")) if line.strip()), "")

    def text(self) -> str:
        """Return the kept output, with the number of bytes that are left out."""
        tail = self.tail[-TAIL:]
        left_out = self.total - len(self.head) - len(tail)
        if not left_out:
            return readable(self.head + tail)
        return f"{readable(self.head)}\n… [{left_out:,} bytes left out] …\n{readable(tail)}"


def readable(data: bytes | bytearray) -> str:
    """Return text as a terminal would finally show it: without colors and other control sequences, and with
    only the last state of an overwritten line, such as a progress bar.

    Works block by block, so that a long text in a thread does not block others."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(_plain(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """Yield pieces that end at a line end, unless a line is longer than a block."""
    place = 0
    while place < len(text):
        end = text.find("\n", place + BLOCK, place + 2 * BLOCK) + 1 or place + 2 * BLOCK
        yield text[place:end]
        place = end


def _plain(text: str) -> str:
    text = _STRUCK.sub("", _SEQUENCE.sub("", text))
    if "\r" in text:
        # keep only the last state of an overwritten line
        states = (filter(None, reversed(line.split("\r"))) for line in text.split("\n"))
        text = "\n".join(next(state, "") for state in states)
    return _OTHER.sub("", text)


TERM_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL; less than the three that a tool gets after an interrupt."""
_SUPERVISOR_GRACE = 5.0
"""Seconds for a supervisor to end its command; then it is killed together with the command."""
_DRAIN = 0.5
"""Seconds to wait for output after the end, if a daemon still holds the pipe."""
_PROGRESS_EVERY = 0.1
"""Seconds between progress lines while a command runs."""
STOP = b"stop"
DEVNULL, PIPE = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE

Beside = Callable[[asyncio.Timeout], Coroutine[Any, Any, None]]
"""A coroutine that runs beside a command and receives its time limit."""

_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The outcome of a command. ``code`` is negative for a signal. ``output`` interleaves standard output and
    error. ``left``: the command left a process running, which was ended."""

    code: int
    output: str
    timed_out: bool
    left: bool = False


def environment() -> dict[str, str]:
    """Return this process's environment without the keys of model providers, and with settings that keep
    programs from waiting for input."""
    return {**keyless_environment(), **_QUIET}


def supervisor_words(order: SupervisorOrder, line: socket.socket) -> list[str]:
    """Return the command line of a supervisor that inherits ``line``."""
    script = process_supervisor.__file__
    return [
        sys.executable,
        "-I",
        "-S",
        "-X",
        "utf8",
        script,
        json.dumps(order._replace(line=line.fileno())._asdict()),
    ]


def report_from(line: socket.socket, data: bytes = b"") -> SupervisorReport:
    """Read the report of a supervisor that has ended; ``said`` was read before. Never waits."""
    line.setblocking(False)
    with contextlib.suppress(OSError):
        while piece := line.recv(65_536):
            data += piece
    return (
        SupervisorReport(**json.loads(data))
        if data.strip()
        else SupervisorReport(-9, error="the process that watches over it was killed")
    )


@contextlib.contextmanager
def run_errors() -> Iterator[None]:
    """Turn a failed start into a one-line tool failure."""
    try:
        yield
    except OSError as error:
        raise ToolFailure(f"It could not be run: {error.strerror or error}.") from None


async def run(
    order: SupervisorOrder,
    environ: Mapping[str, str],
    limit: float,
    beside: Beside | None = None,
    tells: Callable[[str], None] | None = None,
) -> ProcessEnded:
    """Run a command for at most ``limit`` seconds of real time. Cancellation ends everything that it started,
    and so does the end of this process for any reason. ``beside`` runs as long as the command and may change
    its time limit. ``tells`` receives the newest line of output now and then.

    Standard input is closed. Raises ``OSError`` when the command cannot be started."""
    loop, output = asyncio.get_running_loop(), _PipeReader(tells)
    line, far_end = socket.socketpair()
    read_end, write_end = os.pipe()
    with line:
        try:
            pipe, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
            try:
                process = await start_supervisor(order, environ, line, far_end, DEVNULL, write_end)
            except BaseException:
                pipe.close()
                raise
        finally:
            far_end.close()
            os.close(write_end)
        try:
            timed_out = await _wait_for(process, line, limit, beside)
            await asyncio.wait({output.closed}, timeout=_DRAIN)
        finally:
            pipe.close()
        report = report_from(line)
    if report.error:
        raise OSError(report.error)
    return ProcessEnded(report.code, output.kept.text(), timed_out, report.left and not timed_out)


async def start_supervisor(
    order: SupervisorOrder,
    environ: Mapping[str, str],
    line: socket.socket,
    far_end: socket.socket,
    stdin: int,
    out: int,
) -> asyncio.subprocess.Process:
    """Start a supervisor; its command's standard input is ``stdin``, output and error are ``out``.
    Cancellation during the start ends it too, because it may already be running."""
    starting = asyncio.create_subprocess_exec(
        *supervisor_words(order, far_end),
        stdin=stdin,
        stdout=out,
        stderr=out,
        env=environ,
        pass_fds=(far_end.fileno(), *order.passed),
        start_new_session=True,  # keeps the key that stops the agent from stopping this first
    )
    return await started(starting, lambda process: stop(process, line))


async def started(
    starting: Coroutine[Any, Any, asyncio.subprocess.Process],
    end: Callable[[asyncio.subprocess.Process], Awaitable[None]],
) -> asyncio.subprocess.Process:
    """Wait until a process has started. Cancellation meanwhile ends it, because it may already be running."""
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await end(await task)
        raise


def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process unless it has ended.

    ``Process.kill`` first collects the exit status of a process that has just ended. asyncio then finds no
    such process, logs a warning, and reports status 255. This looks without collecting."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        if not hasattr(os, "waitid"):
            process.kill()
        elif (
            process.returncode is None
            and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            os.kill(process.pid, signal.SIGKILL)


async def _wait_for(
    process: asyncio.subprocess.Process, line: socket.socket, limit: float, beside: Beside | None
) -> bool:
    """Wait for the process; return ``True`` if it had to be ended. It is gone when this returns or raises."""
    try:
        async with asyncio.timeout(limit) as clock, contextlib.AsyncExitStack() as stack:
            if beside is not None:
                other = asyncio.ensure_future(beside(clock))
                stack.callback(other.cancel)
            await process.wait()
        return False
    except TimeoutError:
        await stop(process, line)
        return True
    except asyncio.CancelledError:
        await stop(process, line)
        raise


async def stop(process: asyncio.subprocess.Process, line: socket.socket) -> None:
    """Have a supervisor end its command and all that it started; these are gone when this returns."""
    with contextlib.suppress(OSError):
        line.send(STOP)
    try:
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=TERM_GRACE + _SUPERVISOR_GRACE)
    finally:
        kill(process)
        await process.wait()  # also without a waiting caller: the loop may end next


class _PipeReader(asyncio.Protocol):
    def __init__(self, tells: Callable[[str], None] | None = None) -> None:
        self.kept = Output()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tells = tells
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.kept.add(data)
        if self._tells is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_EVERY, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self._tells is not None and (line := self.kept.last_line()):
            self._tells(line)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
