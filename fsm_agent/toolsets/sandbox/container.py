"""Commands in a container of their own, made by the command line of Docker or Podman and removed
afterwards."""

from __future__ import annotations

import csv
import io
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsm_agent.conversation.confinement import Confinement
from fsm_agent.toolsets.process import environment
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.sandbox.boundary import Access, Boundary
from fsm_agent.toolsets.sandbox.bubblewrap import network
from fsm_agent.toolsets.sandbox.place import TMP, Trouble, tried, with_grace

PROCESSES = 512
_SHELL = 'exec "$(command -v bash || command -v sh)" -c "$1"'
_OWN = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "USER"})
"""Variables that an image has its own values for."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of ``sandbox.image`` for each command; the program ``name`` talks to the engine."""

    name: Literal["docker", "podman"]
    boundary: Boundary
    hands_on: bool = False
    python: str = "python3"

    @property
    def confinement(self) -> Confinement:
        """Return what the tools and their questions say of it."""
        rules = self.boundary.rules
        return Confinement(
            f"in the sandbox ({self.name} {rules.image}, {network(rules.network)})", rules.free
        )

    def shell(self, command: str) -> list[str]:
        """Return words that run it with the image's bash, or with its ``sh``."""
        return ["sh", "-c", _SHELL, "sh", command]

    def entered(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Have the engine run the command. Limits of the system become those of the container."""
        name = f"fsm-agent-{uuid.uuid4().hex}"
        variables = {k: v for k, v in self.boundary.variables(environ).items() if k not in _OWN}
        command = [
            *(self.name, "run", "--rm", "--init", "--name", name, "--pull", "never"),
            *("--network", "bridge" if self.boundary.rules.network else "none", "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
            *("--pids-limit", str(PROCESSES), "--user", f"{os.getuid()}:{os.getgid()}"),
            *(["--userns", "keep-id"] if self.name == "podman" and os.getuid() else []),
            *("--tmpfs", f"{TMP}:exec,mode=1777", "--workdir", order.directory),
            *(word for one in self.boundary.files(root).items() for word in _mounted(*one)),
            *(word for limit, value in order.limits.items() for word in _limited(limit, value)),
            *(word for one in {"HOME": TMP, **variables}.items() for word in ("--env", "=".join(one))),
            *("--env", "TINI_KILL_PROCESS_GROUP=1", "--entrypoint", "", self.boundary.rules.image),
            *with_grace(order.command),
        ]
        ended = [self.name, "rm", "--force", name]
        return order._replace(command=command, limits={}, finish=ended), environment()

    def trouble(self, root: Path) -> Trouble | None:
        """Look for the program, the engine and the image."""
        image = self.boundary.rules.image
        if shutil.which(self.name) is None:
            return f"there is no {self.name}", f"install {self.name}, or choose another sandbox.backend"
        if said := tried([self.name, "ps", "--quiet"], environment()):
            return said, f"start the engine of {self.name}, or choose another sandbox.backend"
        if tried([self.name, "image", "inspect", image], environment()):
            return f"there is no image {image}", f"{self.name} pull {image}, or another sandbox.image"
        self.boundary.files(root)
        return None


def _mounted(path: Path, access: Access) -> list[str]:
    if access == "empty":
        return ["--tmpfs", f"{path}:mode=0777"]
    row = io.StringIO()
    parts = ["type=bind", f"source={path}", f"target={path}", *(["readonly"] if access == "read" else [])]
    csv.writer(row, lineterminator="").writerow(parts)
    return ["--mount", row.getvalue()]


def _limited(name: str, value: int) -> list[str]:
    """Processes are counted by container already, and not by user."""
    return [] if name == "NPROC" else ["--ulimit", f"{name.lower()}={value}"]
