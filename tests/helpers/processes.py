"""Processes of this checkout's code, and which there are: for tests that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.helpers.waiting import until

PROC = Path("/proc")


def environment(*first: Path, **more: str) -> dict[str, str]:
    """This process's variables and ``more``, with the packages of this checkout to be imported, and before them
    what is in the ``first`` folders."""
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*first, root, root / "states"))), **more}


def ran(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python command that was run to its end, with all that it printed."""
    usual = {"capture_output": True, "text": True, "timeout": 300, "env": environment(), "check": False}
    return subprocess.run([sys.executable, *command], **{**usual, **options})


def printed(*command: str | Path, **options: Any) -> str:
    """What a Python command prints that ends well."""
    done = ran(*command, **options)
    assert done.returncode == 0, done.stderr[-3_000:]
    return str(done.stdout)


class CommandProcess:
    """One command of ``fsm-agent``. ``world``: the folder of its log, and where the tools of ``tests.dispatch.app``
    count what they did. It serves when it has written its ``sign``."""

    sign: ClassVar[str]

    def __init__(self, world: Path, home: Path, *words: str, database_url: str | None, **more: str) -> None:
        self._log = world / f"{words[0]}-{len(list(world.glob(f'{words[0]}-*')))}.log"
        stored = {} if database_url is None else {"FSM_AGENT_STORE__DATABASE_URL": database_url}
        own = {"FSM_AGENT_HOME": str(home), "DISPATCH_WORLD": str(world), **stored, **more}
        program = [sys.executable, "-m", "fsm_agent", *words]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                program, env=environment(**own), stdout=log, stderr=log, cwd=world
            )

    @property
    def said(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def serves(self) -> Self:
        """Return when it serves."""
        until(lambda: self.sign in self.said or self.process.poll() is not None, f"{self.sign} of a process")
        assert self.process.poll() is None, self.said
        return self

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def alive(pid: int) -> bool:
    """Is there such a process, and is it more than a name in a table?"""
    return pid in _table()


def children(parent: int | None = None) -> set[int]:
    """Processes that ``parent`` (default: this one) started and that still run."""
    parent = os.getpid() if parent is None else parent
    running = {
        pid: command(pid) for pid, by in _table().items() if by == parent
    }  # no words: it ended while we looked
    return {pid for pid, words in running.items() if words}


def command(pid: int) -> str:
    """The words of its command line; empty when that cannot be seen."""
    try:
        if PROC.is_dir():
            return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


def _table() -> dict[int, int]:
    """Every running process with the one that started it, without those that ended and were not collected
    yet."""
    found = {}
    for pid, by, state in _from_proc() if PROC.is_dir() else _from_ps():
        if not state.startswith("Z"):
            found[pid] = by
    return found


def _from_proc() -> list[tuple[int, int, str]]:
    rows = []
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                state, by = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # it ended while we looked
                continue
            rows.append((int(entry.name), int(by), state))
    return rows


def _from_ps() -> list[tuple[int, int, str]]:
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    return [
        (int(pid), int(by), state) for pid, by, state in (line.split() for line in done.stdout.splitlines())
    ]
