"""The real clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time since the epoch in seconds, and asyncio's sleep."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
