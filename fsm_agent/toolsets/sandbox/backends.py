"""Sandboxes: namespaces made by ``bwrap`` on Linux, and containers of Docker or Podman."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsm_agent.tools.decorator import Confinement
from fsm_agent.toolsets.process import environment
from fsm_agent.toolsets.process_supervisor import SupervisorOrder
from fsm_agent.toolsets.sandbox import LOCAL, TMP, Access, Boundary, Trouble, try_program, with_grace

# Commands in namespaces of their own, made by ``bwrap`` (Linux).
#
# They see the programs of the system, the working directory and little else: a folder that is not named
# here is not there. The only processes are their own, and the only network is an own loopback unless more
# is allowed.


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap",
)  # fmt: skip
"""Folders of programs and their settings, as far as they are there."""
SWITCHES = tuple(
    f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr")
)
"""Switches of the whole machine: an agent that runs as root could change them without any capability."""
NAMES = "/etc/resolv.conf"
"""Where names of the network are looked up; often a link to a place that is hidden."""
NAMESPACES = (
    "let bwrap make namespaces (the sysctl kernel.unprivileged_userns_clone, a profile of AppArmor, the"
    " limits of a container), or choose another sandbox.backend"
)
_MOUNT: dict[Access, str] = {"read": "--ro-bind", "write": "--bind"}


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A sandbox of Linux namespaces around each command."""

    boundary: Boundary
    name: str = "bubblewrap"
    hands_on: bool = True
    python: str = sys.executable

    @property
    def confinement(self) -> Confinement:
        """Return what the tools and their questions say of it."""
        rules = self.boundary.rules
        return Confinement(f"in the sandbox (bubblewrap, {network(rules.network)})", rules.free)

    def shell(self, command: str) -> list[str]:
        """Return words that run it with the shell of this machine."""
        return LOCAL.shell(command)

    def entered(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Put ``bwrap`` around the command."""
        command = [*self._words(root), "--chdir", order.directory, "--", *with_grace(order.command)]
        return order._replace(command=command, held=True), self.boundary.variables(environ)

    def trouble(self, root: Path) -> Trouble | None:
        """Run ``true`` in it."""
        if sys.platform != "linux":
            return "it needs Linux", "docker or podman as sandbox.backend"
        if shutil.which("bwrap") is None:
            return "there is no bwrap", "apt install bubblewrap, or the package manager's word for it"
        said = try_program([*self._words(root), "--", "sh", "-c", ":"], environment())
        return None if said is None else (said, NAMESPACES)

    def _words(self, root: Path) -> list[str]:
        rules = self.boundary.rules
        words = [
            *(shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc"),
            *("--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"),
            *("--cap-drop", "ALL", "--hostname", "sandbox"),
            *([] if rules.network else ["--unshare-net"]),
            *(word for folder in SYSTEM for word in ("--ro-bind-try", folder, folder)),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", TMP, "--tmpfs", "/var/tmp"),  # noqa: S108
            *(word for switch in SWITCHES for word in ("--ro-bind-try", switch, switch)),
        ]
        if rules.network and os.path.islink(NAMES):
            words += ["--ro-bind-try", os.path.realpath(NAMES), os.path.realpath(NAMES)]
        for path, access in self.boundary.files(root, _interpreter()).items():
            there = str(path)
            words += ["--tmpfs", there] if access == "empty" else [_MOUNT[access], there, there]
        return [*words, "--remount-ro", "/"]


def _interpreter() -> Iterator[Path]:
    """The folders of this Python, by the names that lead to it and by their real ones."""
    for prefix in (Path(sys.prefix), Path(sys.base_prefix)):
        for folder in {prefix, prefix.resolve()}:
            if not any(folder.is_relative_to(known) for known in SYSTEM):
                yield folder


def network(allowed: bool) -> str:
    """In words."""
    return "with the network" if allowed else "no network"


# Commands in a container of their own, made by the command line of Docker or Podman and removed afterwards.


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
            *(word for one in self.boundary.files(root).items() for word in _mounts(*one)),
            *(word for limit, value in order.limits.items() for word in _limits(limit, value)),
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
        if said := try_program([self.name, "ps", "--quiet"], environment()):
            return said, f"start the engine of {self.name}, or choose another sandbox.backend"
        if try_program([self.name, "image", "inspect", image], environment()):
            return f"there is no image {image}", f"{self.name} pull {image}, or another sandbox.image"
        self.boundary.files(root)
        return None


def _mounts(path: Path, access: Access) -> list[str]:
    if access == "empty":
        return ["--tmpfs", f"{path}:mode=0777"]
    row = io.StringIO()
    parts = ["type=bind", f"source={path}", f"target={path}", *(["readonly"] if access == "read" else [])]
    csv.writer(row, lineterminator="").writerow(parts)
    return ["--mount", row.getvalue()]


def _limits(name: str, value: int) -> list[str]:
    """Processes are counted by container already, and not by user."""
    return [] if name == "NPROC" else ["--ulimit", f"{name.lower()}={value}"]
