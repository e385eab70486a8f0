"""Another agent as a tool: each call is a child turn of that agent, under its own model, prompt and tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.agent.delegate import LONGEST, MAX_TASK, Delegation, delegating

UNHELD = "The agent {name} answers only an agent that has it among its tools."
TOO_DEEP = (
    "The agent {name} was not asked: agents may stand {most} below the first one (delegation.max_depth)."
    " Do without it."
)


class OtherAgent:
    """Asks one agent. ``delegation`` makes its turns, ``None`` until an agent has it as a tool; ``refusal``:
    why that agent may ask nobody, or nothing."""

    def __init__(self, name: str, delegation: Delegation | None = None, refusal: str = "") -> None:
        self._name, self._delegation, self._refusal = name, delegation, refusal

    async def ask(
        self,
        task: Annotated[str, Field(min_length=1, max_length=MAX_TASK)],
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        idempotency_key: str = "",
    ) -> str:
        """Give a task to another assistant and get its answer.

        Args:
            task: What is to be done, and what the answer must hold. It sees nothing of this conversation.
            context: All that it must know for it.
        """
        if self._delegation is None or self._refusal:
            raise ToolFailure(self._refusal or UNHELD.format(name=self._name))
        order = self._delegation.order(idempotency_key, task, context)
        [end] = await self._delegation.raised([order], idempotency_key)
        answer = self._delegation.fitted(order, end.text)
        if end.status == "completed":
            return answer
        rest = f"\n\nWhat it said so far:\n{answer}" if answer.strip() else ""
        raise ToolFailure(f"{self._name} did not finish ({end.status}): {end.error or 'no answer'}{rest}")


def other_agent(name: str, description: str, agent: OtherAgent) -> Tool:
    """Idempotent by the call's key, which names the child. Raises ``ConfigError`` for a name that is none of
    a tool."""
    made = tool(name=name, concurrency="parallel", effect="idempotent", timeout=LONGEST)(agent.ask)
    return delegating(made, description)
