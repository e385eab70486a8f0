"""``fsm-agent mcp``: the agent as an MCP server, and logins to other servers."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fsm_agent.agent import Agent
from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, HomeFolder, with_agent
from fsm_agent.cli.screen import clean, say
from fsm_agent.cli.serve import (
    AppName,
    Certificate,
    CertificateKey,
    Host,
    Insecure,
    Port,
    ServeTarget,
    agents_of,
    is_pipe,
    keys_of,
    log_to_stderr,
    serve_until_a_signal,
)
from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.support.files import home_of, workdir_of
from fsm_agent.support.installation import importing
from fsm_agent.support.local_server import LOOPBACK
from fsm_agent.support.threads import in_a_loop
from fsm_agent.toolsets import TOOLSETS, ToolsetPlace
from fsm_agent.toolsets.mcp.config import Login, ServerConfig, servers_of
from fsm_agent.toolsets.mcp.process import endpoint_of
from fsm_agent.toolsets.memory import SkillShelf


@with_agent("yes", "session", *LIMITS, *SHOWN)
def serve(
    given: CliOptions,
    offer: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="A tool, or a toolset, that clients may call themselves; repeatable."
        ),
    ] = (),  # type: ignore[assignment]
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP; default: standard input and output.")
    ] = False,
    host: Host = LOOPBACK,
    port: Port = 0,
    app: AppName = None,
    insecure: Insecure = False,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
) -> int:
    """Serve the agent, and tools of it, to MCP clients.

    Messages pass over standard input and output, or with --http at /mcp, for which a token is printed.
    """
    target = ServeTarget(host, port, app, False, insecure, tls_cert, tls_key, (), 256)
    target.check()
    with importing("mcp", "serving MCP needs"):
        import fsm_agent.serve.server  # noqa: F401 - it needs the extra
        from fsm_agent.serve.mcp_transports import McpDoor, serve_stdio
    if not http and (sys.stdin is None or not is_pipe(sys.stdin.fileno())):
        allowed = "a pipe as standard input, or --http; see docs/mcp.md"
        raise ConfigError("an MCP client starts this command and talks to it", None, allowed)
    from fsm_agent.serve.called_tools import with_called_tools

    make_agent, store = agents_of(replace(given, source="mcp"), app)
    tools, shelf = _choose_offers(make_agent, offer)
    make_agent = with_called_tools(make_agent, tools)
    log_to_stderr()
    if not http:
        from fsm_agent.dispatch.service import SessionService

        in_a_loop(serve_stdio(SessionService(make_agent, store), tools, shelf))
        return 0
    keys, token = keys_of(target, store)
    in_a_loop(serve_until_a_signal(target, given, make_agent, store, keys, token, McpDoor(tools, shelf)))
    return 0


def _choose_offers(
    make_agent: Callable[..., Any], names: Sequence[str]
) -> tuple[dict[str, ToolSpec], SkillShelf | None]:
    """Return the tools of these names and toolsets, and the skills if the agent reads them. Raises
    ``ConfigError``."""
    from fsm_agent.serve.called_tools import choose_tools, find_agent

    agent, _ = find_agent(make_agent, None)
    reads = "skills" in (agent.options["toolsets"] or ())
    shelf = SkillShelf(agent.home, workdir_of(agent.options["workdir"])) if reads else None
    try:
        return choose_tools(agent, [tool for name in names for tool in _names_in(agent, name)]), shelf
    finally:
        agent.close()


def _names_in(agent: Agent[Any, Any], name: str) -> Sequence[str]:
    own = [spec.name for spec in agent.tools]
    if name in own or name not in TOOLSETS:
        return (name,)
    settings = agent.settings
    root = workdir_of(agent.options["workdir"])
    place = ToolsetPlace(root, home=agent.home, web=settings.web, sandbox=settings.sandbox)
    return [tool.spec.name for tool in TOOLSETS[name](place) if tool.spec.name in own]


# Logins to other servers


LOGIN_SECONDS = 300.0
"""Time limit for a login."""


def login(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A server of the config file.")],
    show: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    home: HomeFolder = None,
) -> int:
    """Log in to an MCP server of others, in the browser.

    The login is kept in the machine's keyring, or in a private file of the home, and refreshed by turns.
    """
    where = home_of(home, os.environ)
    config = _server(name, where)
    if config.oauth is None:
        raise ConfigError("this server has no logins", name, f"oauth = true in [mcp.servers.{name}]")
    if config.oauth.issuer is not None:
        raise ConfigError("this server needs no login of a person", name, "a server without an issuer")
    with importing("mcp", "MCP needs"):
        from fsm_agent.toolsets.mcp.oauth import log_in

    async def opened(address: str) -> None:
        print(f"Log in here: {clean(address)}", file=sys.stderr, flush=True)
        if not show:
            await asyncio.to_thread(webbrowser.open, address)

    kept, tools = in_a_loop(log_in(name, config, where, dict(os.environ), opened, LOGIN_SECONDS))
    say(f"Logged in to {name}, which has {tools} tools. The login is kept in {kept}.")
    return 0


def logout(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A server of the config file.")],
    home: HomeFolder = None,
) -> int:
    """Forget the login to an MCP server of others."""
    where = home_of(home, os.environ)
    endpoint = endpoint_of(_server(name, where), Path.cwd(), dict(os.environ))
    there = Login(where, name, endpoint.url).forget()
    say(f"The login to {name} is forgotten." if there else f"There is no login to {name}.")
    return 0


def _server(name: str, home: Path) -> ServerConfig:
    servers = servers_of(None, home)
    if name not in servers:
        raise ConfigError(
            "no such MCP server", name, ", ".join(servers) or "there are none in the config file"
        )
    return servers[name]
