"""A turn that waits for a person, and for a result from another system: it is suspended, and resumes in
any process once the answer is available.

python examples/people.py
"""

import tempfile

from fsm_agent import Agent, ResultLater, TurnSuspended, tool


@tool(approval="ask")
def print_flyers(copies: int) -> str:
    """Have flyers printed."""
    raise ResultLater(f"the print shop, {copies} flyers")  # the shop says later how it went


def agent() -> Agent:
    """As in a process of its own: nothing is shared but the home."""
    rules = {"approval": {"unanswered": "suspend"}}
    return Agent("offline:demo", tools=[print_flyers], home=home, settings=rules)


home = tempfile.mkdtemp()
try:
    agent().chat("Please call print_flyers(200).")
except TurnSuspended as waits:
    turn = waits.turn_id

for value in ("once", "200 flyers, ready on Monday"):
    [item] = agent().pending()  # days later, somewhere else
    print(f"{item.id} waits for {item.what}:\n{item.asked}")
    agent().answer(item.id, value, by="Ada")
    try:
        print(agent().resume(turn).run().final_response)
    except TurnSuspended as waits:
        print(waits)
