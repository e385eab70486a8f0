"""Parents and children on one scripted model: what each conversation is answered, and a tool to stay in."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import ScriptedModel, call, repeat, tools
from tests.helpers.waiting import PATIENCE

Lines = dict[str, list[Any]]
SET = threading.Event()
SET.set()


def model(lines: Lines, requests: list[Any] | None = None) -> ScriptedModel:
    """Answers each conversation by its first words: who is asked "go" has other replies than who is asked
    "find the cat". ``requests`` gets (first words, body)."""
    left = {asked: list(replies) for asked, replies in lines.items()}
    lock = threading.Lock()

    def answer(body: Mapping[str, Any]) -> Any:
        with lock:
            asked = next(row["content"] for row in body["messages"] if row["role"] == "user")
            if requests is not None:
                requests.append((asked, body))
            return left[asked].pop(0)

    return ScriptedModel(repeat(answer))


def delegate(*goals: str, **more: Any) -> Any:
    return tools(call("delegate_task", {"tasks": [{"goal": goal} for goal in goals], **more}))


def told(result: Any) -> list[Any]:
    """The results of the tools of a turn; JSON decoded."""
    rows = [row["content"] for row in result.messages if row["role"] == "tool"]
    return [json.loads(row) if row.startswith("{") else row for row in rows]


def offered(body: Any) -> set[str]:
    """The names of the tools in a request."""
    return {one["function"]["name"] for one in body.get("tools", ())}


class Stay:
    """``stay``, a tool that is not left the first time; it sets ``reached``, ``ran`` counts its calls."""

    def __init__(self, effect: Any = "pure") -> None:
        self.effect, self.reached, self.ran = effect, asyncio.Event(), 0

    @property
    def tool(self) -> Any:
        @tool(effect=self.effect, concurrency="parallel")
        async def stay() -> str:
            """Stay the first time, and take a moment to leave."""
            self.ran += 1
            if self.ran == 1:
                self.reached.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.02)
            return "came back"

        return stay

    async def cut_off(self, one: Agent, after: threading.Event | None = None) -> Any:
        """The turn of an agent whose host stops as soon as the tool, and this event, is reached."""
        turn = one.start("go")
        running = asyncio.ensure_future(turn.arun())
        async with asyncio.timeout(PATIENCE):
            await self.reached.wait()
            await asyncio.to_thread((after or SET).wait, PATIENCE)
        running.cancel()
        await asyncio.wait({running})
        return turn
