"""An agent behind our MCP server, with tools that the conformance suite calls, as a process that says its address.

The suite sends no key, so each request gets the server's here, behind its other checks: host, origin, size."""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsm_agent import Agent, AudioPart, FilePart, ImagePart, RunContext, tool
from fsm_agent.dispatch.service import SessionService
from fsm_agent.serve.app import app_of
from fsm_agent.serve.called_tools import choose_tools, with_called_tools
from fsm_agent.serve.keys import KeyRing
from fsm_agent.serve.mcp_transports import McpDoor
from fsm_agent.serve.server import Server
from fsm_agent.sessions.store import Store
from fsm_agent.support.local_server import own_hosts
from fsm_agent.testing import ScriptedModel, text

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = ImagePart(f"data:image/png;base64,{PIXEL}")
WAV = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"
KEY = "the-key-of-the-suite"


@tool
def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@tool
def test_image_content() -> Any:
    """Answer with an image."""
    return IMAGE


@tool
def test_audio_content() -> Any:
    """Answer with a sound."""
    return AudioPart(f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}")


@tool
def test_embedded_resource() -> Any:
    """Answer with a file."""
    return FilePart(b"%PDF-1.4\n%%EOF\n", "a.pdf")


@tool
def test_multiple_content_types() -> Any:
    """Answer with a text, an image, and a file."""
    return [
        {"type": "text", "text": "Multiple content types test:"}, IMAGE, FilePart(b"%PDF-1.4\n%%EOF\n", "a.pdf"),
    ]  # fmt: skip


@tool
def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@tool
def test_tool_with_progress(context: RunContext) -> str:
    """Take a while."""
    context.progress("half of it is done")
    return "done"


@tool(approval="ask")
def test_elicitation(message: str) -> str:
    """Run after an approval."""
    return f"approved: {message}"


@tool
def test_reconnection() -> str:
    """Answer on a stream that may break."""
    return "Reconnection test completed successfully"


@tool
def json_schema_2020_12_tool(name: str = "", address: Any = None) -> str:
    """Take an address."""
    return name


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
WHOLE = replace(json_schema_2020_12_tool, spec=replace(json_schema_2020_12_tool.spec, parameters=SCHEMA))
TOOLS = [
    WHOLE,
    test_simple_text, test_image_content, test_audio_content, test_embedded_resource, test_multiple_content_types,
    test_error_handling, test_tool_with_progress, test_elicitation, test_reconnection,
]  # fmt: skip


def make_agent() -> Agent[Any, Any]:
    return Agent(ScriptedModel([text("It is done.")] * 3), toolsets=[], tools=TOOLS)


def with_key(app: Any) -> Any:
    """The application, for clients that have no key."""

    async def keyed(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {KEY}".encode())]
        await app(scope, receive, send)

    return keyed


async def main(home: Path) -> None:
    store = Store(home)
    with make_agent() as agent:
        tools = choose_tools(agent, [one.spec.name for one in TOOLS])
    service = SessionService(with_called_tools(make_agent, tools), store)
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    app = app_of(service, KeyRing(store, KEY), hosts=own_hosts(port), doors=[McpDoor(tools)])
    server = Server(with_key(app), service, ready=lambda: print(f"http://localhost:{port}", flush=True))
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    ended.add_done_callback(lambda _: setattr(server, "should_exit", True))
    await server.serve([bound])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
