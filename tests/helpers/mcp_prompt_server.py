"""An MCP server with a prompt and a resource, made with the SDK."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("with prompts")


@server.prompt(description="Review a change")
def review(file: str, focus: str = "bugs") -> str:
    """Ask for a review."""
    return f"Please review {file} for {focus}."


@server.resource("notes://today")
def today() -> str:
    """Notes."""
    return "buy milk"


server.run()
