"""Files that a sandboxed command may not leave behind, because they run or instruct programs later.

The sandbox compares such files of the working directory before and after a command, and every second while it
runs. A new or changed file is moved into the agent's home, and an earlier version is restored. The result of
the call reports this to the model and the person. A call that needs approval brings a file back:
``write_file``, or a command outside the sandbox.

Files that a person writes at the same time in an editor cannot be distinguished from a command's files, and
are moved, too."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_agent.approvals.acting_files import ACTING_FILES, LastNames, acting_reason, plain_name
from fsm_agent.support.files import private_folder
from fsm_agent.toolsets.sandbox import ASIDE

# Where the acting files of a working directory are, and the state of each.
#
# A folder whose change time is unchanged is not listed again: adding, removing or moving a name changes it,
# and no program can set it. So a scan costs one ``lstat`` per folder, not one per file.


Identity = tuple[Any, ...]
"""Differs if a file was replaced or may have other content."""

_LAST = LastNames(ACTING_FILES)
_ABOVE = frozenset(
    part for row in ACTING_FILES for name in row.names for part in name.removesuffix("/**").split("/")[:-1]
)
"""Folders in the paths of acting files: a link with such a name can turn any folder into one."""
_GIT = frozenset((".git", "git~1"))
_REPOSITORY = frozenset(("head", "objects", "refs"))
"""A folder with these is a Git repository, whatever its name."""
_GITS_OWN = frozenset(("config", "config.worktree", "commondir", "gitdir", "attributes"))
_GITS_FOLDERS = frozenset(("hooks", "info", "modules", "worktrees"))
_SURE = 3_000_000_000
"""Nanoseconds without a change after which a folder's change time is reliable."""


@dataclass(frozen=True, slots=True)
class _Listing:
    mark: tuple[int, int]
    sure: bool
    acting: tuple[str, ...]
    folders: tuple[tuple[str, str], ...]


class ActingScan:
    """Scans for the acting files of ``root``. It skips ``hidden`` paths and those that commands may change
    (``allowed``); both are real paths."""

    def __init__(self, root: Path, hidden: Collection[Path] = (), allowed: Collection[Path] = ()) -> None:
        self.root = str(root.resolve())
        self._out = frozenset(str(one) for one in (*hidden, *allowed))
        self._listed: dict[str, _Listing] = {}

    def __call__(self) -> dict[str, Identity]:
        """Return the state of every acting file and folder by its path in ``root``, with everything in such a
        folder; of Git's own files only those that make Git run something."""
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
            if name in _GIT or (link and name in _ABOVE) or (name in _LAST and acting_reason(before + name)):
                acting.append(entry.name)
            elif not link and entry.is_dir(follow_symlinks=False):
                folders.append((entry.name, name))
        if plains.keys() >= _REPOSITORY:
            acting += [plains[name] for name in ("config", "config.worktree", "hooks") if name in plains]
            folders = []
        return _Listing(mark, sure, tuple(acting), tuple(folders))

    def _states(self, path: str) -> Iterator[tuple[str, Identity]]:
        """Yield the states of an acting file, or of a folder and its contents."""
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


def _entries(folder: str, mode: int) -> list[os.DirEntry[str]]:
    """Return the contents of a folder. Open it again if it was closed to hide them."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        try:
            os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:  # another user's, which a command cannot change either
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


log = logging.getLogger(__name__)

KEPT = 50
"""Number of sweeps whose files are kept."""
EVERY = 1.0
"""Seconds between two scans while a command runs; longer if a scan takes more than a twentieth of it."""
LARGEST, MOST = 256_000, 2_000
"""Maximum bytes of a file, and number of files, that can be restored."""
FETCHED = frozenset(("node_modules", "site-packages", "vendor", "target", ".venv", "venv", ".tox", ".gradle"))
"""Folders of third-party files: a change in them is moved away, and not restored."""
NAMED = 20
NOTICE = (
    "[Put aside, because programs run or obey such files later: {names}. {where}. A file comes back by"
    " write_file, or by a copy with outside=true when no job runs; the user is asked about either.]"
)


@dataclass(frozen=True, slots=True)
class _Copy:
    """An earlier version of a file; ``link``: its target."""

    state: Identity
    mode: int
    data: bytes = b""
    link: str = ""


class Aside:
    """Moves acting files of one working directory away, for all commands in its sandbox. ``home``: the
    agent's. ``allowed``: acting files that commands may change. ``scan`` replaces ``ActingScan``.
    Thread-safe."""

    def __init__(
        self,
        root: Path,
        home: Path | None = None,
        allowed: Collection[Path] = (),
        scan: Callable[[], Mapping[str, Identity]] | None = None,
    ) -> None:
        hidden = () if home is None else (home.resolve(),)
        self._scan, self._home = scan or ActingScan(root, hidden, allowed), home
        self._root = str(root.resolve())
        self._known: Mapping[str, Identity] = {}
        self._copies: dict[str, _Copy] = {}
        self._fixed: frozenset[str] = frozenset()
        self._failed: set[str] = set()
        self._notes: list[str] = []
        self._running, self._watched = 0, False
        self._changed = threading.Condition(threading.RLock())

    def begin(self) -> None:
        """Note that a command is about to run in the sandbox; existing files are not its own."""
        with self._changed:
            if self._running:
                self._sweep()
                self._fixed &= self._at_the_top()
            else:
                self._learn()
                self._fixed = self._at_the_top()
            self._running += 1
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="fsm-agent-aside", daemon=True).start()

    def end(self) -> None:
        """Note that a command has ended."""
        with self._changed:
            self._sweep()
            self._running -= 1
            self._changed.notify_all()

    def settle(self, seconds: float = 5.0) -> None:
        """Wait until no command is running, at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, seconds)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Allow the block to write a file that a person approved."""
        with self._changed:
            if self._running:
                self._sweep()
            yield
            if self._running:
                self._learn()

    def notes(self) -> str:
        """Return the notes since the last call, for the model and the person; empty for none."""
        with self._changed:
            if self._running:
                self._sweep()
            notes, self._notes = self._notes, []
        return "\n".join(notes)

    def _watch(self) -> None:
        pause = EVERY
        with self._changed:
            while not self._changed.wait_for(lambda: self._running == 0, pause):
                began = time.monotonic()
                self._sweep()
                pause = max(EVERY, 20 * (time.monotonic() - began))
            self._watched = False

    def _learn(self) -> None:
        self._known = self._scan()
        kept: dict[str, _Copy] = {}
        for path, state in self._known.items():
            if len(kept) < MOST and not FETCHED & set(path.split("/")):
                before = self._copies.get(path)
                copy = before if before is not None and before.state == state else self._copy(path, state)
                if copy is not None:
                    kept[path] = copy
        self._copies = kept

    def _at_the_top(self) -> frozenset[str]:
        """Return the paths that a command cannot change: the sandbox shows them read only, and nothing above
        them can be moved."""
        return frozenset(
            path for path in self._known if "/" not in path and not os.path.islink(f"{self._root}/{path}")
        )

    def _is_held(self, path: str) -> bool:
        if path.partition("/")[0] not in self._fixed:
            return False
        with contextlib.suppress(OSError):
            seen = os.lstat(f"{self._root}/{path}")
            return stat.S_ISDIR(seen.st_mode) or seen.st_nlink == 1  # else another name makes it writable
        return True

    def _copy(self, path: str, state: Identity) -> _Copy | None:
        whole = os.path.join(self._root, path)
        with contextlib.suppress(OSError):
            seen = os.lstat(whole)
            if stat.S_ISLNK(seen.st_mode):
                return _Copy(state, seen.st_mode, link=os.readlink(whole))
            if stat.S_ISREG(seen.st_mode) and seen.st_size <= LARGEST:
                with open(whole, "rb") as file:
                    return _Copy(state, stat.S_IMODE(seen.st_mode), file.read())
        return None

    def _sweep(self) -> None:
        """Move new and changed files away, and restore missing ones."""
        now = self._scan()
        changed = _topmost(
            path for path, state in now.items() if self._known.get(path) != state and not self._is_held(path)
        )
        gone = [path for path in self._copies if path not in now and not self._is_held(path)]
        if not [path for path in changed if path not in self._failed] and not gone:
            return
        moved, back, failed = list[str](), list[str](), dict[str, str]()
        place = self._place()
        for path in changed:
            try:
                with _folder_of(self._root, path) as (folder, name):
                    target = private_folder(place / os.path.dirname(path)) / name
                    shutil.move(f"{folder}/{name}", target)
                moved.append(path)
            except OSError as error:
                failed[path] = error.strerror or str(error)
        for path in (*(one for one in moved if one in self._copies), *gone):
            with contextlib.suppress(OSError):  # its folder is gone, too
                self._put_back(path, self._copies[path])
                back.append(path)
        changes = dict.fromkeys(moved, "") | dict.fromkeys(back, " (as it was before, again)")
        changes |= {
            path: f" (it cannot be moved: {why})" for path, why in failed.items() if path not in self._failed
        }
        self._failed |= set(failed)
        if changes:
            self._say(changes, place)
        self._known = {path: state for path, state in self._scan().items() if path not in failed}
        self._copies = {
            path: _Copy(self._known.get(path, ()), one.mode, one.data, one.link)
            for path, one in self._copies.items()
            if path in self._known
        }

    def _put_back(self, path: str, copy: _Copy) -> None:
        with _folder_of(self._root, path) as (folder, name):
            if copy.link:
                os.symlink(copy.link, f"{folder}/{name}")
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(f"{folder}/{name}", flags, copy.mode), "wb") as file:
                file.write(copy.data)
                os.fchmod(file.fileno(), copy.mode)

    def _say(self, changes: Mapping[str, str], place: Path) -> None:
        names = ", ".join(f"{path}{how}" for path, how in sorted(changes.items())[:NAMED])
        more = f" and {len(changes) - NAMED:,} more" if len(changes) > NAMED else ""
        line = NOTICE.format(names=names + more, where=f"What was written is in {place}")
        self._notes.append(line)
        log.warning("%s", line)

    def _place(self) -> Path:
        """Return a new folder for the files of this sweep; delete the oldest ones."""
        base = private_folder(self._home / ASIDE) if self._home is not None else Path(tempfile.mkdtemp())
        for old in sorted(base.iterdir())[: -KEPT or None] if self._home is not None else ():
            shutil.rmtree(old, ignore_errors=True)
        return base / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**9:09d}"


def _topmost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are not below another one."""
    found: list[str] = []
    for path in sorted(paths, key=lambda one: one.split("/")):
        if not (found and path.startswith(f"{found[-1]}/")):
            found.append(path)
    return found


@contextlib.contextmanager
def _folder_of(root: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield a name for the folder of a path, and the path's last part. Follows no link on the way, not even
    one made concurrently. Raises ``OSError``."""
    *above, name = path.split("/")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in above:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        held = f"/proc/self/fd/{handle}"
        yield (held if os.path.isdir(held) else os.path.join(root, *above)), name
    finally:
        os.close(handle)
