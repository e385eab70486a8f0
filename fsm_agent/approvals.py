"""Who may say yes to a dangerous call, for how long it is remembered, and what nobody can approve."""

from __future__ import annotations

import asyncio
from typing import Any

from fsm_agent.callbacks import Callbacks
from fsm_agent.ports import Clock
from fsm_agent.requests import Approval, AskApproval
from fsm_agent.signatures import signature
from fsm_agent.toolsets.policy import hard_line
from fsm_agent.watch import Stopwatch, race

NOBODY = "nobody is there to approve it"


class Approvals:
    """Fails closed: no callback, no answer in time, an unknown answer or an error mean no (catalogue APPR-01..08)."""

    def __init__(self, callbacks: Callbacks, clock: Clock, timeout: float, poll: float) -> None:
        self._callbacks, self._clock = callbacks, clock
        self._timeout, self._poll = timeout, poll
        self._granted: set[str] = set()

    async def ask(self, request: AskApproval, interrupted: asyncio.Event) -> Approval:
        command = request.arguments.get("command")
        if isinstance(command, str) and (reason := hard_line(command)):
            return Approval(False, f"this can never be approved: {reason}")
        key = signature(request.name, request.arguments)
        if key in self._granted:
            return Approval(True, "approved before", "session")
        if not self._callbacks.has("approval"):
            return Approval(False, NOBODY)
        watch = Stopwatch(self._clock)
        work = asyncio.ensure_future(self._callbacks.ask("approval", request))
        try:
            finish = await race(work, left=lambda: self._timeout - watch.elapsed(), interrupted=interrupted, poll=self._poll)
        finally:
            if not work.done():
                work.cancel()
        if finish != "done":
            late = f"no answer within {self._timeout:.0f} s"
            return Approval(False, late if finish == "late" else "interrupted", interrupted=finish == "interrupted")
        approval = read_answer(work.result())
        if approval.granted and approval.scope != "once":
            self._granted.add(key)
        return approval


def read_answer(answer: Any) -> Approval:
    """What a callback may answer: True, "once", "session" or "always" grant, everything else denies."""
    if isinstance(answer, Approval):
        return answer
    match answer:
        case True | "once" | "yes" | "y":
            return Approval(True)
        case "session":
            return Approval(True, scope="session")
        case "always":
            return Approval(True, scope="always")
    return Approval(False, "the user said no")
