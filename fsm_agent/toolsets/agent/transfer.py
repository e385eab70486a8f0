"""Handing the conversation over: a tool for each agent that can go on with it. The call only says so; the
turn ends when all calls of its round have their results, and the next turn is the other agent's."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from fsm_agent.conversation.handover import TRANSFER
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import here

LONGEST_NOTE = 20_000
"""Characters."""
TOO_OFTEN = (
    "Not handed over: the conversation went from agent to agent {count} times since the user spoke, and at"
    " most {most} are allowed (delegation.max_handoffs). Answer the user yourself."
)


class Transfer:
    """Hands a conversation to one agent; at most ``most`` times in a row, whoever does."""

    def __init__(self, to: str, most: int) -> None:
        self._to, self._most = to, most

    async def transfer(self, note: Annotated[str, Field(max_length=LONGEST_NOTE)] = "") -> str:
        """Hand the conversation over.

        Args:
            note: What the next agent should know besides the conversation, which it sees.
        """
        if (count := here().handoffs) >= self._most:
            raise ToolFailure(TOO_OFTEN.format(count=count, most=self._most))
        return f"{self._to} goes on with the conversation."


def transfer_tool(to: str, description: str, most: int) -> Tool:
    """The tool that hands the conversation to the agent of this name. It changes nothing by itself, and no
    program may call it."""
    made = tool(name=f"{TRANSFER}{to}", concurrency="interactive", effect="pure")(Transfer(to, most).transfer)
    return replace(made, spec=replace(made.spec, description=description))
