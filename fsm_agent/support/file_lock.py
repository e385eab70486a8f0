"""One writer at a time, across threads and processes. The system lets go of the lock when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 5.0
"""Seconds to wait for another writer; a change takes milliseconds."""
_RETRY = 0.02
_FAR = 1 << 30
"""Windows locks a byte that nobody writes."""

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
def locked(path: Path, patience: float = PATIENCE) -> Iterator[int]:
    """Hold the lock file ``path`` and give its open handle. Raises ``TimeoutError`` after ``patience``
    seconds, and ``OSError`` when the file cannot be made."""
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
