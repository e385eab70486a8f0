"""What tests of queued turns use: a tool that blocks, agents, a worker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fsm_agent import Agent, RunContext, TurnResult, tool
from fsm_agent.dispatch.dispatcher import DIGEST, InProcess, Order, TurnLink, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.worker import App, Worker, run_turn
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import queue
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools


class Told:
    """Hears what a follower tells."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def transition(self, turn_id: str, source: str, event: str, dest: str, **_: Any) -> None:
        self.moves.append(dest)

    def tool_complete(
        self, call_id: str, name: str, arguments: Any, result: str, status: str, **_: Any
    ) -> None:
        self.calls.append((name, result))

    def status(self, line: str) -> None:
        self.lines.append(line)


class Held:
    """A tool that blocks until it is released, and counts its calls."""

    def __init__(self) -> None:
        self.begun, self.go = list[str](), asyncio.Event()

        @tool(effect="unsafe")
        async def put(ctx: RunContext[None], key: str) -> str:
            """Do what cannot be undone."""
            self.begun.append(f"{ctx.turn_id} {key}")
            await self.go.wait()
            return f"put {key}"

        self.tool = put


def asks(body: dict[str, Any]) -> Any:
    """One call of the tool, then words."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    last = rows[-1]
    return (
        text(f"after {last['content']}") if last["role"] == "tool" else tools(call("put", {"key": "x"}, "c1"))
    )


def app_of(store: Store, make: Callable[[], Any]) -> App:
    return App.of(make, "tests:app", store)


def agent_with(held: Held, **more: Any) -> Callable[[], Agent[Any, Any]]:
    return lambda: Agent(ScriptedModel(repeat(asks)), tools=[held.tool], toolsets=[], **more)


def says(words: str, **more: Any) -> Callable[[], Agent[Any, Any]]:
    return lambda: Agent(ScriptedModel(repeat(text(words))), toolsets=[], **more)


async def queued(store: Store, turn: str = "t-1") -> Order:
    """A turn that is stored, but that no worker was notified of."""
    order = Order("s-1", turn, DIGEST)
    await queue(store, order.turn, order.session, DIGEST, {"user_message": "go"})
    return order


async def attempted(
    store: Store, order: Order, rank: int | None, make: Callable[[], Any], link: TurnLink | None = None
) -> str:
    """An attempt at a turn by a worker with this store; how it ended."""
    made = app_of(store, make).make
    return await run_turn(order, rank, link or TurnLink(), store, made, lambda agent: None)


async def told(store: Store, dispatcher: Any, words: str, session: str | None = None) -> TurnResult:
    """What comes of a message that is submitted and followed."""
    order = await submit(store, dispatcher, words, session)
    return await Follower(store, Told()).follow(order.turn)


@asynccontextmanager
async def served(
    store: Store, make: Callable[[], Any], slots: int = 2, **more: Any
) -> AsyncIterator[InProcess]:
    dispatcher, stop = InProcess(), asyncio.Event()
    worker = Worker(store, app_of(store, make), dispatcher, sweep=0.02, **more)
    serving = asyncio.create_task(worker.run(slots, stop))
    try:
        yield dispatcher
    finally:
        stop.set()
        await serving
