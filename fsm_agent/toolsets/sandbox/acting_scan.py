"""Where in a working directory the files are that act later, and what state each is in.

A folder whose change time is the one that was seen is not listed again: a name that is added, removed or
moved changes it, and no program can set it. So a look costs one ``lstat`` a folder, not one name a file."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_agent.approvals.acting_files import ACTING_FILES, LastNames, plain_name

Identity = tuple[Any, ...]
"""Differs when a file is another one, or may hold something else."""

_LAST = LastNames(ACTING_FILES)
_ABOVE = frozenset(
    part for row in ACTING_FILES for name in row.names for part in name.removesuffix("/**").split("/")[:-1]
)
"""Folders in the paths of acting files: a link of such a name makes any folder one."""
_GIT = frozenset((".git", "git~1"))
_REPOSITORY = frozenset(("head", "objects", "refs"))
"""A folder with these is a repository of Git, whatever it is called."""
_GITS_OWN = frozenset(("config", "config.worktree", "commondir", "gitdir", "attributes"))
_GITS_FOLDERS = frozenset(("hooks", "info", "modules", "worktrees"))
_SURE = 3_000_000_000
"""Nanoseconds for which a folder has to have been left alone, so that its change time says all."""


@dataclass(frozen=True, slots=True)
class _Listing:
    mark: tuple[int, int]
    sure: bool
    acting: tuple[str, ...]
    folders: tuple[tuple[str, str], ...]


class ActingScan:
    """The acting files of ``root``. Not looked at: what is ``hidden``, and what commands may change
    (``allowed``), both real paths."""

    def __init__(self, root: Path, hidden: Collection[Path] = (), allowed: Collection[Path] = ()) -> None:
        self.root = str(root.resolve())
        self._out = frozenset(str(one) for one in (*hidden, *allowed))
        self._listed: dict[str, _Listing] = {}

    def __call__(self) -> dict[str, Identity]:
        """Every acting file and folder by its path in ``root``, and all that is in such a folder; of Git's
        own what makes it run something."""
        found: dict[str, Identity] = {}
        listed: dict[str, _Listing] = {}
        waiting = [(self.root, "")]
        while waiting:
            folder, before = waiting.pop()
            try:
                listing = listed[folder] = self._listing(folder, before)
            except FileNotFoundError:  # gone meanwhile
                continue
            for name in listing.acting:
                path = os.path.join(folder, name)
                if path not in self._out:
                    found.update(self._states(path))
            for name, plain in listing.folders:
                path = os.path.join(folder, name)
                if path not in self._out:
                    waiting.append((path, f"{before}{plain}/"))
        self._listed = listed
        return found

    def _listing(self, folder: str, before: str) -> _Listing:
        seen = os.lstat(folder)
        mark, known = (seen.st_ino, seen.st_ctime_ns), self._listed.get(folder)
        if known is not None and known.sure and known.mark == mark:
            return known
        sure = time.time_ns() - seen.st_ctime_ns > _SURE
        acting: list[str] = []
        folders: list[tuple[str, str]] = []
        plains: dict[str, str] = {}
        for entry in _entries(folder, seen.st_mode):
            name = plain_name(entry.name)
            plains[name] = entry.name
            link = entry.is_symlink()
            if name in _GIT or (link and name in _ABOVE) or (name in _LAST and _acts(before + name)):
                acting.append(entry.name)
            elif not link and entry.is_dir(follow_symlinks=False):
                folders.append((entry.name, name))
        if plains.keys() >= _REPOSITORY:
            acting += [plains[name] for name in ("config", "config.worktree", "hooks") if name in plains]
            folders = []
        return _Listing(mark, sure, tuple(acting), tuple(folders))

    def _states(self, path: str) -> Iterator[tuple[str, Identity]]:
        """The states of an acting file, or of a folder and what is in it."""
        with contextlib.suppress(FileNotFoundError):
            yield os.path.relpath(path, self.root), _state(path)
        if not os.path.isdir(path) or not os.path.realpath(path).startswith(f"{self.root}/"):
            return
        gits = plain_name(os.path.basename(path)) in _GIT
        path = os.path.realpath(path)
        for place, folders, names in os.walk(path):
            if gits and "hooks" not in place.removeprefix(path).split("/"):
                if "HEAD" in names:
                    folders[:] = [one for one in folders if one in _GITS_FOLDERS]
                names = [one for one in names if one in _GITS_OWN]
            for name in names if gits else (*names, *folders):
                inner = os.path.join(place, name)
                with contextlib.suppress(FileNotFoundError):
                    yield os.path.relpath(inner, self.root), _state(inner)


def _acts(path: str) -> bool:
    return any(row.has(path) for row in ACTING_FILES)


def _entries(folder: str, mode: int) -> list[os.DirEntry[str]]:
    """What is in a folder. One that was closed to hide what is in it is opened again."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        try:
            os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:  # somebody else's, in which a command can change nothing either
            return []
    except NotADirectoryError:  # replaced meanwhile
        return []


def _state(path: str) -> Identity:
    seen = os.lstat(path)
    if stat.S_ISDIR(seen.st_mode):
        return ("folder", seen.st_ino)
    own = (seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_mode)
    if not stat.S_ISLNK(seen.st_mode):
        return own
    with contextlib.suppress(OSError):
        there = os.stat(path)
        if stat.S_ISDIR(there.st_mode):
            return (*own, there.st_ino)
        return (*own, there.st_ino, there.st_mtime_ns, there.st_ctime_ns, there.st_size)
    return own
