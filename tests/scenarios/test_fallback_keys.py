"""Every entry of the chain has its own keys: each ready key is tried before the next entry, and before the
turn gives up.

One server stands for the whole chain, so that the order of all requests is seen; who asks is read from its
model and key.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fsm_agent import Agent, Turn
from fsm_agent.fsm.verify import verify_table
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.testing import FakeClock, ScriptedServer, repeat, status, text
from fsm_agent.testing.http import Received
from fsm_agent_states.table import TURN

WIRES = ("openai", "anthropic")
ROTATING = {"auth": status(401), "billing": status(402), "rate_limit": status(429)}
"""Refusals of one key that another key of the same provider does not share."""


def key_of(request: Received) -> str:
    """The key that a request came with, on either wire."""
    return request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")


@dataclass
class Played:
    turn: Turn
    server: ScriptedServer

    @property
    def asked(self) -> list[str]:
        """``model/key`` of each request, in order."""
        return [f"{request.body['model']}/{key_of(request)}" for request in self.server.requests]

    @property
    def exit(self) -> str:
        assert self.turn.result is not None
        return self.turn.result.turn_exit_reason.value

    @property
    def rungs(self) -> list[str]:
        """What was done about each failure, in order."""
        rows = [TURN.row(step.row) for step in self.turn.steps]
        return [row.rung for row in rows if row.source == "ClassifyError"]

    def bound(self) -> int:
        """What ``fsm-agent verify`` prints for the maxima of this very turn: visits of CallLLM, the caps
        included."""
        return bound_of(tuple(self.turn.snapshot()["limits"].items()))


@functools.cache
def bound_of(limits: tuple[tuple[str, int], ...]) -> int:
    report = verify_table(TURN, dict(limits), small=False)
    return next(f.value for f in report.figures if (f.quantity, f.caps) == ("visits of CallLLM", True))


@contextmanager
def chain(
    answer: Callable[[Received], Reply], *keys: list[str], wire: str = "openai", **settings: Any
) -> Iterator[Played]:
    """A turn over a primary and fallbacks with these keys, named m0, m1, and so on."""
    with ScriptedServer(repeat(answer)) as server:
        entries = [
            {"model": f"{wire}:m{number}", "base_url": server.url, "api_key": pool}
            for number, pool in enumerate(keys)
        ]
        first, fallbacks = entries[0], entries[1:]
        agent = Agent(**first, fallbacks=fallbacks, toolsets=[], clock=FakeClock(), settings=settings)
        turn = agent.start("go")
        turn.run()
        agent.close()
        played = Played(turn, server)
        assert server.completions <= played.bound()
        yield played


def good_only(refusal: Reply) -> Callable[[Received], Reply]:
    """Keys that begin with "good" are served, all others are refused."""
    return lambda request: text("here") if key_of(request).startswith("good") else refusal


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("refusal", ROTATING)
def test_the_second_key_of_a_fallback_is_tried(refusal: str, wire: str) -> None:
    with chain(good_only(ROTATING[refusal]), ["bad"], ["bad", "good"], wire=wire) as played:
        assert played.exit == "text_response"
        once = Counter(played.asked)
        assert list(once) == ["m0/bad", "m1/bad", "m1/good"]
        assert once["m1/bad"] == (2 if refusal == "rate_limit" else 1), (
            "a limited key is asked a second time first"
        )


@pytest.mark.parametrize("wire", WIRES)
def test_every_key_of_every_fallback_is_tried(wire: str) -> None:
    with chain(good_only(status(401)), ["bad"], ["bad1", "bad2"], ["bad3", "good"], wire=wire) as played:
        assert played.asked == ["m0/bad", "m1/bad1", "m1/bad2", "m2/bad3", "m2/good"]
        assert played.rungs == ["fallback", "rekey", "fallback", "rekey"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_fallback_may_have_more_keys_than_the_primary(wire: str) -> None:
    with chain(good_only(status(402)), ["bad"], ["bad1", "bad2", "good"], wire=wire) as played:
        assert played.asked == ["m0/bad", "m1/bad1", "m1/bad2", "m1/good"]
        assert played.exit == "text_response"


def test_the_keys_of_the_primary_cost_the_fallback_none_of_its_own() -> None:
    with chain(good_only(status(401)), ["bad1", "bad2", "bad3"], ["bad4", "bad5", "good"]) as played:
        assert played.asked == ["m0/bad1", "m0/bad2", "m0/bad3", "m1/bad4", "m1/bad5", "m1/good"]


@pytest.mark.parametrize(
    ("keys", "asked"), [(((1,), (1, 2)), 3), (((1, 2), (1,)), 3), (((1,), (1, 2), (1, 2)), 5)]
)
def test_when_all_keys_are_bad_each_is_asked_once(keys: tuple[tuple[int, ...], ...], asked: int) -> None:
    with chain(repeat_of(status(401)), *([f"k{number}" for number in pool] for pool in keys)) as played:
        assert (len(played.asked), len(set(played.asked))) == (asked, asked)
        assert played.exit == "non_retryable_error"


@pytest.mark.parametrize(("code", "rungs"), [
    (402, ["rekey", "fallback"]),
    (429, ["one retry", "rekey", "fallback"]),
])  # fmt: skip
def test_keys_that_are_ready_again_at_once_do_not_keep_the_turn_from_its_fallback(
    code: int, rungs: list[str]
) -> None:
    """A ``Retry-After`` of nothing makes a rested key ready again, so there always is another one."""

    def answer(request: Received) -> Reply:
        return text("here") if request.body["model"] == "m1" else status(code, headers={"retry-after": "0"})

    with chain(answer, ["a", "b"], ["c"]) as played:
        assert played.exit == "text_response"
        assert played.rungs == rungs


def test_and_without_a_fallback_they_are_tried_as_often_as_one_key_is() -> None:
    limited = status(429, headers={"retry-after": "0"})
    counted = []
    for keys in (["a"], ["a", "b"]):
        with chain(repeat_of(limited), keys) as played:
            assert played.exit == "api_retries_exhausted"
            counted.append(len(played.asked))
    assert counted == [3, 4], "all tries of the one key, and the other key besides"


def repeat_of(reply: Reply) -> Callable[[Received], Reply]:
    return lambda _: reply


def test_the_limit_is_the_largest_of_the_chain_and_stays() -> None:
    with chain(good_only(status(401)), ["bad"], ["bad", "good"], ["bad1", "bad2", "bad3", "good"]) as played:
        assert played.turn.snapshot()["limits"]["rekeys"] == 3
