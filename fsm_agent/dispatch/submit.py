"""Queueing a message for the workers, and what its sender may do with the turn until it has ended."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fsm_agent.composition.turn_table import TURN
from fsm_agent.dispatch.port import Dispatcher, Order
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import first_session, must_be, queue, withdraw
from fsm_agent.settings.model import DispatchSettings
from fsm_agent.support.installation import install_command
from fsm_agent.telemetry import current_traceparent

DIGEST = TURN.digest
"""Which table moves the turns that are queued here; a worker with another one leaves them alone."""


def dispatcher_of(settings: DispatchSettings) -> Dispatcher:
    """The dispatcher that the settings name; nothing is connected yet. Raises ``ConfigError`` when the extra
    is not installed."""
    if settings.temporal is None:
        from fsm_agent.dispatch.in_process import InProcess

        return InProcess()
    try:
        from fsm_agent.dispatch.temporal.dispatcher import TemporalDispatcher
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("temporalio"):
            raise
        raise ConfigError(
            "Temporal needs an extra that is not installed",
            settings.temporal,
            install_command("temporal"),
        ) from None
    return TemporalDispatcher(settings.temporal, settings.namespace, settings.heartbeat, DIGEST)


async def submit(
    store: Store,
    dispatcher: Dispatcher,
    user_message: Any,
    session_id: str | None = None,
    *,
    turn_id: str = "",
    **more: Any,
) -> Order:
    """Queue a message: written down first, then the dispatcher is told. ``session_id``: the session that it
    goes on with, by default a new one. ``turn_id``: repeated with the same one it is queued once. ``more``:
    what ``Agent.start`` takes besides, as JSON values. Raises ``ConfigError`` when the dispatcher cannot be
    reached; the message is queued then all the same, and a worker finds it."""
    session = f"s-{uuid.uuid4().hex[:12]}" if session_id is None else first_session(store, session_id)
    order = Order(session, turn_id or f"{session}-{uuid.uuid4().hex[:8]}", DIGEST)
    request = {"user_message": user_message, **more}
    if trace := current_traceparent():
        request["trace"] = trace
    await queue(store, order.turn, order.session, order.digest, request)
    await dispatcher.submit(order)
    return order


async def cancel(store: Store, dispatcher: Dispatcher, turn_id: str) -> None:
    """Take back a turn that waits, or interrupt it where it runs. Raises ``ConfigError`` for one that was not
    queued."""
    queued = must_be(store, turn_id)
    await withdraw(store, turn_id)
    if queued.begun is not None:
        await control(store, turn_id, "interrupt", {})
    await dispatcher.cancel(Order(queued.session, turn_id, queued.digest))


async def control(store: Store, turn_id: str, command: str, body: dict[str, Any]) -> None:
    """Leave a command for the process that runs the turn: ``interrupt`` (message), ``steer`` (text)."""
    values = (turn_id, command, dumps(body), time.time())
    await store.written(
        lambda c: (
            c.execute("INSERT INTO controls (turn, command, body, at) VALUES (?, ?, ?, ?)", values) and None
        )
    )
