"""What programs that this one starts are given: an environment without secrets, and pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from io import BufferedWriter, FileIO

# ----------------------------------------------------------------------------------------------------
# The environment of a program that needs none of a person's own variables.


_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
    "PROCESSOR_ARCHITECTURE", "PROGRAMDATA",
    "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
PASSED_ON = _WINDOWS if os.name == "nt" else _POSIX
"""What a program needs to find its files and to speak the user's language; nothing in it is a secret."""


def bare_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The part of ``environment`` that a program gets without being given anything: no key, no token, no
    proxy."""
    names = (*PASSED_ON, *(name for name in environment if name.startswith("LC_")))
    return {
        name: environment[name]
        for name in names
        if name in environment and not environment[name].startswith("()")
    }


# ----------------------------------------------------------------------------------------------------
# Standard input and output, for a protocol that nothing else may read or write in between.


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


# ----------------------------------------------------------------------------------------------------
# Writing to another process.


async def sent(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write ``data`` and wait until there is room for more. Raises ``ConnectionError`` when the other end is
    gone, whichever event loop this is: uvloop has a word of its own for a pipe that is closed."""
    try:
        pipe.write(data)
        await pipe.drain()
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error
