"""Interrupt a turn from another thread: it ends at once, and the session can continue."""

import threading
import time

from fsm_agent import Agent, tool


@tool(effect="pure")
def count_sheep(minutes: float) -> str:
    """Count sheep for a while."""
    time.sleep(minutes * 60)
    return "asleep"


agent = Agent("offline:demo", tools=[count_sheep], settings={"tool": {"interrupt_grace": 0.2}})
threading.Timer(0.5, agent.interrupt, args=["changed my mind"]).start()
result = agent.run_conversation("Please call count_sheep(10)")
print(result.turn_exit_reason, "because:", result.interrupt_message)
print(agent.chat("What is 6 * 7?"))
