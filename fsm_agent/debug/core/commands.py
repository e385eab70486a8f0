"""Orders to an engine by name, as they come from a page, an editor, or a row of the table ``controls``.

=============  ==================================================================================================
``pause``      stand still before the next request or move
``step``       to the next move
``into``       one request and its reply
``over``       to the next request to the model
``continue``   on, until a breakpoint or the end
``to``         on until ``breakpoint`` (a breakpoint's values) is met, or the move of number ``seq``
``interrupt``  as the turn's user would, with ``message``
``steer``      tell the turn ``text`` without stopping it
``hold``       hold back requests of these ``kinds``: model, tool
``answer``     ``id`` of what waits, and ``said``: the answer by hand (see ``fsm_agent.debug.core.pending_request``)
``let``        let ``id``, which is held back, be performed
``breakpoints``  ``all`` breakpoints, in place of those before
=============  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.debug.core.breakpoints import Breakpoint
from fsm_agent.debug.core.control import Controller
from fsm_agent.errors import ConfigError

Order = Callable[[Controller, Mapping[str, Any]], None]


RUNS = ("step", "into", "over", "continue", "to", "interrupt")
"""Orders after which the turn runs."""


def carry_out(controller: Controller, name: str, body: Mapping[str, Any]) -> None:
    """One order. Raises ``ConfigError`` for one that there is not, or that cannot be carried out now."""
    order = ORDERS.get(name)
    if order is None:
        raise ConfigError("no such order", name, ", ".join(ORDERS))
    order(controller, body)


def _to(controller: Controller, body: Mapping[str, Any]) -> None:
    if "breakpoint" in body:
        checked = controller.breakpoints.fresh().put(Breakpoint.of(body["breakpoint"]))
        controller.to(checked)
    else:
        controller.to(_number(body, "seq"))


def _number(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} is no number", value, "a whole number from 0")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is missing", value, "some text")
    return value


def _kinds(body: Mapping[str, Any]) -> list[str]:
    value = body.get("kinds", [])
    if not isinstance(value, list):
        raise ConfigError("kinds is no list", value, "a list of model, tool")
    return [str(one) for one in value]


def _breakpoints(body: Mapping[str, Any]) -> list[Breakpoint]:
    value = body.get("all", [])
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ConfigError("breakpoints cannot be read", value, "a list of objects")
    return [Breakpoint.of(one) for one in value]


ORDERS: Mapping[str, Order] = {
    "pause": lambda controller, body: controller.pause(),
    "step": lambda controller, body: controller.step(),
    "into": lambda controller, body: controller.into(),
    "over": lambda controller, body: controller.over(),
    "continue": lambda controller, body: controller.free(),
    "to": _to,
    "interrupt": lambda controller, body: controller.interrupt(body.get("message") or None),
    "steer": lambda controller, body: controller.steer(_text(body, "text")),
    "hold": lambda controller, body: controller.hold(_kinds(body)),
    "answer": lambda controller, body: controller.answer(_number(body, "id"), body.get("said")),
    "let": lambda controller, body: controller.let(_number(body, "id")),
    "breakpoints": lambda controller, body: controller.breakpoints.replace(_breakpoints(body)),
}
