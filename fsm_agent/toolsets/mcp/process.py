"""A server as a process of its own: how it is started, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.toolsets.mcp.groups import GROUPS

GRACE = 1.0
"""Seconds that a process gets after its input was closed, and again after it was asked to end."""
_POLL = 0.01


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start: its whole environment is ``env``."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path = Path()


async def started(launch: Launch) -> asyncio.subprocess.Process:
    """The running process, with pipes, in a group of its own. Raises ``OSError`` that names the command.

    A cancellation while it starts ends it: it may be there before it is known.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            _found(launch),
            *launch.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=launch.cwd,
            env=dict(launch.env),
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        late = await starting
        GROUPS.add(late.pid)
        await ended(late, polite=False)
        raise
    GROUPS.add(process.pid)
    return process


async def ended(process: asyncio.subprocess.Process, *, polite: bool) -> None:
    """End a process and all that it started: its input is closed, then it is asked, then it is killed. At
    most two graces; without politeness it is asked at once."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        if not (polite and await _gone(process)):
            GROUPS.signal(process.pid, signal.SIGTERM)
            await _gone(process)
    finally:
        GROUPS.kill(process.pid)
        GROUPS.remove(process.pid)
    await _gone(process)
    _close_pipes(process)


def status_of(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


async def _gone(process: asyncio.subprocess.Process) -> bool:
    """Did it end within the grace? Asked for its code instead of waited for, because that would wait for its
    pipes too."""
    until = time.monotonic() + GRACE
    while process.returncode is None:
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_POLL)
    return True


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
