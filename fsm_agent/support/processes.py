"""What child processes get: an environment without secrets, and pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from io import BufferedWriter, FileIO

_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
    "PROCESSOR_ARCHITECTURE", "PROGRAMDATA",
    "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
PASSED_ON = _WINDOWS if os.name == "nt" else _POSIX
"""Variables that a program needs to find its files and to use the user's language; none is a secret."""


def bare_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the part of ``environment`` that any program gets: no key, token or proxy."""
    names = (*PASSED_ON, *(name for name in environment if name.startswith("LC_")))
    return {
        name: environment[name]
        for name in names
        if name in environment and not environment[name].startswith("()")
    }


def own_streams() -> tuple[FileIO, BufferedWriter]:
    """Return the process's input and output for exclusive use by a protocol; other code gets an empty
    input, and standard error as its output. They stay open until the process ends, because a reader still
    waits for input."""
    sys.stdout.flush()
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb")


async def connect_own_streams(limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return ``own_streams`` as streams of the running loop; ``limit``: bytes of a line. Raises
    ``ValueError`` where they are no pipes or sockets."""
    loop, (reading, writing) = asyncio.get_running_loop(), own_streams()
    reader = asyncio.StreamReader(limit=limit)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), writing
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def send(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write ``data`` and wait until there is room for more. Raises ``ConnectionError`` when the other end
    is gone, on any event loop: uvloop raises a different error for a closed pipe."""
    try:
        pipe.write(data)
        await pipe.drain()
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error
