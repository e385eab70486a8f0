"""Queued turns: written down first, run by workers in order, taken back, handed over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.dispatch.apps import App
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.in_process import InProcess
from fsm_agent.dispatch.submit import submit
from fsm_agent.dispatch.worker import Worker
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel, repeat, text


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def transition(self, *move: Any) -> None:
        self.lines.append(move[1:])

    def tool_complete(self, *call: Any) -> None:
        self.lines.append(call)

    def status(self, line: str) -> None:
        self.lines.append((line,))


def app_of(store: Store, model: Any, **more: Any) -> App:
    return App.of(lambda: Agent(model, toolsets=[], **more), "test:app", store)


def test_a_queued_turn_is_run_and_its_sender_sees_it(tmp_path: Path) -> None:
    store, told = Store(tmp_path), Told()

    async def main() -> Any:
        dispatcher, stop = InProcess(), asyncio.Event()
        worker = Worker(store, app_of(store, ScriptedModel(repeat(text("hello")))), dispatcher, sweep=0.05)
        serving = asyncio.create_task(worker.run(2, stop))
        order = await submit(store, InProcess(), "hi")  # nobody tells the worker: the row is found
        result = await Follower(store, told).followed(order.turn)
        stop.set()
        await serving
        return order, result

    order, result = asyncio.run(main())
    assert (result.final_response, result.turn_id, result.completed) == ("hello", order.turn, True)
    assert ("Prepare", "ready", "BuildMessages") in told.lines
