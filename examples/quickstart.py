"""An agent with one tool. Needs no key: without a model of your own, the offline demo answers by rule.

python examples/quickstart.py
OPENAI_API_KEY=… python examples/quickstart.py
"""

from fsm_agent import Agent, tool


@tool(concurrency="parallel", effect="pure")
def lookup(city: str, days: int = 1) -> str:
    """Weather for a city.

    Args:
        city: Name of the city.
        days: How many days to look ahead.
    """
    return f"{city}: sunny, 21 degrees for {days} days"


agent = Agent(tools=[lookup])
# a model needs no such exact words; the offline demo, which follows rules, does
result = agent.run_conversation(
    'What is the weather? Ask lookup(city="Bern", days=2), and list the files here.'
)
print(result.final_response)
print(f"-- {result.turn_exit_reason}, {result.api_calls} iterations, model {result.provider}:{result.model}")
