"""pydantic-ai, its plain ``run``: replies come whole, nothing is kept."""

from importlib.metadata import version

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

VERSION = version("pydantic-ai-slim")


async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    model = OpenAIChatModel(str(rounds), provider=OpenAIProvider(base_url=url, api_key="k"))
    agent = Agent(model, system_prompt="You look at things.", tools=[look])
    result = await agent.run("go", usage_limits=UsageLimits(request_limit=rounds + 2))
    assert result.output == "done"
