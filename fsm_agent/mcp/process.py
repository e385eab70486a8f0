"""A server as a process of its own: how it is started, how it ends, and that none outlives this program."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GRACE = 1.0
"""Seconds that a process gets after its input was closed, and again after it was asked to end."""
LAST_GRACE = 0.5
"""Seconds for all of them together when this program ends."""
_POLL = 0.01

_GROUPS: dict[int, int] = {}
"""Process groups that are still to be ended, each with the process that started it: a fork of it ends none."""


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
        _GROUPS[late.pid] = os.getpid()
        await ended(late, polite=False)
        raise
    _GROUPS[process.pid] = os.getpid()
    return process


async def ended(process: asyncio.subprocess.Process, *, polite: bool) -> None:
    """End a process and all that it started: its input is closed, then it is asked, then it is killed. At most two graces;
    without politeness it is asked at once."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        if not (polite and await _gone(process)):
            _signal(process.pid, signal.SIGTERM)
            await _gone(process)
    finally:
        _signal(process.pid, _KILL)  # also for those of the group that outlive their parent
        _GROUPS.pop(process.pid, None)
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
    """Did it end within the grace? Asked for its code instead of waited for, because that would wait for its pipes too."""
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


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(group, number)
        else:
            os.kill(group, number)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Free the pipes although somebody who left the group may still hold their other ends; nothing public does it."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()


@atexit.register
def _end_all() -> None:
    """What is still there when the interpreter ends was never closed: it is asked, and then killed."""
    groups = [group for group, owner in list(_GROUPS.items()) if owner == os.getpid()]
    for group in groups:
        _signal(group, signal.SIGTERM)
    until = time.monotonic() + LAST_GRACE
    while time.monotonic() < until and any(map(_alive, groups)):
        time.sleep(_POLL)
    for group in groups:
        _signal(group, _KILL)


def _alive(group: int) -> bool:
    if not hasattr(os, "killpg"):
        return True
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
