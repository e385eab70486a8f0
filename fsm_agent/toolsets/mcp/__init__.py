"""MCP servers as sources of tools: other programs whose tools a model may call like built-in ones.

>>> from fsm_agent import Agent
>>> agent = Agent(mcp={"time": {"command": "uvx", "args": ["mcp-server-time"]}})  # doctest: +SKIP

Servers are described in ``config.toml`` (see ``fsm_agent.toolsets.mcp.config``), started by the first turn,
and can neither block nor end one: see ``fsm_agent.toolsets.mcp.servers``. Needs the extra ``mcp``;
the SDK is loaded when a server is first started."""

from fsm_agent.toolsets.mcp.config import ServerConfig, ToolRule
from fsm_agent.toolsets.mcp.servers import McpServers

__all__ = ["McpServers", "ServerConfig", "ToolRule"]
