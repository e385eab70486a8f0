"""Logging in to an MCP server, with a person at a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import Mcp
from fsm_agent.support.redaction import mask
from fsm_agent.toolsets.mcp.config import ServerConfig
from fsm_agent.toolsets.mcp.connection import Connection
from fsm_agent.toolsets.mcp.logins import Login
from fsm_agent.toolsets.mcp.oauth import LoginPage
from fsm_agent.toolsets.mcp.process import LOGS, Broken, McpRefused, ServerLog, Unset, Unusable, endpoint_of

ALLOWED = "a server that answers, and a login in the browser"


async def log_in(
    name: str,
    config: ServerConfig,
    home: Path,
    environment: Mapping[str, str],
    opened: Callable[[str], Awaitable[None]],
    seconds: float,
) -> tuple[str, int]:
    """Begin a new login; (where it is kept, how many tools the server has). ``opened`` is given the address
    at which the person logs in, within ``seconds``. Raises ``ConfigError``."""
    assert config.oauth is not None
    try:
        endpoint = endpoint_of(config, Path.cwd(), environment)
    except Unset as error:
        raise ConfigError(str(error), None, ALLOWED) from None
    login = Login(home, name, endpoint.url)
    log = ServerLog(home / LOGS / f"mcp-{name}.log", endpoint.secrets)
    page = LoginPage(endpoint.url, config.oauth, endpoint.client_secret, login, opened)
    async with page as auth:
        most = Mcp().max_message_bytes
        connection = Connection(endpoint, log, most, lambda: None, asks=False, auth=auth)
        try:
            async with asyncio.timeout(seconds):
                await connection.open()
                tools = await connection.tools()
        except TimeoutError:
            raise ConfigError(f"the login took more than {seconds:g} s", name, ALLOWED) from None
        except (Broken, McpRefused, Unusable, OSError) as error:
            raise ConfigError(f"no login to {name}: {mask(str(error))}", None, ALLOWED) from None
        finally:
            await connection.close()
    if not page.where:
        raise ConfigError("the server wanted no login", name, "a server with logins, or oauth = false")
    return page.where, len(tools)
