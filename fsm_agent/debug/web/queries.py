"""Reading what an address asks for: numbers, positions, limits. A wrong value is a ``MalformedArgument``."""

from __future__ import annotations

import json
import re

from starlette.requests import Request

from fsm_agent.debug.core.arguments import MalformedArgument, number


def limits(request: Request) -> dict[str, int]:
    """Return the limits that somebody would like to have instead, empty when none are given."""
    given = request.query_params.get("limits", "{}")
    try:
        wanted = json.loads(given)
    except (ValueError, RecursionError):
        raise MalformedArgument("limits are no JSON", given[:80], '{"retries": 3}') from None
    if not isinstance(wanted, dict):
        raise MalformedArgument("limits are no object", given[:80], '{"retries": 3}')
    return {name: number(wanted, name) for name in wanted}


def whole(request: Request, name: str, default: int) -> int:
    """Return a whole number from 0 that is given by name."""
    given = request.query_params.get(name)
    return default if given is None else _whole(name, given)


def position(request: Request) -> int:
    """Return the position in the path."""
    return _whole("the position", request.path_params["at"])


def _whole(name: str, given: str) -> int:
    if re.fullmatch("[0-9]{1,12}", given) is None:
        raise MalformedArgument(f"{name} is no number", given[:40], "a whole number from 0")
    return int(given)
