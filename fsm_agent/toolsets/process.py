"""Running a shell command as a process group of its own, with bounded output. POSIX only, because of the groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

HEAD = TAIL = 20_000
"""Bytes kept from the beginning and from the end of the output."""
TERM_GRACE = 1.0
"""Seconds between asking a group to end and killing it; less than the three that a tool has after an interrupt."""
_DRAIN = 0.5
"""Seconds to wait for output after the shell has ended, when a program in the background still holds the pipe."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True)
class Ended:
    """``code`` is negative for a signal. ``output`` is standard output and error in the order they came."""

    code: int
    output: str
    timed_out: bool


async def run_shell(command: str, directory: Path, limit: float) -> Ended:
    """Run ``command`` for at most ``limit`` seconds of real time. Cancelling kills its whole group.

    Nothing can be typed into it. What it leaves running in the background stays when it ends by itself. Raises
    ``OSError`` when it cannot be started.
    """
    output = _Output()
    read_end, write_end = os.pipe()
    try:
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
        try:
            process = await _started(command, directory, write_end)
        except BaseException:
            pipe.close()
            raise
    finally:
        os.close(write_end)
    try:
        timed_out = await _ended(process, limit)
        await asyncio.wait({output.closed}, timeout=_DRAIN)
    finally:
        pipe.close()
    assert process.returncode is not None
    return Ended(process.returncode, output.text(), timed_out)


async def _started(command: str, directory: Path, write_end: int) -> asyncio.subprocess.Process:
    """The shell's process. A cancellation while it starts kills it too: it may be there before it is known."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *(shutil.which("bash") or "/bin/sh", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            cwd=directory,
            env=_environment(),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _kill(await starting)
        raise


async def _ended(process: asyncio.subprocess.Process, limit: float) -> bool:
    """Wait for the process; ``True`` when it had to be killed. It is gone when this returns or raises."""
    try:
        async with asyncio.timeout(limit):
            await process.wait()
        return False
    except TimeoutError:
        await _kill(process)
        return True
    except asyncio.CancelledError:
        await _kill(process)
        raise


async def _kill(process: asyncio.subprocess.Process) -> None:
    _signal(process, signal.SIGTERM)
    try:
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=TERM_GRACE)
    finally:
        _signal(process, signal.SIGKILL)  # also for those of the group that outlive the shell
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _environment() -> dict[str, str]:
    """This process's environment without the keys of model providers, and set so that no program waits for a person."""
    kept = {
        name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and not name.startswith("FSM_AGENT_")
    }
    return {**kept, **_QUIET}


class _Output(asyncio.Protocol):
    """Keeps the head and the tail of what arrives and counts the rest."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 4 * TAIL:
            del self.tail[:-TAIL]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def text(self) -> str:
        tail = self.tail[-TAIL:]
        left_out = self.total - len(self.head) - len(tail)
        if not left_out:
            return _readable(self.head + tail)
        return f"{_readable(self.head)}\n… [{left_out:,} bytes left out] …\n{_readable(tail)}"


def _readable(data: bytearray) -> str:
    """Text without colours, and of a progress bar only its last state."""
    return _OVERWRITTEN.sub("", _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n"))
