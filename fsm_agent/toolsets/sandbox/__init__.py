"""Places to run commands in, chosen by ``sandbox.backend``.

>>> sandbox_of(SandboxSettings(), Path("/work")).name
'local'

A command keeps its contract in each of them: limits, output, interrupts, and that nothing of it is left when
the agent is gone. A backend that does not work is refused and never replaced by another one, because a person
who chose a wall does not look whether it is there."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fsm_agent.approvals.acting_files import ACTING_FILES, as_names
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import SandboxSettings
from fsm_agent.tools import Tool, tool
from fsm_agent.tools.decorator import LEAVES, Confinement
from fsm_agent.toolsets.process_supervisor import SupervisorOrder

if TYPE_CHECKING:
    from fsm_agent.toolsets.sandbox.aside import Aside


ASIDE = "aside"
"""The folder of the home for what commands in a sandbox may not leave behind."""
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
half a second to end by itself, as outside. Asked to end, it continues as long as the command does."""
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
    """This machine, with the rights of the user who runs the agent."""

    name = "local"
    confinement = None
    hands_on = True
    python = sys.executable

    def shell(self, command: str) -> list[str]:
        """Return words that run it with bash, or with ``/bin/sh`` where bash is missing."""
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


def try_program(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
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


# Tools that say where their commands run.


RUNS = (
    "It runs {inside}: of the machine's files it can change those below the working directory, without"
    " Git's own and those that run or instruct programs later, and the home is hidden."
)
LEAVING = f" What cannot work there can be run with {LEAVES}=true; the user is asked then."


def command_tool(
    handler: Callable[..., Any], place: CommandPlace, timeout: float | None = None, note: str = ""
) -> Tool:
    """Make a tool that runs commands in ``place`` after approval, and describes that place to the model;
    without a sandbox, it cannot be left. ``timeout`` in seconds; ``note`` is added to the description."""
    held, leaves = place.confinement, LEAVES in inspect.signature(handler).parameters
    words = [note] if note else []
    if held is not None:
        words.append(RUNS.format(inside=held.inside) + (LEAVING if leaves else ""))
    hidden = [LEAVES] if leaves and held is None else []
    options: dict[str, Any] = {"timeout": timeout, "note": "\n\n".join(words), "hidden": hidden}
    return replace(tool(approval="ask", writes_files=True, **options)(handler), confinement=held)


# What a command in a sandbox sees of the machine: which files, and which variables.


Access = Literal["read", "write", "empty"]
"""``empty``: an empty folder in the place of what is there, which is thrown away after the command."""

PASSED_ON = frozenset({"LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER", "HOME"})
QUIET = frozenset({"PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT"})
"""Variables that keep programs from waiting for a person."""


def homes() -> set[Path]:
    """Return the home directories of this user: the one of the environment, and the one of the account."""
    named = {os.path.expanduser("~")}
    try:
        import pwd  # only where there are such accounts

        named.add(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):
        pass
    return {Path(name).resolve() for name in named if os.path.isabs(name)} - {Path("/")}


@dataclass(frozen=True, slots=True)
class Boundary:
    """``secret``: the agent's own home, which no command sees. ``base``: what paths in ``rules`` are relative
    to."""

    rules: SandboxSettings
    base: Path
    secret: Path | None = None

    def files(self, root: Path, shown: Iterable[Path] = ()) -> dict[Path, Access]:
        """Return what a command that works in ``root`` sees of files that are not the system's, folders
        before what is in them. ``shown``: other paths that it may read, except those that hold a home and
        those in a folder that it sees anyway, where the name may be a link.

        Raises ``ConfigError`` for a path of the settings that is not there, and for a working directory that
        cannot be shown without the home."""
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
        """Return those of ``environ`` that a command sees: nothing that is a secret as a rule."""
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
    """The files and folders in ``root``, and in its hidden folders, that run or instruct later, and Git's
    own."""
    waiting = [(root, "")]
    while waiting:
        folder, before = waiting.pop()
        for entry in _entries(folder):
            name = before + as_names(entry.name)
            if name == ".git" or any(row.has(name) for row in ACTING_FILES):
                real = Path(entry.path).resolve()
                if root in real.parents and real.exists():
                    yield real
            elif not before and name.startswith(".") and entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{name}/"))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; of one that cannot be read, nothing."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


__all__ = ["LOCAL", "CommandPlace", "aside_of", "sandbox_of", "usable_sandbox"]


def sandbox_of(rules: SandboxSettings, base: Path, secret: Path | None = None) -> CommandPlace:
    """Return the place that the settings name, for the working directory ``base``. ``secret``: the agent's
    own home, which no command in a sandbox sees."""
    boundary = Boundary(rules, base, secret)
    if rules.backend == "local":
        return LOCAL
    from fsm_agent.toolsets.sandbox.backends import Bubblewrap, Container

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
