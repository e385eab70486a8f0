"""A server as a process under a supervisor: how it is started, and how it ends, also when this program is
killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.toolsets import process as supervised
from fsm_agent.toolsets.process_supervisor import SETTLE, SupervisorOrder

GRACE = 1.0
"""Seconds that a server gets after its input was closed, and again after it was asked to end."""
_POLL = 0.01
_POSIX = os.name == "posix"


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start: its whole environment is ``env``."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path = Path()


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """``process`` has the server's pipes and ends as it does; without a ``line`` to a supervisor (on systems
    without process groups) it is the server itself, which then may outlive a program that was killed."""

    process: asyncio.subprocess.Process
    line: socket.socket | None

    async def end(self, *, polite: bool) -> None:
        """End the server and all that it started: its input is closed, then it is asked, then it is killed.
        At most two graces; without politeness it is asked at once."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            if not (polite and await self._gone(GRACE + SETTLE)):
                self._ask()
                await self._gone(2 * GRACE + SETTLE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            if self.line is not None:
                self.line.close()
        await self._gone(GRACE)
        _close_pipes(self.process)

    def _ask(self) -> None:
        with contextlib.suppress(OSError):
            if self.line is not None:
                self.line.send(supervised.STOP)
            else:
                self.process.terminate()

    async def _gone(self, seconds: float) -> bool:
        """Did it end in time? Asked for its code instead of waited for, because that would wait for its pipes
        too."""
        until = time.monotonic() + seconds
        while self.process.returncode is None:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_POLL)
        return True


async def started(launch: Launch) -> ServerProcess:
    """Return the running server. Raises ``OSError`` that names the command. A cancellation while it starts
    ends it."""
    command = [_found(launch), *launch.args]
    if not _POSIX:
        pipe = supervised.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=launch.cwd, env=dict(launch.env)
        )
        return ServerProcess(process, None)
    line, far_end = socket.socketpair()
    line.setblocking(False)
    order = SupervisorOrder(command, str(launch.cwd), GRACE)
    with far_end:
        try:
            process = await supervised.started(
                order, launch.env, line, far_end, supervised.PIPE, supervised.PIPE
            )
        except BaseException:
            line.close()
            raise
    server = ServerProcess(process, line)
    said = b""
    try:
        said = await asyncio.get_running_loop().sock_recv(line, 1)
        if said != b" ":
            await process.wait()
            raise OSError(supervised.report_from(line, said).error)
    except BaseException:
        await server.end(polite=said != b"")
        raise
    return server


def status_of(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def _found(launch: Launch) -> str:
    if os.sep in launch.command or "/" in launch.command:
        return str(launch.cwd / Path(launch.command).expanduser())
    path = shutil.which(launch.command, path=launch.env.get("PATH"))
    if path is None:
        raise FileNotFoundError(f"there is no command {launch.command!r}")
    return path


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Free the pipes although somebody who left the group may still hold their other ends; nothing public
    does it."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()
