"""An MCP server made with the SDK: it speaks the newest protocol, in which a client must subscribe to
notifications of changes."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

server = MCPServer("made with the SDK")


class Weather(BaseModel):
    """What the tool answers, in fields."""

    degrees: float
    wind: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def weather(city: Annotated[str, Field(description="Its name")]) -> Weather:
    """Weather for a city."""
    return Weather(degrees=len(city), wind="calm")


@server.tool()
def broken() -> str:
    """Raises."""
    raise RuntimeError("it never works")


def late() -> str:
    """Was not there at first."""
    return "late, but there"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(late)
    await ctx.notify_tools_changed()
    return "grown"


server.run()
