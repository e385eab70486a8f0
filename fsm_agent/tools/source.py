"""Tools that come and go between turns."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from fsm_agent.tools.decorator import Tool


class ToolSource(Protocol):
    """A group of tools that is not the same for every turn: those of other programs, for instance.

    What ``tools`` answers changes only in ``ready`` and ``find``, so that a turn keeps the tools that it
    began with."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names for its parts that stay the same whichever of them are there; they keep a prompt from
        changing with them."""

    def tools(self) -> Sequence[Tool]: ...

    async def ready(self, taken: Collection[str], interrupted: asyncio.Event) -> tuple[str, ...]:
        """Look what is there, within limits; ``taken`` are names that it may not use. Lines for people about
        what is missing."""

    async def find(self, name: str) -> Tool | None:
        """A tool that a turn, begun by another process perhaps, knows by this name."""

    async def aclose(self) -> None:
        """Let go of the tools: end connections and processes."""
        ...
