"""A server over all its connections: started when it is needed, started again after it died, never more often
than is good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fsm_agent.request import Effect
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings.model import Mcp
from fsm_agent.support.redaction import MASK, mask
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.support.untrusted import wrapped
from fsm_agent.tools.failure import ToolFailure
from fsm_agent.tools.runner import UNKNOWN_EFFECT
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.endpoint import Endpoint, Unset, endpoint_of
from fsm_agent.toolsets.mcp.log import LOGS, ServerLog
from fsm_agent.toolsets.mcp.lost import Broken, McpRefused, Unusable
from fsm_agent.toolsets.mcp.schema import Listed, looked_over

if TYPE_CHECKING:
    from fsm_agent.toolsets.mcp.connection import Connection
    from fsm_agent.toolsets.mcp.results import Result

log = logging.getLogger(__name__)

REST, LONGEST_REST = 1.0, 300.0
"""Seconds until a server that failed is tried again: doubled with each failure in a row."""
_TOLD_AGAIN = "It is known to repeat without harm; the same call may be made again."
_NOTHING = "Nothing was changed; the same call may be made again."

Status = Literal["idle", "starting", "ready", "down"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the servers of an agent have in common. ``poll`` in seconds: how often limits are looked at."""

    workdir: Path
    home: Path
    environment: Mapping[str, str]
    clock: Clock
    limits: Mcp
    poll: float


class McpServer:
    """Every method belongs to the engine's loop, except the plain attributes, which may be read from
    anywhere."""

    def __init__(self, name: str, config: ServerConfig, around: Surroundings) -> None:
        self.name, self.config = name, config
        self.listed: Sequence[Listed] = ()
        self._around = around
        self._endpoint: Endpoint | None = None
        self._log: ServerLog | None = None
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._attempt: asyncio.Task[None] | None = None
        self._patience: Stopwatch | None = None
        self._problem = ""
        self._failures, self._next, self._stale, self._closed = 0, 0.0, False, False

    @property
    def problem(self) -> str:
        """Why it is not there, or not whole; empty when all is well."""
        lost = self._connection is not None and not self._connection.alive
        return self._problem or (
            self._safe(self._connection.reason) if self._connection is not None and lost else ""
        )

    @property
    def status(self) -> Status:
        """Return how the server is: ready, starting, down (it failed) or idle (not yet wanted)."""
        if self._connection is not None and self._connection.alive:
            return "ready"
        if self._attempt is not None and not self._attempt.done():
            return "starting"
        return "down" if self.problem else "idle"

    async def prepare(self) -> None:
        """Be ready for a turn, as far as that takes no longer than a start may hold a turn up. The attempt
        goes on after that."""
        if self._connection is not None and self._connection.alive:
            if self._stale or self._connection.deaf:
                await self._limited(self._relist(), self._around.limits.start_timeout)
            return
        if (attempt := self._begun()) is not None and self._patience is not None:
            left = self._around.limits.start_timeout - self._patience.elapsed()
            if left > 0:
                await self._limited(asyncio.shield(attempt), left)

    async def call(self, tool: str, arguments: Mapping[str, Any], effect: Effect) -> Any:
        """The result as a handler returns it: a text, or content parts. Raises ``ToolFailure``."""
        again = False
        while True:
            connection = await self._connected()
            try:
                result = await connection.call(tool, arguments)
            except McpRefused as error:
                raise ToolFailure(
                    f"MCP server {self.name} refused the call: {self._marked(self._safe(str(error)))}"
                ) from None
            except Unusable as error:
                raise self._unsure(
                    f"MCP server {self.name} answered with no usable result: {self._safe(str(error))}.",
                    effect,
                ) from None
            except Broken as error:
                if not error.sent and not again:
                    again = True
                    continue
                raise self._broken(error, effect) from None
            return self._told(result)

    async def close(self) -> None:
        """End everything that belongs to it. The server is not started again."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait({self._attempt})
        await asyncio.gather(*(connection.close() for connection in self._connections))
        self._connections.clear()

    # Connecting

    async def _connected(self) -> Connection:
        if self.status != "ready" and (attempt := self._begun()) is not None:
            await asyncio.shield(attempt)
        if self._connection is None or not self._connection.alive:
            wait = max(0.0, self._next - self._around.clock.now())
            when = f"; it is tried again in {wait:.0f} s" if wait >= 1 else ""
            raise ToolFailure(
                f"MCP server {self.name} is not there: {self.problem or 'it was closed'}{when}. Nothing was"
                " run."
            )
        return self._connection

    def _begun(self) -> asyncio.Task[None] | None:
        """The attempt that runs, or a new one unless the server rests."""
        if self._attempt is not None and not self._attempt.done():
            return self._attempt
        if self._closed or self._around.clock.now() < self._next:
            return None
        # Only a first start, and one after a success, may hold up a turn: who failed before may fail again.
        self._patience = Stopwatch(self._around.clock) if not self._failures else None
        self._attempt = asyncio.create_task(self._connect())
        return self._attempt

    async def _connect(self) -> None:
        limit = self._around.limits.connect_timeout
        try:
            opened = await self._limited(self._opened(), limit)
            if opened is None:
                self._failed(f"it did not get ready within {limit:g} s")
        except (Broken, McpRefused, Unusable, Unset, OSError) as error:
            self._failed(str(error) or type(error).__name__)
        except Exception as error:  # a bug, here or in the SDK, costs this server and nothing else
            log.warning("MCP server %s", self.name, exc_info=True)
            self._failed(f"{type(error).__name__}: {error}")
        else:
            if opened is not None:
                self._connection, self.listed = opened
                self._problem, self._stale, self._failures = "", False, 0

    async def _opened(self) -> tuple[Connection, list[Listed]]:
        await asyncio.gather(*(connection.close() for connection in self._connections))
        self._connections.clear()
        endpoint, server_log = self._endpoint, self._log
        if endpoint is None or server_log is None:
            around = self._around
            endpoint = self._endpoint = endpoint_of(self.config, around.workdir, around.environment)
            server_log = self._log = ServerLog(around.home / LOGS / f"mcp-{self.name}.log", endpoint.secrets)
        connection_class = await in_daemon_thread(_connection_class)
        server_log.hush()
        connection = connection_class(
            endpoint, server_log, self._around.limits.max_message_bytes, self._changed
        )
        self._connections.add(connection)
        try:
            await connection.open()
            return connection, await in_daemon_thread(looked_over, await connection.tools())
        except BaseException:
            connection.abandon()
            raise

    def _failed(self, reason: str) -> None:
        self._problem = self._safe(one_line(reason, 400))
        self._next = self._around.clock.now() + min(LONGEST_REST, REST * 2.0**self._failures)
        self._failures += 1

    async def _relist(self) -> None:
        assert self._connection is not None
        self._stale = False  # before asking: a change while the answer is on its way counts for the next time
        try:
            self.listed = await in_daemon_thread(looked_over, await self._connection.tools())
            self._problem = ""
        except (Broken, McpRefused, Unusable) as error:
            self._stale = True
            self._problem = self._safe(f"its tools cannot be listed again: {one_line(str(error), 400)}")
        except asyncio.CancelledError:
            self._stale = True
            raise

    def _changed(self) -> None:
        self._stale = True

    async def _limited(self, work: Awaitable[T], seconds: float) -> T | None:
        """What the work brings, or ``None`` when the time is up; it is cancelled then."""
        task, watch = asyncio.ensure_future(work), Stopwatch(self._around.clock)
        try:
            await wait_with_deadline(
                task,
                left=lambda: seconds - watch.elapsed(),
                interrupted=asyncio.Event(),
                poll=self._around.poll,
            )
            return task.result() if task.done() else None
        finally:
            if not task.done():
                task.cancel()

    # Words

    def _told(self, result: Result) -> Any:
        text = self._without_secrets(result.text)
        if result.failed:
            raise ToolFailure(self._marked(text) or "The tool failed without saying why.")
        if result.parts:
            return [*([{"type": "text", "text": text}] if text else []), *result.parts]
        return text or None

    def _broken(self, error: Broken, effect: Effect) -> ToolFailure:
        why = f"MCP server {self.name} is gone: {self._safe(str(error))}."
        if not error.sent:
            return ToolFailure(f"{why} Nothing was run.")
        return self._unsure(why, effect)

    def _unsure(self, why: str, effect: Effect) -> ToolFailure:
        """Nobody knows how far the call came: what that means depends on the tool."""
        if effect == "pure":
            return ToolFailure(f"{why} {_NOTHING}")
        return ToolFailure(
            f"{why} {_TOLD_AGAIN if effect == 'idempotent' else UNKNOWN_EFFECT}", status="unknown"
        )

    def _marked(self, text: str) -> str:
        """Errors are words of somebody else just as results are, which the runner marks."""
        return wrapped(text, f"mcp:{self.name}")

    def _safe(self, text: str) -> str:
        return mask(text, self._endpoint.secrets if self._endpoint else ())

    def _without_secrets(self, text: str) -> str:
        """Only the values that this server was given: what else a result says is its business."""
        for secret in self._endpoint.secrets if self._endpoint else ():
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, MASK)
        return text


def _connection_class() -> type[Connection]:
    """Load the SDK, which takes a while: not on the loop."""
    from fsm_agent.toolsets.mcp.connection import Connection

    return Connection


_SHORTEST = 6
"""Characters; a shorter value is a word like any other."""
