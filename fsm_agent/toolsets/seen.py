"""What an agent knows of the files it works on: has somebody else changed one since?"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

MAX_FILES = 10_000

Mark = tuple[int, int, int]


class Seen:
    """The state of each file when it was last read or written here, by time of change, size and inode; no
    file is read for it.

    It lives in memory: after a restart nothing is known, and nothing is held against a write.
    """

    def __init__(self) -> None:
        self._marks: OrderedDict[str, Mark] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, real: Path, stat: os.stat_result | None = None) -> None:
        """Remember the file as it is now. Raises ``OSError``."""
        mark = _mark(stat or real.stat())
        with self._lock:
            self._marks[str(real)] = mark
            self._marks.move_to_end(str(real))
            if len(self._marks) > MAX_FILES:
                self._marks.popitem(last=False)

    def changed(self, real: Path) -> bool:
        """Is the file another one than it was, or gone? False for one that was never looked at."""
        with self._lock:
            mark = self._marks.get(str(real))
        if mark is None:
            return False
        try:
            return _mark(real.stat()) != mark
        except FileNotFoundError:
            return True


def _mark(stat: os.stat_result) -> Mark:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
