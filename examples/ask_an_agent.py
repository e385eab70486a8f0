"""An agent as a tool of another one: its own prompt, tools and limits; only its answer comes back."""

from fsm_agent import Agent, tool


@tool(effect="pure")
def price(item: str) -> str:
    """Say what an item costs, in francs."""
    return {"lamp": "40 francs", "desk": "120 francs"}.get(item, "not for sale")


clerk = Agent(name="clerk", tools=[price], toolsets=[], system_prompt="You know what things cost.")
shop = Agent(
    name="shop",
    tools=[clerk.as_tool(description="Ask the clerk what something costs.", max_iterations=5)],
    toolsets=[],
    system_prompt="You sell furniture.",
)
result = shop.run_conversation("""Please call clerk(task='Please call price(item="lamp")')""")
print(result.final_response)
for child in result.children:
    print(f"{child.agent}: {child.turn_exit_reason}, {child.attempts} requests, {child.usage.total} tokens")
