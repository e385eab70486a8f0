"""What is said of each attempt at a model: a log record and an event, and a line for people when it failed.

The record and the event ``model:attempt`` have the same fields. None holds a key, a prompt, or more of an
address than its host and port."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import CallModel, Cancelled, Failure, Runtime
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.choose import Choice
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import Named, StatusText
from fsm_agent.runtime.stream import TURN
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent_states.logic.detect import Size, detect

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # people are told by callbacks; who wants records configures logging

EVENT = "model:attempt"
SHORT = 160
"""Characters of what a provider said that are shown."""


def tell_attempt(
    callbacks: Callbacks,
    request: CallModel,
    choice: Choice,
    reply: ModelReply | Failure | Cancelled,
    seconds: float,
    rows: int,
    *,
    sent: bool,
) -> None:
    """Say what became of ``request`` to ``choice`` after so many ``seconds``, with ``rows`` of history, and
    whether it left, as its wire says. When all went well and nobody listens, nothing is made."""
    failed = isinstance(reply, Failure)
    if not (failed or callbacks.hears(Named) or log.isEnabledFor(logging.INFO)):
        return
    told = fields_of(request, choice.runtime(), reply, seconds, rows, sent=sent)
    words = line_of(told) if failed else f"attempt at {told['address']}: {told['outcome']}"
    log.log(logging.WARNING if failed else logging.INFO, "%s", words, extra=told)
    callbacks.publish(Named(EVENT, told))
    if failed and request.request.purpose == "turn":
        callbacks.publish(StatusText(words))


def fields_of(
    request: CallModel,
    runtime: Runtime,
    reply: ModelReply | Failure | Cancelled,
    seconds: float,
    rows: int,
    *,
    sent: bool,
) -> dict[str, Any]:
    """What is known of an attempt, as plain values by name."""
    told: dict[str, Any] = {
        "turn_id": TURN.get().turn_id,
        "purpose": request.request.purpose,
        "attempt": request.attempt,
        "most": request.most,
        "provider": runtime.provider,
        "model": runtime.model,
        "address": address_of(runtime),
        "seconds": round(seconds, 3),
        "prompt_estimate": request.request.estimate,
        "sent": sent,
    }
    match reply:
        case ModelReply():
            return {**told, "outcome": "reply", "finish": reply.finish}
        case Cancelled():
            return {**told, "outcome": "cancelled"}
    size = Size(request.request.estimate, rows, runtime.window, thinks=runtime.stale_floor > 0)
    return {
        **told,
        "outcome": "failure",
        "kind": reply.kind,
        "exception": reply.exception,
        "failure_class": detect(reply, size, runtime.error_rows).name,
        "status": reply.status,
        "problem": one_line(mask(reply.message), SHORT),
    }


def line_of(told: dict[str, Any]) -> str:
    """The line about an attempt that failed."""
    which = f"attempt {told['attempt']} of {told['most']}" if told["most"] > 1 else "the request"
    kind = told["failure_class"].replace("_", " ")
    if kind == "timeout" and told["kind"] == "transport" and "timeout" not in told["exception"].lower():
        kind = "the connection failed"
    return f"{which} failed after {told['seconds']:.1f} s at {told['address']}: {kind}: {told['problem']}"


def address_of(runtime: Runtime) -> str:
    """Host and port of a model; the provider's name where there is no address."""
    parts = urlsplit(runtime.base_url or "")
    return parts.netloc.rpartition("@")[2] or runtime.provider
