"""fsm_agent as it comes: streaming, journalled to disk with every flush, guardrails and all."""

from fsm_agent import Agent, __version__, tool

VERSION = __version__


@tool(concurrency="parallel", effect="pure")
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    agent = Agent(
        f"openai:{rounds}",
        base_url=url,
        api_key="k",
        tools=[look],
        toolsets=[],
        system_prompt="You look at things.",
        settings={"max_iterations": rounds + 1},
        context_window=10_000_000,
    )
    result = await agent.arun("go")
    await agent.aclose()
    assert result.final_response == "done", result.error
    assert result.api_calls == rounds + 1
