"""Limits in money, tokens and time: a turn ends before it passes one, and says which, what was spent, and
what the next request could have taken.

python examples/limits.py
"""

from fsm_agent import Agent, tool


@tool(effect="pure")
def look_in(room: str) -> str:
    """Look into a room."""
    return f"dust in {room}"


def agent(**limits: dict[str, float]) -> Agent:
    prices = {"offline:demo": {"input": 2.0, "output": 10.0}}  # dollars for a million tokens
    return Agent("offline:demo", tools=[look_in], settings={"limits": limits, "prices": prices})


message = 'Please call look_in("attic"), then look_in("cellar").'
for one in (
    agent(turn={"usd": 0.50}, day={"usd": 5.00}),
    agent(turn={"usd": 0.01}),
    agent(session={"tokens": 1_000}),
    agent(tree={"seconds": 0.001}),
):
    result = one.run_conversation(message)
    print(f"{result.turn_exit_reason}: {result.final_response}")
    if result.limit:
        print(f"  the {result.limit['scope']}'s limit in {result.limit['unit']}: {result.limit['limit']}")
