"""MCP servers as a turn uses them, without a turn."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings import Settings
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import ToolRunner
from fsm_agent.toolsets.mcp import McpServers
from tests.helpers.waiting import PATIENCE

SERVER = str(Path(__file__).with_name("mcp_server.py"))
PATIENT = {"start_timeout": PATIENCE, "connect_timeout": 2 * PATIENCE}
"""The first start in a process loads the SDK: a second for a machine that has nothing else to do."""


def program(**options: Any) -> dict[str, Any]:
    """The config of the scripted server."""
    return {"command": sys.executable, "args": ["-I", "-S", SERVER, json.dumps(options)]}


@dataclass
class Bench:
    """The servers of an agent, and the runner that a turn would call them through."""

    servers: McpServers
    runner: ToolRunner
    home: Path

    async def ready(self) -> tuple[str, ...]:
        """The lines for people at the beginning of a turn."""
        return await self.runner.ready(Interrupt())

    async def call(
        self, name: str, /, timeout: float = PATIENCE, interrupted: Interrupt | None = None, **given: Any
    ) -> ToolOutcome:
        return await self.runner.run(RunTool("c1", name, given, timeout), interrupted or Interrupt())

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.runner.specs]

    def log(self, name: str = "s") -> str:
        return (self.home / "logs" / f"mcp-{name}.log").read_text()


@asynccontextmanager
async def bench(
    home: Path,
    servers: dict[str, Any],
    *,
    clock: Clock | None = None,
    environment: dict[str, str] | None = None,
    callbacks: dict[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Bench]:
    settings, clock = (
        Settings.of({"mcp": PATIENT | limits, "poll": {"control": 0.01}}),
        clock or SystemClock(),
    )
    found = McpServers.of(
        servers, home=home, workdir=home, clock=clock, settings=settings, environment=environment,
        callbacks=Callbacks(callbacks),
    )  # fmt: skip
    assert found is not None
    runner = ToolRunner([], clock=clock, more=found, poll=0.01)
    try:
        yield Bench(found, runner, home)
    finally:
        await runner.aclose()
