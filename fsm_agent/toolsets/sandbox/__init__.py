"""Places to run commands in, chosen by ``sandbox.backend``: this machine, namespaces made by ``bwrap`` on
Linux, and containers of Docker or Podman.

>>> sandbox_of(SandboxSettings(), Path("/work")).name
'local'

A command has the same contract in each of them: limits, output, interrupts, and nothing of it is left when
the agent is gone. A backend that does not work is refused and never replaced by another one, because a person
who chose a sandbox does not check whether it is there."""

from __future__ import annotations

import csv
import inspect
import io
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fsm_agent.approvals.acting_files import acting_reason, as_names
from fsm_agent.errors import ConfigError
from fsm_agent.settings import SandboxSettings
from fsm_agent.tools import Tool, tool
from fsm_agent.tools.decorator import LEAVES, Confinement
from fsm_agent.toolsets.process import environment
from fsm_agent.toolsets.process_supervisor import SupervisorOrder

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside


ASIDE = "aside"
"""Folder of the home that receives files which sandboxed commands may not leave behind."""
TRIAL = 10.0
"""Maximum seconds for a backend to show that it works."""
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
"""Runs a command as the second process of a sandbox, which ends with it: leftover processes have half a
second to end by themselves, as outside. When asked to end, it continues as long as the command does."""
TMP = "/tmp"  # noqa: S108  # a sandbox has its own

Trouble = tuple[str, str]
"""(Why a place cannot be used, how to fix it)."""


class CommandPlace(Protocol):
    """A place to run commands. ``confinement`` is ``None`` if it does not confine them."""

    @property
    def name(self) -> str:
        """Return the place's name in the settings."""

    @property
    def confinement(self) -> Confinement | None:
        """Return the description of the place for tools and approval questions."""

    @property
    def python(self) -> str:
        """Return the path of its Python."""

    @property
    def hands_on(self) -> bool:
        """Return whether file descriptors that the command inherits are open there, too."""

    def shell(self, command: str) -> list[str]:
        """Return the arguments that run a shell command line there."""

    def enter(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Return the order and environment with which a supervisor runs the command there, in the working
        directory ``root``. Raises ``ConfigError`` for a root that cannot be shown."""

    def trouble(self, root: Path) -> Trouble | None:
        """Try the place; return ``None`` if it works. Takes milliseconds, and at most ``TRIAL`` seconds."""


class Local:
    """This machine, with the rights of the agent's user."""

    name = "local"
    confinement = None
    hands_on = True
    python = sys.executable

    def shell(self, command: str) -> list[str]:
        """Return the arguments that run it with bash, or with ``/bin/sh`` if bash is missing."""
        return [shutil.which("bash") or "/bin/sh", "-c", command]

    def enter(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Return both unchanged."""
        return order, dict(environ)

    def trouble(self, root: Path) -> Trouble | None:
        """Return ``None``: this machine always works."""
        return None


LOCAL = Local()


def with_grace(command: Sequence[str]) -> list[str]:
    """Return the command wrapped in ``GRACE_INSIDE``."""
    return ["sh", "-c", GRACE_INSIDE, "sh", *command]


def try_program(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Run a program as a check. Return ``None`` if it succeeds, else its last line on standard error."""
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            command, env=environ, capture_output=True, text=True, timeout=TRIAL, stdin=subprocess.DEVNULL,
            check=False, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {TRIAL:g} s"
    except OSError as error:
        return error.strerror or str(error)
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"it ended with code {done.returncode}")


# Tools that tell the model where their commands run.


RUNS = (
    "It runs {inside}: of the machine's files it can change those below the working directory, without"
    " Git's own and those that run or instruct programs later, and the home is hidden."
)
LEAVING = f" What cannot work there can be run with {LEAVES}=true; the user is asked then."


def command_tool(
    handler: Callable[..., Any], place: CommandPlace, timeout: float | None = None, note: str = ""
) -> Tool:
    """Make a tool that runs commands in ``place`` after approval and describes it to the model. Without a
    sandbox, the argument to leave it is hidden. ``timeout`` in seconds; ``note`` extends the description."""
    held, leaves = place.confinement, LEAVES in inspect.signature(handler).parameters
    words = [note] if note else []
    if held is not None:
        words.append(RUNS.format(inside=held.inside) + (LEAVING if leaves else ""))
    hidden = [LEAVES] if leaves and held is None else []
    options: dict[str, Any] = {"timeout": timeout, "note": "\n\n".join(words), "hidden": hidden}
    return replace(tool(approval="ask", writes_files=True, **options)(handler), confinement=held)


# What a sandboxed command sees of the machine: which files, and which variables.


Access = Literal["read", "write", "empty"]
"""``empty``: an empty folder hides what is there, and is thrown away after the command."""

PASSED_ON = frozenset({"LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER", "HOME"})
QUIET = frozenset({"PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT"})
"""Variables that keep programs from waiting for a person."""


def homes() -> set[Path]:
    """Return the home directories of this user: those of the environment and of the account."""
    named = {os.path.expanduser("~")}
    try:
        import pwd  # only on systems with such accounts

        named.add(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):
        pass
    return {Path(name).resolve() for name in named if os.path.isabs(name)} - {Path("/")}


@dataclass(frozen=True, slots=True)
class Boundary:
    """Limits what commands see. ``secret``: the agent's own home, which no command sees. Paths in ``rules``
    are relative to ``base``."""

    rules: SandboxSettings
    base: Path
    secret: Path | None = None

    def files(self, root: Path, shown: Iterable[Path] = ()) -> dict[Path, Access]:
        """Return the access that a command in ``root`` has to files outside the system's, each folder before
        its contents. ``shown``: further readable paths, except those that contain a home and those in a
        folder that it sees anyway, where the name may be a link.

        Raises ``ConfigError`` for a path of the settings that does not exist, and for a working directory
        that cannot be shown without the home."""
        root = root.resolve()
        secret = None if self.secret is None else self.secret.resolve()
        if root == secret or any(root in (home, *home.parents) for home in homes()):
            raise ConfigError(
                "a sandbox cannot hide the home directory when it works in it",
                str(root),
                "a working directory that holds neither your home nor the agent's",
            )
        readable: dict[Path, Access] = {self._path(text, "readable"): "read" for text in self.rules.readable}
        writable: dict[Path, Access] = {self._path(text, "writable"): "write" for text in self.rules.writable}
        there = {*readable, *writable, root}
        seen: dict[Path, Access] = dict.fromkeys(homes(), "empty")
        for path in shown:
            holds_home = any(path in (home, *home.parents) for home in homes())
            if not (holds_home or any(path.is_relative_to(folder) for folder in there)):
                seen[path] = "read"
        seen |= readable
        seen[root] = "write"
        seen |= dict.fromkeys(acting(root), "read")
        seen |= writable
        if secret is not None and secret.exists():
            seen[secret] = "empty"
        return dict(sorted(seen.items(), key=lambda item: len(item[0].parts)))

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of ``environ`` that a command sees: none that usually hold secrets."""
        passed = {*PASSED_ON, *QUIET, *self.rules.environment}
        return {name: value for name, value in environ.items() if name in passed or name.startswith("LC_")}

    def _path(self, text: str, setting: str) -> Path:
        base = self.base.resolve()
        named = Path(os.path.normpath(base / os.path.expanduser(text)))
        path = named.resolve()
        if not path.exists():
            raise ConfigError(f"a path in sandbox.{setting} is not there", text, "existing files and folders")
        if named.is_relative_to(base) and not path.is_relative_to(base):  # a command may have made the link
            raise ConfigError(
                f"a path in sandbox.{setting} leads out of the working directory by a link",
                text,
                "the path that is meant",
            )
        return path


def acting(root: Path) -> Iterator[Path]:
    """Return the files and folders in ``root``, and in its hidden folders, that run or instruct programs
    later, and Git's own."""
    waiting = [(root, "")]
    while waiting:
        folder, before = waiting.pop()
        for entry in _entries(folder):
            name = before + as_names(entry.name)
            if name == ".git" or acting_reason(name):
                real = Path(entry.path).resolve()
                if root in real.parents and real.exists():
                    yield real
            elif not before and name.startswith(".") and entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{name}/"))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the contents of a folder; empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


# Commands in Linux namespaces, made by ``bwrap``.
#
# They see the programs of the system, the working directory and little else: a folder that is not named here
# does not exist there. They see only their own processes, and only their own loopback network unless more is
# allowed.


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap",
)  # fmt: skip
"""Folders of programs and their settings, as far as they exist."""
SWITCHES = tuple(
    f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr")
)
"""Switches of the whole machine, which an agent running as root could change without any capability."""
NAMES = "/etc/resolv.conf"
"""Files for name resolution; often links to a hidden place."""
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
        """Return the description of the place for tools and approval questions."""
        rules = self.boundary.rules
        return Confinement(f"in the sandbox (bubblewrap, {network(rules.network)})", rules.free)

    def shell(self, command: str) -> list[str]:
        """Return the arguments that run it with this machine's shell."""
        return LOCAL.shell(command)

    def enter(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Wrap the command in ``bwrap``."""
        command = [*self._words(root), "--chdir", order.directory, "--", *with_grace(order.command)]
        return order._replace(command=command, held=True), self.boundary.variables(environ)

    def trouble(self, root: Path) -> Trouble | None:
        """Run ``true`` in it."""
        if sys.platform != "linux":
            return "it needs Linux", "docker or podman as sandbox.backend"
        if shutil.which("bwrap") is None:
            return "there is no bwrap", "apt install bubblewrap, or the package manager's word for it"
        problem = try_program([*self._words(root), "--", "sh", "-c", ":"], environment())
        return None if problem is None else (problem, NAMESPACES)

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
    """Return the folders of this Python, by the names that lead to it and by their real paths."""
    for prefix in (Path(sys.prefix), Path(sys.base_prefix)):
        for folder in {prefix, prefix.resolve()}:
            if not any(folder.is_relative_to(known) for known in SYSTEM):
                yield folder


def network(allowed: bool) -> str:
    """Describe the network access."""
    return "with the network" if allowed else "no network"


# Commands in a container of their own, made with the Docker or Podman command line and removed afterwards.


PROCESSES = 512
_SHELL = 'exec "$(command -v bash || command -v sh)" -c "$1"'
_OWN = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "USER"})
"""Variables for which an image has its own values."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of ``sandbox.image`` for each command; ``name`` is the client program of the engine."""

    name: Literal["docker", "podman"]
    boundary: Boundary
    hands_on: bool = False
    python: str = "python3"

    @property
    def confinement(self) -> Confinement:
        """Return the description of the place for tools and approval questions."""
        rules = self.boundary.rules
        return Confinement(
            f"in the sandbox ({self.name} {rules.image}, {network(rules.network)})", rules.free
        )

    def shell(self, command: str) -> list[str]:
        """Return the arguments that run it with the image's bash, or with its ``sh``."""
        return ["sh", "-c", _SHELL, "sh", command]

    def enter(
        self, order: SupervisorOrder, environ: Mapping[str, str], root: Path
    ) -> tuple[SupervisorOrder, dict[str, str]]:
        """Have the engine run the command. System limits become limits of the container."""
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
        if problem := try_program([self.name, "ps", "--quiet"], environment()):
            return problem, f"start the engine of {self.name}, or choose another sandbox.backend"
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
    """Return the ``--ulimit`` option. Containers already count processes, and not by user."""
    return [] if name == "NPROC" else ["--ulimit", f"{name.lower()}={value}"]


# The place chosen by the settings.


def sandbox_of(rules: SandboxSettings, base: Path, secret: Path | None = None) -> CommandPlace:
    """Return the place that the settings name, for the working directory ``base``. ``secret``: the agent's
    own home, which no sandboxed command sees."""
    boundary = Boundary(rules, base, secret)
    if rules.backend == "local":
        return LOCAL
    return Bubblewrap(boundary) if rules.backend == "bubblewrap" else Container(rules.backend, boundary)


def aside_of(rules: SandboxSettings, base: Path, secret: Path | None = None) -> Aside | None:
    """Return the ``Aside`` that moves away files which commands in this sandbox leave and that act later;
    ``None`` without a sandbox."""
    if rules.backend == "local":
        return None
    from fsm_agent.toolsets.sandbox.aside import Aside

    allowed = [(base / os.path.expanduser(text)).resolve() for text in rules.writable]
    return Aside(base, secret, allowed)


def usable_sandbox(rules: SandboxSettings, base: Path, secret: Path | None = None) -> CommandPlace:
    """Return ``sandbox_of`` with a backend that was tried and works. Raises ``ConfigError`` with the fix if
    it does not."""
    place = sandbox_of(rules, base, secret)
    if trouble := place.trouble(base):
        raise ConfigError("sandbox.backend does not work here", f"{place.name}: {trouble[0]}", trouble[1])
    return place
