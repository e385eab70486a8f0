"""MCP servers as sources of tools: other programs whose tools a model may call like built-in ones.

>>> from fsm_agent import Agent
>>> agent = Agent(mcp={"time": {"command": "uvx", "args": ["mcp-server-time"]}})  # doctest: +SKIP

Servers are described in ``config.toml`` (see ``fsm_agent.toolsets.mcp.config``), started by the first turn,
and can neither block nor end one. Needs the extra ``mcp``; the SDK is loaded when a server is first
started."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import weakref
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fsm_agent.errors import ConfigError
from fsm_agent.providers.credentials import hide_from_children
from fsm_agent.request import Effect
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings import Mcp, Settings
from fsm_agent.support.installation import install_command
from fsm_agent.support.redaction import MASK, keep_secret, mask, secrets_among
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import LOOP, Interrupt, in_daemon_thread
from fsm_agent.support.untrusted import wrap_untrusted
from fsm_agent.tools.decorator import Tool
from fsm_agent.tools.result import ToolFailure
from fsm_agent.tools.runner import UNKNOWN_EFFECT
from fsm_agent.toolsets.mcp.config import Login, ServerConfig, ToolRule, servers_of
from fsm_agent.toolsets.mcp.elicitation import Asker, Elicitation
from fsm_agent.toolsets.mcp.offer import (
    MOST_TOOLS,
    PROMPT,
    RESOURCE,
    Listed,
    Offer,
    ServerPrompt,
    check_schemas,
    make_offer,
    server_of,
)
from fsm_agent.toolsets.mcp.process import (
    LOGS,
    Broken,
    Endpoint,
    McpRefused,
    ServerLog,
    Unset,
    Unusable,
    endpoint_of,
    variables_in,
)

if TYPE_CHECKING:
    from fsm_agent.toolsets.mcp.connection import Connection
    from fsm_agent.toolsets.mcp.results import Result

__all__ = ["McpServers", "ServerConfig", "ToolRule"]


# The tools of a turn do not change during it. Servers are awaited once, at the start, up to a limit; a late
# one joins the next turn. The prompt names servers, not their tools, so its bytes stay the same. A broken-off
# call is repeated only if it provably never left.

# An MCP server is untrusted. Its claims about its tools (read-only, idempotent) count only if the user trusts
# it. Descriptions are scanned like memory entries, results and errors are marked as untrusted, and the server
# gets a minimal environment. The session is the SDK's. The transport for local processes is ours, because the
# SDK's has no bound on a line and does not expose the process.


# ----------------------------------------------------------------------------------------------------
# A server across its connections: started on demand, and restarted with backoff after a failure.


log = logging.getLogger(__name__)

REST, LONGEST_REST = 1.0, 300.0
"""Seconds before a failed server is retried: doubled with each consecutive failure, and the maximum."""
_REPEATABLE = "It is known to repeat without harm; the same call may be made again."
_NOTHING = "Nothing was changed; the same call may be made again."

Status = Literal["idle", "starting", "ready", "down"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all servers of an agent share. ``poll``: seconds between checks of limits."""

    workdir: Path
    home: Path
    environment: Mapping[str, str]
    clock: Clock
    limits: Mcp
    poll: float
    elicitation: Elicitation


class McpServer:
    """One server and its current connection. All methods run on the engine's loop; plain attributes may be
    read from anywhere."""

    def __init__(self, name: str, config: ServerConfig, around: Surroundings) -> None:
        self.name, self.config = name, config
        self.listed: Sequence[Listed] = ()
        self._around = around
        self._endpoint: Endpoint | None = None
        self._log: ServerLog | None = None
        self._tokens = set[str]()
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._attempt: asyncio.Task[None] | None = None
        self._patience: Stopwatch | None = None
        self._problem = ""
        self._failures, self._next, self._stale, self._closed = 0, 0.0, False, False

    @property
    def problem(self) -> str:
        """Why the server is unavailable or incomplete; empty if all is well."""
        lost = self._connection is not None and not self._connection.alive
        return self._problem or (
            self._safe(self._connection.reason) if self._connection is not None and lost else ""
        )

    @property
    def status(self) -> Status:
        """Return the status: ready, starting, down (it failed) or idle (not needed yet)."""
        if self._connection is not None and self._connection.alive:
            return "ready"
        if self._attempt is not None and not self._attempt.done():
            return "starting"
        return "down" if self.problem else "idle"

    async def prepare(self) -> None:
        """Connect for a turn, within the time that a start may delay it. The attempt continues after that."""
        if self._connection is not None and self._connection.alive:
            if self._stale or self._connection.deaf:
                await self._within_time(self._relist(), self._around.limits.start_timeout)
            return
        if (attempt := self._begin_attempt()) is not None and self._patience is not None:
            left = self._around.limits.start_timeout - self._patience.elapsed()
            if left > 0:
                await self._within_time(asyncio.shield(attempt), left)

    async def call(
        self, tool: Listed, arguments: Mapping[str, Any], effect: Effect, asker: Asker | None
    ) -> Any:
        """Return the result as a handler returns it: a text, or content parts. Raises ``ToolFailure``."""
        again = False
        while True:
            connection = await self._ensure_connected()
            try:
                result = await connection.call(tool, arguments, asker)
            except McpRefused as error:
                raise ToolFailure(
                    f"MCP server {self.name} refused the call: {self._mark_error(self._safe(str(error)))}"
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
                raise self._failure_of(error, effect) from None
            return self._tell_server(result)

    async def prompts(self) -> list[ServerPrompt]:
        """Return its prompts; empty if it is unreachable. Waits for its first start."""
        if self.status != "ready" and (attempt := self._begin_attempt()) is not None:
            await asyncio.shield(attempt)
        if self._connection is None or not self._connection.alive:
            return []
        try:
            return await self._connection.prompts(self.name)
        except (Broken, McpRefused, Unusable) as error:
            log.warning("MCP server %s: its prompts cannot be listed: %s", self.name, self._safe(str(error)))
            return []

    async def close(self) -> None:
        """Close all connections. The server is not started again."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait({self._attempt})
        await asyncio.gather(*(connection.close() for connection in self._connections))
        self._connections.clear()

    # Connecting

    async def _ensure_connected(self) -> Connection:
        if self.status != "ready" and (attempt := self._begin_attempt()) is not None:
            await asyncio.shield(attempt)
        if self._connection is None or not self._connection.alive:
            wait = max(0.0, self._next - self._around.clock.now())
            when = f"; it is tried again in {wait:.0f} s" if wait >= 1 else ""
            raise ToolFailure(
                f"MCP server {self.name} is not there: {self.problem or 'it was closed'}{when}. Nothing was"
                " run."
            )
        return self._connection

    def _begin_attempt(self) -> asyncio.Task[None] | None:
        """Return the running attempt, or a new one unless the server is backing off."""
        if self._attempt is not None and not self._attempt.done():
            return self._attempt
        if self._closed or self._around.clock.now() < self._next:
            return None
        # Only a first start, and one after a success, may hold up a turn: a failed server may fail again.
        self._patience = Stopwatch(self._around.clock) if not self._failures else None
        self._attempt = asyncio.create_task(self._connect())
        return self._attempt

    async def _connect(self) -> None:
        limit = self._around.limits.connect_timeout
        try:
            opened = await self._within_time(self._open(), limit)
            if opened is None:
                self._on_failure(f"it did not get ready within {limit:g} s")
        except (Broken, McpRefused, Unusable, Unset, OSError) as error:
            self._on_failure(str(error) or type(error).__name__)
        except Exception as error:  # a bug, here or in the SDK, affects this server only
            log.warning("MCP server %s", self.name, exc_info=True)
            self._on_failure(f"{type(error).__name__}: {error}")
        else:
            if opened is not None:
                self._connection, self.listed = opened
                self._problem, self._stale, self._failures = "", False, 0

    async def _open(self) -> tuple[Connection, list[Listed]]:
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
            endpoint,
            server_log,
            self._around.limits.max_message_bytes,
            self._on_change,
            self._around.elicitation.possible,
            await in_daemon_thread(self._sign, endpoint),
        )
        self._connections.add(connection)
        try:
            await connection.open()
            return connection, await in_daemon_thread(check_schemas, await connection.tools())
        except BaseException:
            connection.abandon()
            raise

    def _sign(self, endpoint: Endpoint) -> Any:
        """Return the request signer of a server with a login."""
        if self.config.oauth is None:
            return None
        from fsm_agent.toolsets.mcp.oauth import machine_login, stored_login

        if self.config.oauth.issuer is not None:
            return machine_login(endpoint.url, self.config.oauth, endpoint.client_secret, self._tokens)
        login = Login(self._around.home, self.name, endpoint.url, self._tokens)
        return stored_login(endpoint.url, self.config.oauth, endpoint.client_secret, login)

    def _on_failure(self, reason: str) -> None:
        rules = self.config.oauth
        if rules is not None and rules.issuer is None and any(sign in reason for sign in _NO_LOGIN):
            reason = f"{reason}; log in with: fsm-agent mcp login {self.name}"
        self._problem = self._safe(one_line(reason, 400))
        self._next = self._around.clock.now() + min(LONGEST_REST, REST * 2.0**self._failures)
        self._failures += 1

    async def _relist(self) -> None:
        assert self._connection is not None
        self._stale = False  # reset first: a change while the answer is on its way counts next time
        try:
            self.listed = await in_daemon_thread(check_schemas, await self._connection.tools())
            self._problem = ""
        except (Broken, McpRefused, Unusable) as error:
            self._stale = True
            self._problem = self._safe(f"its tools cannot be listed again: {one_line(str(error), 400)}")
        except asyncio.CancelledError:
            self._stale = True
            raise

    def _on_change(self) -> None:
        self._stale = True

    async def _within_time(self, work: Awaitable[T], seconds: float) -> T | None:
        """Return the result of the work, or cancel it and return ``None`` when the time is up."""
        task, watch = asyncio.ensure_future(work), Stopwatch(self._around.clock)
        try:
            await wait_with_deadline(
                task,
                left=lambda: seconds - watch.elapsed(),
                interrupted=None,
                poll=self._around.poll,
            )
            return task.result() if task.done() else None
        finally:
            if not task.done():
                task.cancel()

    # Words

    def _tell_server(self, result: Result) -> Any:
        text = self._without_secrets(result.text)
        if result.failed:
            raise ToolFailure(self._mark_error(text) or "The tool failed without saying why.")
        if result.parts:
            return [*([{"type": "text", "text": text}] if text else []), *result.parts]
        return text or None

    def _failure_of(self, error: Broken, effect: Effect) -> ToolFailure:
        why = f"MCP server {self.name} is gone: {self._safe(str(error))}."
        if not error.sent:
            return ToolFailure(f"{why} Nothing was run.")
        return self._unsure(why, effect)

    def _unsure(self, why: str, effect: Effect) -> ToolFailure:
        """Return the failure of a call with an unknown outcome; what that means depends on the tool."""
        if effect == "pure":
            return ToolFailure(f"{why} {_NOTHING}")
        return ToolFailure(
            f"{why} {_REPEATABLE if effect == 'idempotent' else UNKNOWN_EFFECT}", status="unknown"
        )

    def _mark_error(self, text: str) -> str:
        """Mark errors as untrusted text. The runner marks results."""
        return wrap_untrusted(text, f"mcp:{self.name}")

    def _safe(self, text: str) -> str:
        return mask(text, self._endpoint.secrets if self._endpoint else ())

    def _without_secrets(self, text: str) -> str:
        """Mask only the values that this server was given: other secrets in a result are its own business."""
        given = self._endpoint.secrets if self._endpoint else frozenset()
        for secret in given | self._tokens:
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, MASK)
        return text


def _connection_class() -> type[Connection]:
    """Load the SDK off the loop, because that takes a while."""
    from fsm_agent.toolsets.mcp.connection import Connection

    return Connection


_NO_LOGIN = ("HTTP 401", "HTTP 403", "a login is needed")
"""Signs in a failure reason that a login may help."""
_SHORTEST = 6
"""Characters; a shorter value is treated as an ordinary word."""


_MARGIN = 2.0
"""Seconds beyond a start's limit after which a turn stops waiting, whatever delays the start."""


@dataclass(frozen=True, slots=True)
class _Made:
    """An offer with the inputs that it was built from."""

    listed: Sequence[Listed]
    taken: frozenset[str]
    room: int
    offer: Offer


class McpServers:
    """The servers of an agent. The first turn starts all of them at once, on the engine's own event loop,
    whichever loop the turn runs on.

    A turn waits for them for ``settings.mcp.start_timeout`` at most; a late server joins the next turn."""

    def __init__(self, configs: Mapping[str, ServerConfig], around: Surroundings) -> None:
        self.servers = tuple(McpServer(name, config, around) for name, config in configs.items())
        self._clock, self._limits, self._poll = around.clock, around.limits, around.poll
        self._elicitation = around.elicitation
        self._taken: frozenset[str] = frozenset()
        self._tools: tuple[Tool, ...] = ()
        self._said: dict[str, tuple[str, ...]] = {}
        self._made: dict[str, _Made] = {}
        weakref.finalize(self, _let_go, self.servers).atexit = False

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any] | None,
        *,
        home: Path,
        workdir: Path,
        clock: Clock,
        settings: Settings,
        environment: Mapping[str, str] | None = None,
        callbacks: Callbacks | None = None,
    ) -> McpServers | None:
        """Return the servers of ``given``, else of the config file in ``home``; ``None`` if there are none.
        Starts nothing. ``callbacks`` of the agent: its ``clarify`` answers questions of servers.

        Raises ``ConfigError`` for an unusable config, and if the SDK is not installed.
        """
        configs = servers_of(given, home)
        if not configs:
            return None
        if importlib.util.find_spec("mcp") is None:
            allowed = f"{install_command('mcp')}, or no MCP servers"
            raise ConfigError(
                "MCP servers are configured and the MCP SDK is not installed", ", ".join(configs), allowed
            )
        hide_from_children(name for one in configs.values() for name in variables_in(one))
        environment = dict(os.environ if environment is None else environment)
        for one in configs.values():
            keep_secret(secrets_among(one.env, environment))
            keep_secret(secrets_among(one.headers, environment, every=True))
        elicitation = Elicitation(callbacks or Callbacks(), settings.approval.question_timeout)
        limits, poll = settings.mcp, settings.poll.control
        return cls(configs, Surroundings(workdir, home, environment, clock, limits, poll, elicitation))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"mcp:{server.name}" for server in self.servers)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def ready(self, taken: Collection[str], interrupted: Interrupt) -> tuple[str, ...]:
        """Start or check all servers and fix the tools of the next turn. Return news of servers as lines for
        people."""
        self._taken = frozenset(taken)
        watch, most = Stopwatch(self._clock), self._limits.start_timeout + _MARGIN
        work = asyncio.wrap_future(LOOP.submit(self._prepare()))
        finish = await wait_with_deadline(
            work, left=lambda: most - watch.elapsed(), interrupted=interrupted, poll=self._poll
        )
        if finish == "done":
            work.result()
        work.cancel()  # a late server keeps connecting during the turn
        return () if finish == "interrupted" else await LOOP.arun(self._settle())

    async def find(self, name: str) -> Tool | None:
        """Return a tool of a turn that began in an earlier process, starting its server if it is
        configured."""
        if all(server.name != server_of(name) for server in self.servers):
            return None
        await LOOP.arun(self._prepare())
        await LOOP.arun(self._settle())
        return next((tool for tool in self._tools if tool.spec.name == name), None)

    async def aclose(self) -> None:
        """Close all servers, at once and within seconds; none is started again."""
        await LOOP.arun(_close(self.servers))

    async def look(self) -> dict[str, tuple[bool, str]]:
        """Start all servers; return whether each is ready, with its number of tools or its problem."""
        await LOOP.arun(self._prepare())
        offers = self._offers()
        return {
            server.name: (server.status == "ready", _words(server, offers[server.name]))
            for server in self.servers
        }

    # Requests of a person

    async def prompts(self) -> list[ServerPrompt]:
        """Start all servers, and list the prompts of those that are available."""

        async def list_all() -> list[ServerPrompt]:
            found = await asyncio.gather(*(server.prompts() for server in self.servers))
            return [one for listed in found for one in listed]

        return await LOOP.arun(list_all())

    async def prompt(self, prompt: ServerPrompt, words: str) -> Any:
        """Return a prompt filled in with a person's words: a text, or content parts. Raises
        ``ConfigError``."""
        asked = {"name": prompt.name, "arguments": prompt.fill(words)}
        return await self._read(prompt.server, PROMPT, asked)

    async def resource(self, server: str, uri: str) -> Any:
        """Return a resource, marked as untrusted: a text, or content parts. Raises ``ConfigError``."""
        found = await self._read(server, RESOURCE, {"uri": uri})
        return wrap_untrusted(found, f"mcp:{server}") if isinstance(found, str) else found

    async def _read(self, name: str, reader: Listed, arguments: Mapping[str, Any]) -> Any:
        server = next((one for one in self.servers if one.name == name), None)
        if server is None:
            raise ConfigError("no such MCP server", name, ", ".join(one.name for one in self.servers))
        try:
            found = await LOOP.arun(server.call(reader, arguments, "pure", None))
        except ToolFailure as error:
            raise ConfigError(one_line(str(error), 500)) from None
        if not found:
            raise ConfigError(f"MCP server {name} answered with nothing", str(arguments))
        return found

    # On the engine's loop

    async def _prepare(self) -> None:
        await asyncio.gather(*(server.prepare() for server in self.servers))
        died_lately = [server for server in self.servers if server.status in ("idle", "down")]
        await asyncio.gather(*(server.prepare() for server in died_lately))

    async def _settle(self) -> tuple[str, ...]:
        """Fix the tools from now on; return a line for people for each server with news."""
        offers = self._offers()
        self._tools = tuple(tool for offer in offers.values() for tool in offer.tools)
        return tuple(line for server in self.servers for line in self._news(server, offers[server.name]))

    def _offers(self) -> dict[str, Offer]:
        """Return each server's offer, in the order of the config, as long as a request has room."""
        offers: dict[str, Offer] = {}
        room = MOST_TOOLS - len(self._taken)
        for server in self.servers:
            offers[server.name] = self._offer(server, max(0, room)) if server.status == "ready" else Offer()
            room -= len(offers[server.name].tools)
        return offers

    def _offer(self, server: McpServer, room: int) -> Offer:
        """Rebuild the offer only if the tool list changed, because each build checks every description."""
        listed = server.listed
        kept = self._made.get(server.name)
        if kept is not None and kept.listed is listed and (kept.taken, kept.room) == (self._taken, room):
            return kept.offer

        async def call(tool: Listed, arguments: Mapping[str, Any], effect: Effect) -> Any:
            asker = self._elicitation.asker(server.name) if self._elicitation.possible else None
            return await LOOP.arun(server.call(tool, arguments, effect, asker))

        offer = make_offer(
            server.name, server.config, listed, call, self._limits.call_timeout, self._taken, room
        )
        self._made[server.name] = _Made(listed, self._taken, room, offer)
        return offer

    def _news(self, server: McpServer, offer: Offer) -> Iterable[str]:
        """Return the lines about this server that were not reported at the previous turn."""
        lines = offer.notices
        if server.status != "ready" or server.problem:
            lines = (*lines, f"MCP server {server.name}: {_words(server, offer)}")
        before = self._said.get(server.name, ())
        self._said[server.name] = lines
        if before and not lines:
            return (f"MCP server {server.name}: {_words(server, offer)}",)
        return (line for line in lines if line not in before)


def _words(server: McpServer, offer: Offer) -> str:
    match server.status:
        case "ready":
            return server.problem or f"ready with {len(offer.tools)} tools"
        case "starting" if not server.problem:
            return "not ready yet; its tools come with a later turn"
        case _:
            return f"missing, {server.problem or 'it was closed'}; its tools come back when it does"


async def _close(servers: Sequence[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))


def _let_go(servers: Sequence[McpServer]) -> None:
    """Close the servers of an agent that was never closed."""
    if any(server.status != "idle" for server in servers):
        LOOP.submit(_close(servers))
