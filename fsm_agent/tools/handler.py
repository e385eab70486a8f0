"""Starting a handler, so that whatever it does comes back as a value and cannot stop the engine."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from fsm_agent.support.workers import WORKERS
from fsm_agent.tools.decorator import Tool


@dataclass(frozen=True, slots=True)
class Returned:
    """What a handler gave back."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """What a handler raised."""

    error: BaseException


Ending = Returned | Raised


def start(tool: Tool, arguments: Mapping[str, Any], context: Context) -> asyncio.Future[Ending]:
    """Run the handler in ``context``: a task of this loop for an asynchronous one, else a thread.

    The future never holds an exception. It is cancelled when the handler let a cancellation through. Raises
    ``RuntimeError`` when the machine can start no more threads.
    """
    loop = asyncio.get_running_loop()
    if tool.is_async:
        return loop.create_task(_contained(tool.handler, arguments), context=context)
    ending: asyncio.Future[Ending] = loop.create_future()

    def deliver(value: Ending) -> None:
        if not ending.done():
            ending.set_result(value)

    def work() -> None:
        nonlocal tool, arguments, context
        threading.current_thread().name = f"tool-{tool.spec.name}"
        value = context.run(_finished, tool.handler, arguments)
        del tool, arguments, context  # nobody who hears of the end finds what it worked with still held here
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, value)

    WORKERS.run(work)
    return ending


async def _contained(
    handler: Callable[..., Coroutine[Any, Any, object]], arguments: Mapping[str, Any]
) -> Ending:
    try:
        return Returned(await handler(**arguments))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # asyncio lets SystemExit and KeyboardInterrupt of a task end the loop
        return Raised(error)


def _finished(handler: Callable[..., Any], arguments: Mapping[str, Any]) -> Ending:
    try:
        value = handler(**arguments)
        return Returned(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
    except BaseException as error:
        return Raised(error)


async def _awaited(value: Any) -> object:
    return await value
