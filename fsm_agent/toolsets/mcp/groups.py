"""The process groups of servers that are still to be ended, and who ends them when this program does not get
to it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from fsm_agent.toolsets.mcp import warden

log = logging.getLogger(__name__)

LAST_GRACE = 0.5
"""Seconds for all groups together when this program ends."""
_POLL = 0.01
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_POSIX = hasattr(os, "killpg")


class Groups:
    """Thread-safe. On systems without process groups each is a single process, and a server that does not
    heed the end of its input outlives a program that was killed."""

    def __init__(self) -> None:
        self._owned: dict[int, int] = {}
        """Each with the process that started it: a fork of it ends none."""
        self._lock = threading.Lock()
        self._warden: subprocess.Popen[bytes] | None = None
        self._warden_of = 0

    def add(self, group: int) -> None:
        """It was started: it is to end with this program, however that ends."""
        with self._lock:
            self._owned[group] = os.getpid()
            self._say(f"+{group} {warden.born(group)}")

    def remove(self, group: int) -> None:
        """It has ended."""
        with self._lock:
            self._owned.pop(group, None)
            if self._warden is None:
                return
            self._say(f"-{group}")
            if not self._owned:
                self._dismissed()

    def signal(self, group: int, number: signal.Signals) -> None:
        """Send a signal to a group of processes; one that is gone is no error."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _POSIX:
                os.killpg(group, number)
            else:
                os.kill(group, number)

    def kill(self, group: int) -> None:
        """Without asking; also those of the group that outlive their parent."""
        self.signal(group, _KILL)

    def end_all(self) -> None:
        """What is still there when the interpreter ends was never closed: it is asked, and then killed."""
        groups = [group for group, owner in list(self._owned.items()) if owner == os.getpid()]
        for group in groups:
            self.signal(group, signal.SIGTERM)
        until = time.monotonic() + LAST_GRACE
        while time.monotonic() < until and any(map(_alive, groups)):
            time.sleep(_POLL)
        for group in groups:
            self.kill(group)
        if self._warden is not None and self._warden_of == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._dismissed().wait(2 * warden.GRACE)

    def _dismissed(self) -> subprocess.Popen[bytes]:
        """The warden, who has nobody left and is about to end; somebody waits for that."""
        going, self._warden = self._warden, None
        assert going is not None
        assert going.stdin is not None
        with contextlib.suppress(OSError):
            going.stdin.close()
        threading.Thread(target=going.wait, name="fsm-agent-mcp-warden", daemon=True).start()
        return going

    def _say(self, line: str) -> None:
        """To the warden, who is started when there is something to say. One that cannot be is a risk, and no
        failure."""
        if not _POSIX:
            return
        try:
            if self._warden is None or self._warden_of != os.getpid() or self._warden.poll() is not None:
                self._warden, self._warden_of = _started(), os.getpid()
            assert self._warden.stdin is not None
            self._warden.stdin.write(line.encode() + b"\n")
            self._warden.stdin.flush()
        except OSError as error:
            log.warning("servers may outlive this program if it is killed: %s", error)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, "-I", "-S", str(Path(warden.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a key that stops the agent does not stop this first
    )


def _alive(group: int) -> bool:
    if not _POSIX:
        return True
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


GROUPS = Groups()
atexit.register(GROUPS.end_all)
