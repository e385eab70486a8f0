"""Hermes Agent, its ``run_conversation`` in quiet mode with one tool of our own; synchronous, in a thread
here."""

import asyncio
import json
from importlib.metadata import version
from typing import Any

from run_agent import AIAgent
from tools.registry import registry
from toolsets import create_custom_toolset

VERSION = version("hermes-agent")
SCHEMA = {
    "name": "look",
    "description": "Look at number n.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}


def look(arguments: dict[str, Any], **_: Any) -> str:
    return json.dumps({"seen": f"{arguments['n']}: {'a line of tool output ' * 20}"})


registry.register(name="look", toolset="looking", schema=SCHEMA, handler=look)
create_custom_toolset("looking", "One tool", ["look"])


async def turn(url: str, rounds: int) -> None:
    agent = AIAgent(
        base_url=url,
        api_key="k",
        model=str(rounds),
        max_iterations=rounds + 2,
        tool_delay=0,
        enabled_toolsets=["looking"],
        quiet_mode=True,
        skip_context_files=True,
        skip_memory=True,
    )
    result = await asyncio.to_thread(agent.run_conversation, "go", "You look at things.")
    assert result["final_response"] == "done", result
