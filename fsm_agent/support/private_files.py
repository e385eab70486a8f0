"""Files and folders that only their owner can read: 0600 and 0700 from the first byte, whatever the umask is.

All that is written into the home goes through here. On systems without these modes the folders' own rules
hold."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077
"""What others may do, as bits of a mode."""


def private_folder(path: Path) -> Path:
    """Make the folder and those above it that are missing; returns it. Raises ``OSError``."""
    missing = [path, *path.parents]
    missing = missing[: next((count for count, one in enumerate(missing) if one.is_dir()), len(missing))]
    for one in reversed(missing):
        one.mkdir(FOLDER, exist_ok=True)
    return path


def private_file(path: str | os.PathLike[str], flags: int) -> int:
    """For ``open(…, opener=private_file)``: a file that is made is the owner's alone."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE)


def touch(path: Path) -> None:
    """Make the file if it is missing. Raises ``OSError``."""
    os.close(private_file(path, os.O_RDWR | os.O_CREAT))


def write_new(path: Path, content: bytes) -> None:
    """Make a file that is whole from the moment it is there; one that another process made first stays.
    Raises ``OSError``."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with open(private_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def made_private(home: Path, names: Iterable[str]) -> str:
    """Take from others what an older version let them read in ``home``; returns a line for people, empty when
    there was nothing. ``names``: patterns of what is ours there. The home itself is closed when nothing else
    is in it. What belongs to somebody else is left as it is."""
    patterns, changed, ours_alone = tuple(names), 0, True
    try:
        entries = sorted(os.scandir(home), key=lambda entry: entry.name)
    except OSError:
        return ""
    for entry in entries:
        if not any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
            ours_alone = False
        elif _closed(entry.path):
            changed += 1
            for folder, _, files in os.walk(entry.path):
                changed += sum(_closed(os.path.join(folder, name)) for name in ("", *files))
    if ours_alone and entries:
        changed += _closed(home)
    return f"{home}: others could read {changed:,} of its files and folders; now only you can" * bool(changed)


def _closed(path: str | os.PathLike[str]) -> bool:
    """Was it ours, and open to others? Then it is not any more."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        if own and found.st_mode & OTHERS and stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS)
            return not os.lstat(path).st_mode & OTHERS
    return False
