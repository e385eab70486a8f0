"""Places to run commands in, chosen by ``sandbox.backend``.

>>> sandbox_of(SandboxSettings(), Path("/work")).name
'local'

A command keeps its contract in each of them: limits, output, interrupts, and that nothing of it is left when
the agent is gone. A backend that does not work is refused and never replaced by another one, because a person
who chose a wall does not look whether it is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import SandboxSettings
from fsm_agent.toolsets.sandbox.place import LOCAL, Boundary, CommandPlace

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside

__all__ = ["LOCAL", "CommandPlace", "aside_of", "sandbox_of", "usable_sandbox"]


def sandbox_of(rules: SandboxSettings, base: Path, secret: Path | None = None) -> CommandPlace:
    """Return the place that the settings name, for the working directory ``base``. ``secret``: the agent's
    own home, which no command in a sandbox sees."""
    boundary = Boundary(rules, base, secret)
    if rules.backend == "local":
        return LOCAL
    from fsm_agent.toolsets.sandbox.place import Bubblewrap, Container

    return Bubblewrap(boundary) if rules.backend == "bubblewrap" else Container(rules.backend, boundary)


def aside_of(rules: SandboxSettings, base: Path, secret: Path | None = None) -> Aside | None:
    """Return what takes away the files that commands in this sandbox leave and that act later; ``None`` where
    commands run in none."""
    if rules.backend == "local":
        return None
    from fsm_agent.toolsets.sandbox.aside import Aside

    allowed = [(base / os.path.expanduser(text)).resolve() for text in rules.writable]
    return Aside(base, secret, allowed)


def usable_sandbox(rules: SandboxSettings, base: Path, secret: Path | None = None) -> CommandPlace:
    """``sandbox_of`` for a backend that was tried and works. Raises ``ConfigError`` that says what to do when
    it does not."""
    place = sandbox_of(rules, base, secret)
    if trouble := place.trouble(base):
        raise ConfigError("sandbox.backend does not work here", f"{place.name}: {trouble[0]}", trouble[1])
    return place
