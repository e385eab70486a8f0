"""LangGraph, the agent that its library makes: replies come whole, no checkpoints."""

from importlib.metadata import version

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

VERSION = version("langgraph")


@tool
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    model = ChatOpenAI(model=str(rounds), base_url=url, api_key="k")  # type: ignore[arg-type]
    graph = create_agent(model, [look], system_prompt="You look at things.")
    result = await graph.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 3 * rounds + 10})
    assert result["messages"][-1].content == "done"
