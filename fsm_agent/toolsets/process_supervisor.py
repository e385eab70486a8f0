"""A script that supervises one command: it ends the command, with everything that it started, as soon as
the agent no longer needs it.

It runs in its own process with the standard library only, because only another process can clean up after
an agent that was killed. Its one argument is a ``SupervisorOrder`` as JSON. It shares a socket with the
agent: when the other end closes, for any reason, or sends anything, the command is ended; the script writes
a space to it when the command runs, and a ``SupervisorReport`` as JSON when it has ended. Standard input,
output and error belong to the command; the script exits with the command's code or signal. (Why: decisions
36 and 60.)"""

# MCP servers use the same supervisor as commands. A parent-death signal misses grandchildren, so another
# process must stop what a killed agent leaves. One supervisor per server costs some megabytes and a few
# hundredths of a second; it also stops processes that left the server's group, and there is a single
# mechanism to trust.

# A supervisor process per command. Only another process can clean up after `kill -9`; a parent-death signal
# alone misses grandchildren and daemons. It costs about 50 ms per command.

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

LOOK = 0.02
"""Seconds between checks of a group that was asked to end."""
SETTLE = 0.5
"""Seconds for leftovers of a command to end by themselves, such as the ``tee`` of a process substitution."""
SWEEPS = 50
FINISH = 3.0
"""Time limit of the cleanup program, in seconds."""
_SUBREAPER, _DEATH_SIGNAL = 36, 1
"""``prctl`` numbers of Linux."""


class SupervisorOrder(NamedTuple):
    """``command``: words, started in ``directory``. ``line``: file descriptor of the socket to the agent.
    ``grace``: seconds between SIGTERM and SIGKILL. ``limits``: by the names of the resource module without
    ``RLIMIT_``. ``log``: a folder for the newest ``log_bytes`` of output; without it, output goes where
    this script's own goes. ``sweep``: at the end also end daemons that left the process group. ``limit``:
    seconds until the command is ended, 0 for never. ``held``: the command is a sandbox; ask the processes
    inside to end instead of its own two, which end everything. ``finish``: command line of a program that
    cleans up what the command left elsewhere; always run at the end. ``passed``: file descriptors for the
    command only."""

    command: list[str]
    directory: str
    grace: float = 1.0
    limits: dict[str, int] = {}  # noqa: RUF012  # never changed
    log: str = ""
    log_bytes: int = 0
    sweep: bool = False
    limit: float = 0
    line: int = -1
    held: bool = False
    finish: list[str] = []  # noqa: RUF012  # never changed
    passed: list[int] = []  # noqa: RUF012  # never changed


class SupervisorReport(NamedTuple):
    """``code`` is negative for a signal. ``left``: a process that the command had started was still running
    and was ended. ``late``: the limit was reached. ``error``: why the command could not be started."""

    code: int
    left: bool = False
    late: bool = False
    error: str = ""
    seconds: float = 0.0


class Log:
    """Output in files named by the offset of their first byte; the newest two are kept, each half the
    size."""

    def __init__(self, folder: str, size: int) -> None:
        self.folder, self.half = folder, max(1, size // 2)
        self.total = 0
        self.names: list[str] = []
        self._next()

    def write(self, data: bytes) -> None:
        while data:
            piece = data[: self.half - self.file.tell()]
            self.file.write(piece)
            self.total += len(piece)
            data = data[len(piece) :]
            if self.file.tell() >= self.half:
                self.file.close()
                self._next()

    def _next(self) -> None:
        name = os.path.join(self.folder, f"{self.total:020d}")
        self.file = open(name, "xb", buffering=0)  # noqa: SIM115  # open for as long as the command runs
        self.names.append(name)
        if len(self.names) > 2:
            os.unlink(self.names.pop(0))


class Supervisor:
    """Runs one command from start to end."""

    def __init__(self, order: SupervisorOrder, agent: socket.socket) -> None:
        self.order, self.agent = order, agent
        self.unwanted = self.orphaned = self.late = False
        self.deadline = time.monotonic() + order.limit if order.limit else float("inf")
        self.log = Log(order.log, order.log_bytes) if order.log else None
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._stop)

    def supervise(self) -> SupervisorReport:
        """Run the command to its end. Raises ``OSError`` when it cannot be started."""
        began = time.monotonic()
        self.child = subprocess.Popen(  # noqa: S603  # what the agent's person has agreed to
            self.order.command,
            cwd=self.order.directory,
            stdout=subprocess.PIPE if self.log else None,
            stderr=subprocess.STDOUT if self.log else None,
            start_new_session=True,
            pass_fds=self.order.passed,
            preexec_fn=self._confine,  # safe: this process has one thread
        )
        for number in self.order.passed:
            os.close(number)
        with contextlib.suppress(OSError):  # an agent that was killed just now; the next look notices
            self.agent.send(b" ")
        _let_go_of_pipes()
        source = self.child.stdout.fileno() if self.child.stdout else None
        while self.child.poll() is None and not self.unwanted:
            source = self._look(source)
        left = not self.unwanted and not self._gone_within(SETTLE)
        if self.unwanted or left:
            self._ask()
            self._gone_within(self.order.grace)
            _signal_group(self.child.pid, signal.SIGKILL)
        code = self.child.wait()
        if self.unwanted or self.order.sweep:
            left = self._swept() or left
        self._drain(source)
        self._finish()
        return SupervisorReport(code, left, self.late, seconds=time.monotonic() - began)

    def _confine(self) -> None:
        import resource  # systems without process groups lack it

        _prctl(_DEATH_SIGNAL, signal.SIGKILL)  # in case this script itself is killed
        for name, value in self.order.limits.items():
            number = getattr(resource, f"RLIMIT_{name}", None)
            if number is not None:
                hard = resource.getrlimit(number)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(number, (value, value))

    def _ask(self) -> None:
        """Ask processes that may need to clean up to end."""
        if not self.order.held:
            _signal_group(self.child.pid, signal.SIGTERM)
            return
        waiting = [second for first in _children(self.child.pid) for second in _children(first)]
        while waiting:
            pid = waiting.pop()
            waiting += _children(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _finish(self) -> None:
        if self.order.finish:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(self.order.finish, timeout=FINISH, check=False)  # noqa: S603  # the agent's own

    def _stop(self, *_: Any) -> None:
        self.unwanted = True

    def _look(self, source: int | None) -> int | None:
        """Wait for output, the agent, or the end of a child."""
        inputs = [self.agent.fileno(), self.woken, *([] if source is None else [source])]
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            self.unwanted = self.late = True
            return source
        ready, _, _ = select.select(inputs, [], [], min(remaining, 3600))
        if self.agent.fileno() in ready:
            self.unwanted, self.orphaned = True, _is_gone(self.agent)
        if self.woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.woken, 4096)
            self._reap()
        return self._copy(source) if source in ready else source

    def _copy(self, source: int | None) -> int | None:
        assert source is not None
        assert self.log is not None
        data = os.read(source, 1 << 16)
        if not data:
            return None
        self.log.write(data)
        return source

    def _drain(self, source: int | None) -> None:
        """Read the rest of the pipe; a process that left the group may hold it open forever."""
        while source is not None and select.select([source], [], [], 0)[0]:
            source = self._copy(source)

    def _gone_within(self, seconds: float) -> bool:
        """Return whether the whole group ended within these seconds."""
        deadline = time.monotonic() + seconds
        while True:
            self._reap()
            if not _signal_group(self.child.pid, 0):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK)

    def _swept(self) -> bool:
        """Kill processes that left the group, which became children of this script; return whether there
        were any."""
        found = False
        for _ in range(SWEEPS):
            children = list(_children(os.getpid()))
            for pid in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not children:
                break
            found = True
        return found

    def _reap(self) -> None:
        """Reap children that ended; adopted ones would otherwise stay in their group forever."""
        self.child.poll()
        while hasattr(os, "waitid"):
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self.child.pid:
                self.child.poll()
            else:
                os.waitpid(ended.si_pid, 0)

    def tidy(self) -> None:
        """Delete the output after the agent has gone, and the folder around it if this was the last."""
        if not (self.orphaned and self.log):
            return
        self.log.file.close()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.order.log):
                os.unlink(entry.path)
            os.rmdir(self.order.log)
            os.rmdir(os.path.dirname(self.order.log))


def _is_gone(agent: socket.socket) -> bool:
    try:
        return not agent.recv(4096)
    except ConnectionResetError:  # the agent went without reading everything
        return True


def _let_go_of_pipes() -> None:
    """Close the command's own pipes, so that the other ends notice when the command closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _signal_group(group: int, number: int) -> bool:
    """Signal the group; return whether it exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _children(of: int) -> Iterator[int]:
    """Return the running children of a process, as far as the system shows them."""
    try:
        numbers = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for number in numbers:
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file,
        ):
            state, parent = file.read().rpartition(")")[2].split()[:2]
            if parent == str(of) and state != "Z":
                yield int(number)


def _prctl(option: int, value: int) -> None:
    """Call ``prctl`` on Linux; other systems have no equivalent."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> int:
    """Execute the order in ``sys.argv[1]``."""
    order = SupervisorOrder(**json.loads(sys.argv[1]))
    agent = socket.socket(fileno=order.line)
    agent.set_inheritable(False)
    _prctl(_SUBREAPER, 1)
    supervisor = Supervisor(order, agent)
    try:
        report = supervisor.supervise()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        report = SupervisorReport(127, error=str(error))
    with contextlib.suppress(OSError):
        agent.sendall(json.dumps(report._asdict()).encode())
    supervisor.tidy()
    if report.code < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-report.code, signal.SIG_DFL)
        os.kill(os.getpid(), -report.code)
    return max(report.code, 0)


if __name__ == "__main__":
    sys.exit(main())
