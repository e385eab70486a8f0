"""What every test does with a debugger: give an order and wait, wait for a question, wait for the end."""

from __future__ import annotations

import asyncio
from typing import Any

from fsm_agent.debug import Debugger, Status
from tests.helpers.waiting import PATIENCE, until


def give(debugger: Debugger, order: str, **body: Any) -> Status:
    """Give an order and wait until the engine has settled."""

    async def ordered() -> Status:
        debugger.order(order, body)
        return await debugger.settled(PATIENCE)

    return asyncio.run(ordered())


def next_held(debugger: Debugger, before: int = 0, *, allowable: bool = False) -> dict[str, Any]:
    """The next question after ``before`` that is held back; ``allowable``: one that may be allowed."""

    def held() -> list[dict[str, Any]]:
        return [one for one in debugger.status.held if one["id"] > before and one["allowable"] >= allowable]

    until(lambda: bool(held()), "another question")
    return held()[0]


def ended(debugger: Debugger) -> None:
    until(lambda: debugger.status.phase == "ended", "the end")
