"""openai-agents, its plain ``Runner.run`` on chat completions: replies come whole, nothing is kept, no
tracing."""

from importlib.metadata import version

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

VERSION = version("openai-agents")
set_tracing_disabled(True)


@function_tool
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    async with AsyncOpenAI(base_url=url, api_key="k") as client:
        model = OpenAIChatCompletionsModel(str(rounds), openai_client=client)
        agent = Agent("looker", instructions="You look at things.", model=model, tools=[look])
        result = await Runner.run(agent, "go", max_turns=rounds + 2)
        assert result.final_output == "done"
