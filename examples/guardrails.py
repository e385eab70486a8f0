"""Guardrails and hooks: a key never leaves, a path is corrected before anybody is asked, and all of it is in
the journal with its name."""

from fsm_agent import Agent, Block, Guardrail, Hooks, RunContext, tool
from fsm_agent.hooks import ShownCall


def no_keys(context: RunContext, text: str) -> Block | None:
    return Block("that looks like an API key") if "sk-" in text else None


async def polite(context: RunContext, text: str) -> Block | None:
    return Block("not in this tone") if "stupid" in text else None


class AtHome(Hooks):
    def before_tool(self, context: RunContext, call: ShownCall) -> dict[str, str] | Block | None:
        where = str(call.arguments.get("where", ""))
        if where.startswith("/"):
            return Block("only places in this house")
        return {"where": f"the {where}"} if where == "attic" else None


@tool(effect="pure")
def look_in(where: str) -> str:
    """Look into a room."""
    return f"dust in {where}"


agent = Agent(
    "offline:demo",
    tools=[look_in],
    hooks=[AtHome()],
    input_guardrails=[no_keys, Guardrail(polite, beside=True)],
    output_guardrails=[no_keys],
)
for message in ('Please call look_in("attic")', "Keep sk-123 in mind", "You stupid thing", "What is 6 * 7?"):
    result = agent.run_conversation(message)
    print(f"{message}\n  {result.turn_exit_reason}: {result.final_response}")
