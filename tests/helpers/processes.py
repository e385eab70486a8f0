"""Processes of this checkout's code, and which there are: for tests that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def environment(**more: str) -> dict[str, str]:
    """This process's variables and ``more``, with the packages of this checkout to be imported."""
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'states'}", **more}


def ran(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python command that was run to its end, with all that it printed."""
    usual = {"capture_output": True, "text": True, "timeout": 300, "env": environment(), "check": False}
    return subprocess.run([sys.executable, *command], **{**usual, **options})


def printed(*command: str | Path, **options: Any) -> str:
    """What a Python command prints that ends well."""
    done = ran(*command, **options)
    assert done.returncode == 0, done.stderr[-3_000:]
    return str(done.stdout)


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
