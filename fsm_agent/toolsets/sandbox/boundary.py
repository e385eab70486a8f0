"""What a command in a sandbox sees of the machine: which files, and which variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsm_agent.approvals.acting_files import ACTING_FILES, as_names
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import SandboxSettings

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
        before what is in them. ``shown``: what it may read besides; nothing of it that holds a home or stands
        in a folder that is there anyway, where its name may be a link.

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
