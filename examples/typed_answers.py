"""Typed answers: the model hears what does not fit until it does, and a function builds the final answer.

python examples/typed_answers.py
"""

from pydantic import BaseModel, Field

from fsm_agent import Agent, RunContext
from fsm_agent.testing import ScriptedModel, call, text, tools


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


def order(context: RunContext[dict[str, float]], item: str, number: int) -> str:
    """Order something of the price list."""
    prices = context.deps
    if item not in prices:
        raise ValueError(f"there is no {item}, only {', '.join(prices)}")
    return f"{number} x {item}: {number * prices[item]:.2f}"


# in the place of a model: what it says, one reply after the other
model = ScriptedModel([
    text("Bern, of course."),
    tools(call("final_result", {"name": "Bern", "people": 144_000})),
    tools(call("final_result", {"item": "coffee", "number": 2})),
    tools(call("final_result", {"item": "tea", "number": 2})),
])  # fmt: skip
agent = Agent(model, output_type=City)

city = agent.run_conversation("What is the capital of Switzerland?").output
print(repr(city), "has fewer than a million" if city and city.people < 1_000_000 else "")

ordered = agent.run_conversation("Two coffees, please.", output_type=order, deps={"tea": 1.5})
print(ordered.output, f"after {ordered.attempts} requests")
