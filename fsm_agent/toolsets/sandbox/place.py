"""What a place to run commands in is asked for, and the place that is no sandbox."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fsm_agent.conversation.confinement import Confinement
from fsm_agent.toolsets.process_supervisor import SupervisorOrder

TRIAL = 10.0
"""Seconds that a backend may take to show that it works."""
LEFT = "[What it left running in the background was ended with it.]"
GRACE_INSIDE = f"""
trap : TERM
"$@"
code=$?
looks=25
while set -- /proc/[0-9]*; [ $# -gt 2 ] && [ "$looks" -gt 0 ]; do
  sleep 0.02
  looks=$((looks - 1))
done
[ $# -le 2 ] || echo "{LEFT}"
exit "$code"
"""
"""Runs a command as the second process of a sandbox, which ends with it: what the command leaves behind has
half a second to end by itself, as outside. Asked to end, it goes on for as long as the command does."""
TMP = "/tmp"  # noqa: S108  # a sandbox has its own

Trouble = tuple[str, str]
"""Why a place cannot be used, and what to do about it."""


class CommandPlace(Protocol):
    """Where commands run. ``confinement`` is ``None`` where nothing holds them."""

    @property
    def name(self) -> str:
        """Return the name in the settings."""

    @property
    def confinement(self) -> Confinement | None:
        """Return what the tools and their questions say of the place."""

    @property
    def python(self) -> str:
        """Return the program that runs Python there."""

    @property
    def hands_on(self) -> bool:
        """Say whether files that are open for the command are open for it there, too."""

    def shell(self, command: str) -> list[str]:
        """Return words that run a shell's command line there."""

    def entered(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Return the order and environment of a supervisor that has the command run there, in the working
        directory ``root``. Raises ``ConfigError`` for a root that cannot be shown."""

    def trouble(self, root: Path) -> Trouble | None:
        """Try the place; ``None`` when it works. Takes milliseconds, and ``TRIAL`` seconds at most."""


class Local:
    """This machine, with the rights of whoever runs the agent."""

    name = "local"
    confinement = None
    hands_on = True
    python = sys.executable

    def shell(self, command: str) -> list[str]:
        """Return words that run it with bash, or with ``/bin/sh`` where there is none."""
        return [shutil.which("bash") or "/bin/sh", "-c", command]

    def entered(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Return both as they are."""
        return order, dict(environ)

    def trouble(self, root: Path) -> Trouble | None:
        """Return ``None``: it always works."""
        return None


LOCAL = Local()


def with_grace(command: Sequence[str]) -> list[str]:
    """The words of ``GRACE_INSIDE`` for a command."""
    return ["sh", "-c", GRACE_INSIDE, "sh", *command]


def tried(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Run a program that shows whether something works: ``None`` when it does, else what it said last."""
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            command, env=environ, capture_output=True, text=True, timeout=TRIAL, stdin=subprocess.DEVNULL,
            check=False, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {TRIAL:g} s"
    except OSError as error:
        return error.strerror or str(error)
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"it ended with code {done.returncode}")
