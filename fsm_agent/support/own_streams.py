"""Standard input and output, for a protocol that nothing else may read or write in between."""

from __future__ import annotations

import os
import sys
from io import BufferedWriter, FileIO


def own_streams() -> tuple[FileIO, BufferedWriter]:
    """Return the process's input and output for the caller alone; others get an empty input, and standard
    error as their output. They stay open until the process ends: somebody still waits for input then."""
    sys.stdout.flush()
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb")
