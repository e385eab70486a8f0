"""Running a command under a supervisor, as a process group of its own, with bounded output. POSIX only,
because of the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsm_agent.providers.credentials import keyless_environment
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets import process_supervisor
from fsm_agent.toolsets.process_supervisor import SupervisorOrder, SupervisorReport

# ----------------------------------------------------------------------------------------------------
# What a program wrote, kept within bounds and made into plain text.


HEAD = TAIL = 20_000
"""Bytes kept from the beginning and from the end of the output."""
LINE = 1_000
"""Bytes among which the newest line is looked for."""
BLOCK = 50_000
"""Characters that are cleaned at once, in some milliseconds; control sequences are rarely longer."""

_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*+(?:\x1b\\|\x9c)?"  # device control and private strings
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor, screen
    r"|\x1b[ -/]*+[0-~]"
)
_STRUCK = re.compile("[^\n\x08]\x08")
_OTHER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 but tab and newline, C1, marks that change the direction of text, and letters that nobody sees but a
model reads."""


class Output:
    """Keeps the head and the tail of what arrives and counts the rest."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take more bytes; of very many only the beginning and the end are kept."""
        self.total += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 4 * TAIL:
            del self.tail[:-TAIL]

    def last_line(self) -> str:
        """Return the newest line that is not empty, as far as it was written."""
        newest = (self.tail or self.head)[-LINE:]
        return next((line for line in reversed(readable(newest).split("\n")) if line.strip()), "")

    def text(self) -> str:
        """Return what was kept, and say how much is left out."""
        tail = self.tail[-TAIL:]
        left_out = self.total - len(self.head) - len(tail)
        if not left_out:
            return readable(self.head + tail)
        return f"{readable(self.head)}\n… [{left_out:,} bytes left out] …\n{readable(tail)}"


def readable(data: bytes | bytearray) -> str:
    """Text as a person would see it in the end: without colours and other control sequences, and of a line
    that was written over and over, such as a progress bar, only its last state.

    Done block by block, so that a long text in a thread does not hold up the others."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(_plain(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """Pieces that end with a line, but for lines that are longer than a block."""
    place = 0
    while place < len(text):
        end = text.find("\n", place + BLOCK, place + 2 * BLOCK) + 1 or place + 2 * BLOCK
        yield text[place:end]
        place = end


def _plain(text: str) -> str:
    text = _STRUCK.sub("", _SEQUENCE.sub("", text))
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _OTHER.sub("", text)


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part), "")


TERM_GRACE = 1.0
"""Seconds between asking a group to end and killing it; less than the three that a tool has after an
interrupt."""
_SUPERVISOR_GRACE = 5.0
"""Seconds that a supervisor may take to end its command; it is killed after that, and the command with it."""
_DRAIN = 0.5
"""Seconds to wait for output after the end, when a daemon still holds the pipe."""
_TOLD = 0.1
"""Seconds between two lines of output that are told while a command runs."""
STOP = b"stop"
DEVNULL, PIPE = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE

Beside = Callable[[asyncio.Timeout], Coroutine[Any, Any, None]]
"""What goes on beside a command, given its time limit."""

_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """``code`` is negative for a signal. ``output`` is standard output and error in the order they came.
    ``left``: something that the command had left running was ended with it."""

    code: int
    output: str
    timed_out: bool
    left: bool = False


def environment() -> dict[str, str]:
    """This process's environment without the keys of model providers, and set so that no program waits for a
    person."""
    return {**keyless_environment(), **_QUIET}


def supervisor_words(order: SupervisorOrder, line: socket.socket) -> list[str]:
    """The command line of a supervisor, which is handed ``line``."""
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


def report_from(line: socket.socket, said: bytes = b"") -> SupervisorReport:
    """What a supervisor that has ended had to say, after what it ``said`` before. Never waits."""
    line.setblocking(False)
    with contextlib.suppress(OSError):
        while piece := line.recv(65_536):
            said += piece
    return (
        SupervisorReport(**json.loads(said))
        if said.strip()
        else SupervisorReport(-9, error="the process that watches over it was killed")
    )


@contextlib.contextmanager
def run_errors() -> Iterator[None]:
    """Why a program could not be run, as a tool's failure in one short line."""
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
    """Run a command for at most ``limit`` seconds of real time. Cancelling ends all that it started, and so
    does the end of this process, whatever the reason. ``beside`` runs for as long as the command, and may
    move its time limit. ``tells`` gets the newest line of its output now and then.

    Nothing can be typed into it. Raises ``OSError`` when it cannot be started.
    """
    loop, output = asyncio.get_running_loop(), _PipeReader(tells)
    line, far_end = socket.socketpair()
    read_end, write_end = os.pipe()
    with line:
        try:
            pipe, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
            try:
                process = await started(order, environ, line, far_end, DEVNULL, write_end)
            except BaseException:
                pipe.close()
                raise
        finally:
            far_end.close()
            os.close(write_end)
        try:
            timed_out = await _ended(process, line, limit, beside)
            await asyncio.wait({output.closed}, timeout=_DRAIN)
        finally:
            pipe.close()
        report = report_from(line)
    if report.error:
        raise OSError(report.error)
    return ProcessEnded(report.code, output.kept.text(), timed_out, report.left and not timed_out)


async def started(
    order: SupervisorOrder,
    environ: Mapping[str, str],
    line: socket.socket,
    far_end: socket.socket,
    stdin: int,
    out: int,
) -> asyncio.subprocess.Process:
    """Start a supervisor; its command's standard input is ``stdin``, output and error are ``out``. A
    cancellation while it starts ends it too: it may be there before it is known."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *supervisor_words(order, far_end),
            stdin=stdin,
            stdout=out,
            stderr=out,
            env=environ,
            pass_fds=(far_end.fileno(), *order.passed),
            start_new_session=True,  # a key that stops the agent does not stop this first
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await stop(await starting, line)
        raise


async def _ended(
    process: asyncio.subprocess.Process, line: socket.socket, limit: float, beside: Beside | None
) -> bool:
    """Wait for the process; ``True`` when it had to be ended. It is gone when this returns or raises."""
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
    """Have a supervisor end its command and all that it started; they are gone when this returns."""
    with contextlib.suppress(OSError):
        line.send(STOP)
    try:
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=TERM_GRACE + _SUPERVISOR_GRACE)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()  # also when nobody waits any longer: the loop may end next


class _PipeReader(asyncio.Protocol):
    def __init__(self, tells: Callable[[str], None] | None = None) -> None:
        self.kept = Output()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tells = tells
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.kept.add(data)
        if self._tells is not None and self._timer is None:
            self._timer = self._later(_TOLD)

    def _later(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self._tells is not None and (line := self.kept.last_line()):
            self._tells(line)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
