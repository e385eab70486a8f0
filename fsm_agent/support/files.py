"""Files of the home: readable by their owner only, replaced atomically, written by one process at a time."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError

# Everything in the home is written with modes 0600 and 0700 from the first byte, whatever the umask. On
# systems without these modes the folders' own rules apply.


FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077
"""Permission bits of everyone except the owner."""


def private_folder(path: Path) -> Path:
    """Create the folder and its missing parents; return it. Raises ``OSError``."""
    missing = [path, *path.parents]
    missing = missing[: next((count for count, one in enumerate(missing) if one.is_dir()), len(missing))]
    for one in reversed(missing):
        one.mkdir(FOLDER, exist_ok=True)
    return path


def private_file(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for ``open(…, opener=private_file)``: a new file is private to its owner."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE)


def touch(path: Path) -> None:
    """Create the file if it is missing. Raises ``OSError``."""
    os.close(private_file(path, os.O_RDWR | os.O_CREAT))


def write_new(path: Path, content: bytes) -> bool:
    """Create a file that is complete as soon as it exists, and return true; or keep one that another process
    created first. Raises ``OSError``."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with open(private_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def make_private(home: Path, names: Iterable[str]) -> str:
    """Revoke permissions that an older version granted to others in ``home``; return a line for people, empty
    if there were none. ``names``: patterns of our files. The home itself is made private if it holds nothing
    else. Files of other users are left alone."""
    patterns, changed, ours_alone = tuple(names), 0, True
    try:
        entries = sorted(os.scandir(home), key=lambda entry: entry.name)
    except OSError:
        return ""
    for entry in entries:
        if not any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
            ours_alone = False
        elif _make_private(entry.path):
            changed += 1
            for folder, _, files in os.walk(entry.path):
                changed += sum(_make_private(os.path.join(folder, name)) for name in ("", *files))
    if ours_alone and entries:
        changed += _make_private(home)
    return f"{home}: others could read {changed:,} of its files and folders; now only you can" * bool(changed)


def _make_private(path: str | os.PathLike[str]) -> bool:
    """Make one of our files private if others have access; return whether it changed."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        if own and found.st_mode & OTHERS and stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS)
            return not os.lstat(path).st_mode & OTHERS
    return False


PATIENCE = 5.0
"""Seconds to wait for another writer; a change takes milliseconds."""
_RETRY = 0.02
_FAR = 1 << 30
"""Windows locks a byte that is never written."""

if sys.platform == "win32":
    import msvcrt

    def take(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def lock_file(path: Path, patience: float = PATIENCE) -> Iterator[int]:
    """Hold the lock file ``path`` and yield its handle. The system releases the lock when its holder dies.
    Raises ``TimeoutError`` after ``patience`` seconds, and ``OSError`` if the file cannot be created."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        _wait(handle, path, time.monotonic() + patience)
        yield handle
    finally:
        os.close(handle)


def _wait(handle: int, path: Path, until: float) -> None:
    while True:
        try:
            take(handle)
        except OSError:
            if time.monotonic() >= until:
                raise TimeoutError(f"{path.name} is held by another writer") from None
            time.sleep(_RETRY)
        else:
            return


def replace_file(real: Path, content: bytes, mode: int | None = None) -> None:
    """Replace the file's content atomically, keeping its permissions unless ``mode`` sets others; these apply
    before others can read it. Raises ``OSError``."""
    draft = real.with_name(f".{real.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        before = _mode(real)
        new = mode is None and before is None
        with open(draft, "xb", opener=None if new else private_file) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not new:
            most = 0o7777 if mode is None else mode
            draft.chmod(most if before is None else before & most)
        draft.replace(real)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _mode(real: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return real.stat().st_mode & 0o7777
    return None


MOST_BYTES = 1_000_000


class HomeRows:
    """JSON rows under ``name`` in a file of the home that several processes share. A writer holds a lock and
    replaces the file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self._name = path, name

    def read(self) -> list[Any]:
        """Return the rows; none if the file cannot be read. Any program with write access to the home can
        forge it."""
        try:
            with open(self.path, encoding="utf-8") as file:
                listed = json.loads(file.read(MOST_BYTES))[self._name]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []
        return listed if isinstance(listed, list) else []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other writers in this block. Raises ``OSError`` and ``TimeoutError``."""
        private_folder(self.path.parent)
        with lock_file(self.path.with_name(f"{self.path.name}.lock")):
            yield

    def write(self, rows: Iterable[Any]) -> None:
        """Replace all rows. Raises ``OSError``."""
        replace_file(self.path, json.dumps({self._name: list(rows)}, indent=1).encode(), mode=FILE)


# ----------------------------------------------------------------------------------------------------
# The data directory and the working directory of an agent.


HOME_ENV = "FSM_AGENT_HOME"
LOGINS = "mcp-logins"
"""The folder of the home directory for logins to MCP servers."""


def home_of(given: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path:
    """Return the data directory: as given, else ``FSM_AGENT_HOME``, else the platform's. A named one is
    created and must be writable (``ConfigError``); the platform's is created by the first write."""
    named = given or env.get(HOME_ENV)
    if not named:
        from platformdirs import user_data_path

        return user_data_path("fsm-agent")
    path = _path("home", named).expanduser()
    try:
        private_folder(path)
        probe = path / f".write-test-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"the home directory cannot be written ({error.strerror})", str(path), "a writable directory"
        ) from None
    return path


def workdir_of(given: str | os.PathLike[str] | None) -> Path:
    """Return the working directory: as given, else the current one. Raises ``ConfigError`` if it does not
    exist."""
    try:
        path = _path("workdir", given) if given else Path.cwd()
    except OSError:
        raise ConfigError("the current folder has been removed", None, "a folder that is there") from None
    if not path.is_dir():
        raise ConfigError("workdir is not a folder", str(path), "a folder that is there")
    return path


def _path(name: str, given: str | os.PathLike[str]) -> Path:
    try:
        path = Path(given)
        os.fsencode(path)
    except TypeError:
        raise ConfigError(f"{name} has the wrong type", given, "a path") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is not a path", ascii(given), "text that a path can have") from None
    if "\0" in str(path):
        raise ConfigError(f"{name} is not a path", ascii(given), "text without NUL")
    return path
