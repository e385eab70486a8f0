"""The chain of fallbacks and their keys: each ready key is tried before the next entry, and before the turn ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from fsm_agent import Agent, Turn, TurnResult
from fsm_agent.conversation.history import violations
from fsm_agent.fsm.verify import verify_table
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.testing import (
    FakeClock,
    ScriptedServer,
    blank,
    content_filter,
    drop,
    json_reply,
    overflow,
    repeat,
    status,
    text,
)
from fsm_agent.testing.server import Received
from fsm_agent_states.table import TURN
from tests.helpers.harness import Heard, table


@dataclass
class Pair:
    """An agent with a primary and one fallback, each a server of its own."""

    agent: Agent
    primary: ScriptedServer
    fallback: ScriptedServer
    clock: FakeClock
    heard: Heard

    def run(self) -> TurnResult:
        result = self.agent.run_conversation("go")
        assert not self.primary.overrun
        assert not self.fallback.overrun
        for body in (*self.primary.bodies, *self.fallback.bodies):
            assert not violations(body["messages"])
        return result

    @property
    def calls(self) -> tuple[int, int]:
        return self.primary.completions, self.fallback.completions

    @property
    def notices(self) -> list[str]:
        return [line for line in self.heard.of("status") if "switched" in line]


@contextmanager
def pair(primary: Any, fallback: Any, entry: dict[str, Any] | None = None, **options: Any) -> Iterator[Pair]:
    with ScriptedServer(fallback) as second:
        spec = {"model": "openai:backup", "base_url": second.url, "api_key": "k2", **(entry or {})}
        with table(primary, model="openai:main", fallbacks=[spec], **options) as (agent, first, clock, heard):
            yield Pair(agent, first, second, clock, heard)


NO_MODEL = {"error": {"message": "The model `main` does not exist", "code": "model_not_found"}}
OVER: dict[str, tuple[Any, int]] = {
    "25 a refusal": ([content_filter()], 1), "36 blanks": (repeat(blank()), 4),
    "42 a 429": ([status(429)], 1), "43 a 503 after one retry": (repeat(status(503)), 2),
    "44 a 500 after all retries": (repeat(status(500)), 3),
    "45 a dead line after one retry": (repeat(drop()), 2), "no such model": ([status(404, NO_MODEL)], 1),
    **{str(code): ([status(code)], 1) for code in (400, 401, 402, 403)},
    "no choices": ([json_reply({"choices": []})], 1),
}  # fmt: skip


@pytest.mark.behaviour("ERR-15", "ERR-19", "ERR-20", "ERR-23", "CRED-04b")
@pytest.mark.parametrize("what", OVER)
def test_what_goes_over_and_after_how_many_requests(what: str) -> None:
    script, requests = OVER[what]
    with pair(script, [text("here")]) as both:
        result = both.run()
        assert (both.calls, result.final_response) == ((requests, 1), "here")
        assert (result.model, result.provider, result.fallback_activated) == ("backup", "openai", True)
        assert len(both.notices) == 1
        assert requests > 1 or both.clock.sleeps == []


BLOCKED = {"error": {"message": "No endpoints found matching your data policy", "code": 404}}
GRAMMAR = {"error": {"message": "error parsing grammar: pattern"}}
HERE = [text("here")]
WIDE, NARROW = ({"entry": {"context_window": window}, "context_window": 8192} for window in (100_000, 8192))
WALKS: dict[str, tuple[Any, Any, dict[str, Any], tuple[int, int], str]] = {
    "46 both down": (repeat(status(500)), repeat(status(500)), {}, (3, 3), "api_retries_exhausted server_error"),
    "d33 a refusal by policy stays": (
        [status(404, BLOCKED)], HERE, {}, (1, 0), "non_retryable_error provider_policy_blocked"),
    "an overflow, where a window is wider": ([overflow(8192)], HERE, WIDE, (1, 1), "text_response"),
    "an overflow, where none is": (
        [overflow(8192)], HERE, NARROW, (1, 0), "overflow_uncompressible context_overflow"),
    "d49 a repair is not carried to the next": (
        [status(400, GRAMMAR), status(400)], HERE, {}, (2, 1), "text_response"),
    "the backoff starts afresh": ([status(503)] * 2, [status(503), *HERE], {}, (2, 2), "text_response"),
    "the connection of a fallback is not rebuilt": (
        [status(400)], repeat(drop()), {}, (1, 3), "api_retries_exhausted timeout"),
}  # fmt: skip


@pytest.mark.behaviour("ERR-12", "ERR-15", "ERR-19", "ERR-23", "TR-01c")
@pytest.mark.parametrize("what", WALKS)
def test_how_often_each_of_the_chain_is_asked_and_how_it_ends(what: str) -> None:
    primary, fallback, options, calls, end = WALKS[what]
    with pair(primary, fallback, **options) as both:
        result = both.run()
        assert (both.calls, " ".join(filter(None, ending(result)))) == (calls, end)
        told = both.heard.of("status")
        assert sum("scripted status 500" in line for line in told) == (6 if "both" in what else 0)
        assert "afresh" not in what or all(wait <= 3 for wait in both.clock.sleeps)


def ending(result: TurnResult) -> tuple[str, str | None]:
    return result.turn_exit_reason.value, result.failure_class


def test_the_next_turn_stays_away_for_a_minute_and_says_so_once() -> None:
    with pair([status(429), text("back")], [text("one"), text("two")]) as both:
        both.run()
        both.clock.advance(30)
        second = both.run()
        assert (second.final_response, second.fallback_activated) == ("two", True)
        assert sum("is resting" in line for line in both.heard.of("status")) == 1
        both.clock.advance(31)
        result = both.run()
        assert result.final_response == "back"
        assert not result.fallback_activated


def test_after_other_failures_the_next_turn_is_back_on_the_primary() -> None:
    with pair([status(400), text("back")], [text("one")]) as both:
        assert [both.run().final_response for _ in range(2)] == ["one", "back"]
    with pair([status(400), text("back")], [status(400), text("two")]) as both:
        assert both.run().failed
        assert both.run().final_response == "two", "the whole chain failed: the primary rests"
        both.clock.advance(6)
        assert both.run().final_response == "back"


def test_an_entry_equal_to_the_primary_is_skipped() -> None:
    with ScriptedServer([status(429), status(429), status(429)]) as server:
        entry = {"model": "openai:main", "base_url": server.url, "api_key": "k"}
        agent = Agent(
            "openai:main", base_url=server.url, api_key="k", fallbacks=[entry], toolsets=[], clock=FakeClock()
        )
        result = agent.run_conversation("go")
        assert server.completions == 3
        assert not result.fallback_activated
        agent.close()


def test_an_entry_without_a_key_is_left_out_with_a_word() -> None:
    with table([text("fine")], fallbacks=[{"model": "deepseek:deepseek-chat"}]) as (agent, _, _, heard):
        assert agent.chat("go") == "fine"
        (line,) = (line for line in heard.of("status") if "fallback 1 is left out" in line)
        assert "DEEPSEEK_API_KEY" in line


@pytest.mark.behaviour("FB-01")
def test_r5_a_long_chain_is_never_cut_short() -> None:
    servers = [ScriptedServer(repeat(status(500))).start() for _ in range(4)]
    servers.append(ScriptedServer([text("finally")]).start())
    chain = [{"model": f"openai:m{n}", "base_url": s.url, "api_key": "k"} for n, s in enumerate(servers)]
    with table(repeat(status(500)), fallbacks=chain) as (agent, *_):
        result = agent.run_conversation("go")
    assert (result.final_response, result.attempts) == ("finally", 16)
    for server in servers:
        server.close()


WIRES = ("openai", "anthropic")
ROTATING = {"auth": status(401), "billing": status(402), "rate_limit": status(429)}
"""Refusals of one key that another key of the same provider does not share."""


def key_of(request: Received) -> str:
    """The key that a request came with, on either wire."""
    return request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")


# One server plays the whole chain, so that the order of all requests is seen. Model and key tell which entry
# sent a request.


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
        with Agent(**first, fallbacks=fallbacks, toolsets=[], clock=FakeClock(), settings=settings) as agent:
            turn = agent.start("go")
            turn.run()
        yield Played(turn, server)


def good_only(refusal: Reply) -> Callable[[Received], Reply]:
    """Keys that begin with "good" are served, all others are refused."""
    return lambda request: text("here") if key_of(request).startswith("good") else refusal


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("refusal", ROTATING)
def test_the_second_key_of_a_fallback_is_tried(refusal: str, wire: str) -> None:
    """A limited key is asked a second time first."""
    with chain(good_only(ROTATING[refusal]), ["bad"], ["bad", "good"], wire=wire) as played:
        again = ["m1/bad"] * (refusal == "rate_limit")
        assert (played.exit, played.asked) == ("text_response", ["m0/bad", "m1/bad", *again, "m1/good"])


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        (401, [["bad"], ["bad1", "bad2"], ["bad3", "good"]]), (402, [["bad"], ["bad1", "bad2", "good"]]),
        (401, [["bad1", "bad2", "bad3"], ["bad4", "bad5", "good"]]),
        (401, [["bad"], ["bad1", "good"], ["bad2", "bad3", "bad4", "good"]]), (401, [["k1"], ["k1", "k2"]]),
        (401, [["k1", "k2"], ["k1"]]), (401, [["k1"], ["k1", "k2"], ["k1", "k2"]]),
    ],
)  # fmt: skip
def test_every_key_of_every_fallback_is_tried_until_one_is_good(code: int, keys: list[list[str]]) -> None:
    """However many the primary has; when all are bad, each is asked once."""
    order = [f"m{entry}/{key}" for entry, pool in enumerate(keys) for key in pool]
    good = next((number for number, name in enumerate(order, 1) if name.endswith("good")), None)
    with chain(good_only(status(code)), *keys) as played:
        assert played.asked == order[:good]
        assert played.exit == ("text_response" if good else "non_retryable_error")
        steps = ["fallback" if one[:2] != after[:2] else "rekey" for one, after in pairwise(played.asked)]
        assert played.rungs[: len(steps)] == steps
        assert played.turn.snapshot()["limits"]["rekeys"] == max(map(len, keys)) - 1


@pytest.mark.parametrize(("code", "rungs"), [
    (402, ["rekey", "fallback"]),
    (429, ["one retry", "rekey", "fallback"]),
])  # fmt: skip
def test_keys_ready_again_at_once_do_not_keep_a_turn_from_its_fallback(code: int, rungs: list[str]) -> None:
    """A ``Retry-After`` of nothing makes a rested key ready again, so there always is another one."""

    def answer(request: Received) -> Reply:
        return text("here") if request.body["model"] == "m1" else status(code, headers={"retry-after": "0"})

    with chain(answer, ["a", "b"], ["c"]) as played:
        assert (played.exit, played.rungs) == ("text_response", rungs)
        assert len(played.asked) <= played.bound()


def test_and_without_a_fallback_they_are_tried_as_often_as_one_key_is() -> None:
    limited = status(429, headers={"retry-after": "0"})
    counted = []
    for keys in (["a"], ["a", "b"]):
        with chain(lambda _: limited, keys) as played:
            assert played.exit == "api_retries_exhausted"
            counted.append(len(played.asked))
    assert counted == [3, 4], "all tries of the one key, and the other key besides"
