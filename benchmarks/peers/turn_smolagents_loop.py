"""smolagents, its tool-calling agent: synchronous, in a thread here; the last answer is a tool call of its
own, so the loop is stopped by its number of steps."""

import asyncio
from importlib.metadata import version

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

VERSION = version("smolagents")


@tool
def look(n: int) -> str:
    """Look at number n.

    Args:
        n: the number
    """
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    model = OpenAIModel(model_id=str(rounds + 1), api_base=url, api_key="k")
    agent = ToolCallingAgent([look], model, max_steps=rounds, verbosity_level=LogLevel.OFF)
    await asyncio.to_thread(agent.run, "go")
