"""Engines that send more than their table says, each by one fault. The test with the hostile server must notice
every one of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from fsm_agent.composition import model_caller, turn_wiring
from fsm_agent.fsm.runner import StateGuard
from fsm_agent.providers import sdk_port


def second_request() -> None:
    """What performs a request asks twice, and takes the second answer."""
    called = model_caller.call_port

    async def twice(*given: Any) -> Any:
        await called(*given)
        return await called(*given)

    model_caller.call_port = twice


def unwatched(state: str, meddle: Callable[[Any], None]) -> None:
    """A state meddles with what only rows change, and the runner does not put it back."""
    usual = turn_wiring.STATES[state]

    def meddling(turn: Any) -> Generator[Any, Any, str | None]:
        meddle(turn)
        return usual(turn)

    turn_wiring.STATES[state] = meddling
    StateGuard.restore = lambda self, turn, table: ""


def limit_rewritten() -> None:
    """A state gives the turn more requests while it runs."""

    def more(turn: Any) -> None:
        for name in ("attempts", "sends", "iterations"):
            turn.limits[name] += 3

    unwatched("BuildMessages", more)


def counter_reset() -> None:
    """A state forgets what was sent."""

    def forget(turn: Any) -> None:
        turn.reset("attempts")
        turn.reset("sends")

    unwatched("CallLLM", forget)


def redirects_followed() -> None:
    """The client follows every redirect, and nothing checks the replies on the way."""
    made = sdk_port.http_client

    def following(headers: Mapping[str, str]) -> Any:
        client = made(headers)
        client.follow_redirects = True
        client.event_hooks = {**client.event_hooks, "response": []}
        return client

    sdk_port.http_client = following


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault for fault in (second_request, limit_rewritten, counter_reset, redirects_followed)
}
