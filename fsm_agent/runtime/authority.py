"""Authority is never data: what a turn may do follows from the agent that runs it, and from a person, now
or while it was suspended in this home.

A journal, an imported file, an edit of a fork, a tool's description and a provider's reply record what was
said and done. None of them can grant anything, whatever rule, address or approval it contains. Stored data
can only make a turn more careful: an unsafe call stays unsafe, a no stays a no. (Why: decision 52.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import Approval, AskApproval, RunTool, ToolSpec

FIELDS = frozenset({"attended", "auxiliary", "has_engine", "has_memory", "runtime", "tools", "workdir"})
"""Fields that a resumed turn takes from its agent, whatever is stored."""
SETTINGS = (
    *("approval", "credential", "delegation", "limits", "mcp", "memory", "prices", "sandbox"),
    *("store", "web"),
)
"""Groups of settings that a resumed turn takes from its agent. The others (budgets, patience) stay as they
were when the turn began."""


class Admission:
    """The calls of one turn that may run: those of tools that need no approval, and those approved while
    this process ran the turn; each yes admits one call once. Kept in memory only, so that stored data
    cannot add a call."""

    def __init__(self) -> None:
        self._free: frozenset[str] = frozenset()
        self._granted = Counter[tuple[str, str]]()

    def opened(self, tools: Iterable[ToolSpec]) -> None:
        """Take the turn's tools, as marked by the rules."""
        self._free = frozenset(tool.name for tool in tools if tool.approval == "never")

    def free(self, name: str) -> bool:
        """Say whether calls of this tool need no approval."""
        return name in self._free

    def answered(self, request: AskApproval, answer: Approval) -> None:
        """Remember a person's answer; an approval applies to this call with these arguments."""
        if answer.granted:
            self._granted[_call(request)] += 1

    def admits(self, request: RunTool) -> bool:
        """Say whether the call may run: its tool needs no approval, or a person approved it in this
        process, which this call uses up."""
        if self.free(request.name):
            return True
        granted, call = self._granted, _call(request)
        if not granted[call]:
            return False
        granted[call] -= 1
        return True


def _call(request: Any) -> tuple[str, str]:
    return request.call_id, signature(request.name, request.arguments)
