"""Authority is never data: what a turn may do follows from the agent that runs it, and from a person, now or
while it was suspended in this home.

A journal, a file that was imported, an edit of a fork, the description of a tool and the reply of a provider
tell what was said and done. None of them can allow anything: not by what it says of a tool, nor by a rule, an
address or a yes that stands in it. What is stored may only make a turn more careful: a call that was once
unsafe stays so, a no stays a no. (Why: decision 52.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import Approval, AskApproval, RunTool, ToolSpec

FIELDS = frozenset({"attended", "auxiliary", "has_engine", "has_memory", "runtime", "tools", "workdir"})
"""Fields of a turn that one which goes on has from its agent, whatever is stored of them."""
SETTINGS = (
    *("approval", "credential", "delegation", "limits", "mcp", "memory", "prices", "sandbox"),
    *("store", "web"),
)
"""Groups of settings likewise. The others (budgets, patience) are those that the turn was begun
with."""


class Admission:
    """The calls of one turn that may run: those of tools that need no yes, and those that got one while this
    process ran the turn, whoever gave it; each yes lets one call run once. Held in memory alone, so that
    nothing that is stored can put a call in."""

    def __init__(self) -> None:
        self._free: frozenset[str] = frozenset()
        self._granted = Counter[tuple[str, str]]()

    def opened(self, tools: Iterable[ToolSpec]) -> None:
        """These are the tools of the turn, as the rules have it."""
        self._free = frozenset(tool.name for tool in tools if tool.approval == "never")

    def free(self, name: str) -> bool:
        """Does a call of this tool need no yes?"""
        return name in self._free

    def answered(self, request: AskApproval, answer: Approval) -> None:
        """Remember a person's answer; a yes is for this call with these arguments."""
        if answer.granted:
            self._granted[_call(request)] += 1

    def admits(self, request: RunTool) -> bool:
        """Say whether the call may run: its tool needs no yes, or a person gave one in this process, which
        this call uses up."""
        if self.free(request.name):
            return True
        granted, call = self._granted, _call(request)
        if not granted[call]:
            return False
        granted[call] -= 1
        return True


def _call(request: Any) -> tuple[str, str]:
    return request.call_id, signature(request.name, request.arguments)
