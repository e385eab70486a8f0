"""A script that ends programs whose agent is gone: after ``kill -9`` nobody else is left to do it.

It runs with the standard library only and reads lines from its standard input: ``+GROUP BORN`` for a process
group to end, ``-GROUP`` for one that has ended. When the input ends the agent has, however it did: each group
that is still there is asked to end, and killed a second later. ``BORN`` is when the group's first process was
started, as the system counts, so that a number that was given away again hurts nobody; empty where the system
does not tell. (Why: decision 60.)"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE = 1.0
"""Seconds between asking and killing."""
_LOOK = 0.02


def born(pid: int) -> str:
    """When a process was started, in ticks since the system was; empty when that cannot be said."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def same(group: int, when: str) -> bool:
    """Is it still the group that was meant? One whose first process has gone keeps its number for as long as
    others are in it."""
    now = born(group)
    return not when or not now or now == when


def tell(groups: dict[int, str], number: int) -> bool:
    """Signal all groups; was there any?"""
    found = False
    for group, when in groups.items():
        if same(group, when):
            try:
                os.killpg(group, number)
                found = True
            except (ProcessLookupError, PermissionError):
                pass
    return found


def main() -> int:
    """Listen until the agent is gone, then clean up after it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what ends the agent must not end this first
    groups: dict[int, str] = {}
    for line in sys.stdin:
        words = line[1:].split()
        if line[:1] == "+" and words:
            groups[int(words[0])] = words[1] if len(words) > 1 else ""
        elif line[:1] == "-" and words:
            groups.pop(int(words[0]), None)
    until = time.monotonic() + GRACE
    tell(groups, signal.SIGTERM)
    while time.monotonic() < until and tell(groups, 0):
        time.sleep(_LOOK)
    tell(groups, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
