"""A conversation that one agent hands over to another, in the same session."""

from fsm_agent import Agent, Handoff, tool


@tool(effect="pure")
def invoice(number: int) -> str:
    """Look up an invoice."""
    return f"invoice {number}: 120 francs, paid"


billing = Agent(name="billing", tools=[invoice], toolsets=[], system_prompt="You answer about invoices.")
triage = Agent(
    name="triage",
    handoffs=[Handoff(billing, description="For everything about money.")],
    toolsets=[],
    system_prompt="You find out who can help.",
)
result = triage.run_conversation('Please call transfer_to_billing(note="Please call invoice(5)")')
print(result.agent, "says:", result.final_response)
print("the way:", [f"{one.agent} → {one.to}" for one in result.handoffs])
result = triage.speaker().run_conversation("Please call invoice(6)")
print(result.agent, "continues")
