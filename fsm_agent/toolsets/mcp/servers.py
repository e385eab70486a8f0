"""The MCP servers of an agent, as a source of tools. (Why: decisions 34 and 35.)"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import weakref
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fsm_agent.errors import ConfigError
from fsm_agent.providers.keyless_environment import hide_from_children
from fsm_agent.request import Effect
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings.model import Settings
from fsm_agent.support.installation import install_command
from fsm_agent.support.redaction import keep_secret, secrets_among
from fsm_agent.support.threads import LOOP
from fsm_agent.tools.decorator import Tool
from fsm_agent.toolsets.mcp.config import ServerConfig, servers_of
from fsm_agent.toolsets.mcp.endpoint import named_in
from fsm_agent.toolsets.mcp.names import server_of
from fsm_agent.toolsets.mcp.offer import MOST_TOOLS, Offer, offered
from fsm_agent.toolsets.mcp.schema import Listed
from fsm_agent.toolsets.mcp.server import McpServer, Surroundings

T = TypeVar("T")
_MARGIN = 2.0
"""Seconds beyond the limit of a start after which a turn waits no longer, whatever holds the start up."""


@dataclass(frozen=True, slots=True)
class _Made:
    """An offer, and what it was made from."""

    listed: Sequence[Listed]
    taken: frozenset[str]
    room: int
    offer: Offer


class McpServers:
    """Servers are started by the first turn, all at once, on the engine's own event loop, whichever loop a
    turn runs on.

    A turn waits for them for ``settings.mcp.start_timeout`` at most; who comes later is there for the next
    turn."""

    def __init__(self, configs: Mapping[str, ServerConfig], around: Surroundings) -> None:
        self.servers = tuple(McpServer(name, config, around) for name, config in configs.items())
        self._clock, self._limits, self._poll = around.clock, around.limits, around.poll
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
    ) -> McpServers | None:
        """The servers of ``given``, else of the config file in ``home``; ``None`` when there are none.
        Nothing is started.

        Raises ``ConfigError`` for a config that cannot be used, and when the SDK is not installed.
        """
        configs = servers_of(given, home)
        if not configs:
            return None
        if importlib.util.find_spec("mcp") is None:
            allowed = f"{install_command('mcp')}, or no MCP servers"
            raise ConfigError(
                "MCP servers are configured and the MCP SDK is not installed", ", ".join(configs), allowed
            )
        hide_from_children(name for one in configs.values() for name in named_in(one))
        environment = dict(os.environ if environment is None else environment)
        for one in configs.values():
            keep_secret(secrets_among(one.env, environment))
            keep_secret(secrets_among(one.headers, environment, every=True))
        return cls(
            configs, Surroundings(workdir, home, environment, clock, settings.mcp, settings.poll.control)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"mcp:{server.name}" for server in self.servers)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def ready(self, taken: Collection[str], interrupted: asyncio.Event) -> tuple[str, ...]:
        """Start or look over all servers and fix the tools of the next turn. A line for people when anything
        is new."""
        self._taken = frozenset(taken)
        watch, most = Stopwatch(self._clock), self._limits.start_timeout + _MARGIN
        work = asyncio.wrap_future(LOOP.submit(self._prepare()))
        finish = await wait_with_deadline(
            work, left=lambda: most - watch.elapsed(), interrupted=interrupted, poll=self._poll
        )
        if finish == "done":
            work.result()
        work.cancel()  # whoever is late has its attempt go on beside the turn
        return () if finish == "interrupted" else await _on_loop(self._settle())

    async def find(self, name: str) -> Tool | None:
        """A tool of a turn that was begun before this process: its server is started when it is one of
        ours."""
        if all(server.name != server_of(name) for server in self.servers):
            return None
        await _on_loop(self._prepare())
        await _on_loop(self._settle())
        return next((tool for tool in self._tools if tool.spec.name == name), None)

    async def aclose(self) -> None:
        """End all servers, at once and within seconds; none is started again."""
        await _on_loop(_close(self.servers))

    async def look(self) -> dict[str, tuple[bool, str]]:
        """Start all servers: is each of them there, and how many tools it has or why it is missing."""
        await _on_loop(self._prepare())
        offers = self._offers()
        return {
            server.name: (server.status == "ready", _words(server, offers[server.name]))
            for server in self.servers
        }

    # On the engine's loop

    async def _prepare(self) -> None:
        await asyncio.gather(*(server.prepare() for server in self.servers))
        died_lately = [server for server in self.servers if server.status in ("idle", "down")]
        await asyncio.gather(*(server.prepare() for server in died_lately))

    async def _settle(self) -> tuple[str, ...]:
        """From here on these are the tools; a line for people about each server of which there is news."""
        offers = self._offers()
        self._tools = tuple(tool for offer in offers.values() for tool in offer.tools)
        return tuple(line for server in self.servers for line in self._news(server, offers[server.name]))

    def _offers(self) -> dict[str, Offer]:
        """What each server offers, in the order of the config, as long as there is room in a request."""
        offers: dict[str, Offer] = {}
        room = MOST_TOOLS - len(self._taken)
        for server in self.servers:
            offers[server.name] = self._offer(server, max(0, room)) if server.status == "ready" else Offer()
            room -= len(offers[server.name].tools)
        return offers

    def _offer(self, server: McpServer, room: int) -> Offer:
        """Made anew only for another list of tools: descriptions are looked over each time."""
        listed = server.listed
        made = self._made.get(server.name)
        if made is not None and made.listed is listed and (made.taken, made.room) == (self._taken, room):
            return made.offer

        async def call(tool: str, arguments: Mapping[str, Any], effect: Effect) -> Any:
            return await _on_loop(server.call(tool, arguments, effect))

        offer = offered(
            server.name, server.config, listed, call, self._limits.call_timeout, self._taken, room
        )
        self._made[server.name] = _Made(listed, self._taken, room, offer)
        return offer

    def _news(self, server: McpServer, offer: Offer) -> Iterable[str]:
        """What was not said of this server at the turn before."""
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


async def _on_loop(work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(LOOP.submit(work))


async def _close(servers: Sequence[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))


def _let_go(servers: Sequence[McpServer]) -> None:
    """Nobody closed the agent that these belonged to."""
    if any(server.status != "idle" for server in servers):
        LOOP.submit(_close(servers))
