"""Writing to another process."""

from __future__ import annotations

import asyncio


async def sent(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write ``data`` and wait until there is room for more. Raises ``ConnectionError`` when the other end is
    gone, whichever event loop this is: uvloop has a word of its own for a pipe that is closed."""
    try:
        pipe.write(data)
        await pipe.drain()
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error
