"""Go through a turn move by move and see why each move was made: every guard that was looked at, with its
value."""

import asyncio

from fsm_agent import Agent


async def main() -> None:
    agent = Agent("offline:demo")
    turn = agent.start("List the files here, then tell me the time in Tokyo.")
    async for step in turn:
        guards = ", ".join(f"{label}: {'yes' if value else 'no'}" for label, value in step.guards)
        print(f"{step.seq:2}  {step.source:<14} {step.event:<8} → {step.dest:<14} {guards}")
    if turn.result is not None:
        print(turn.result.final_response)


asyncio.run(main())
