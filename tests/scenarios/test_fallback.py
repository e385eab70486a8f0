"""The chain of fallbacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult
from fsm_agent.conversation.history_rules import violations
from fsm_agent.testing import (
    FakeClock,
    ScriptedServer,
    blank,
    call,
    content_filter,
    drop,
    json_reply,
    overflow,
    repeat,
    status,
    text,
    tools,
)
from tests.helpers.harness import TOOLS, Heard


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
    clock, heard = FakeClock(), Heard()
    with ScriptedServer(primary) as first, ScriptedServer(fallback) as second:
        spec = {"model": "openai:backup", "base_url": second.url, "api_key": "k2", **(entry or {})}
        options = {"tools": TOOLS, "toolsets": [], "api_key": "k1", **options}
        agent = Agent(
            "openai:main",
            base_url=first.url,
            fallbacks=[spec],
            clock=clock,
            callbacks=heard.functions(),
            **options,
        )
        try:
            yield Pair(agent, first, second, clock, heard)
        finally:
            agent.close()


def test_25_a_refusal_goes_to_the_fallback() -> None:
    with pair([content_filter()], [text("here")]) as both:
        result = both.run()
        assert both.calls == (1, 1)
        assert result.final_response == "here"
        assert len(both.notices) == 1
        assert result.fallback_activated
        assert (result.model, result.provider) == ("backup", "openai")


def test_36_blank_four_times_then_the_fallback() -> None:
    with pair(repeat(blank()), [text("here")]) as both:
        assert both.run().final_response == "here"
        assert both.calls == (4, 1)


@pytest.mark.behaviour("ERR-15")
def test_42_a_429_goes_over_at_once() -> None:
    with pair([status(429)], [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (1, 1)
        assert both.clock.sleeps == []


def test_43_a_503_after_one_retry() -> None:
    with pair(repeat(status(503)), [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (2, 1)


@pytest.mark.behaviour("ERR-23")
def test_44_a_500_after_all_retries() -> None:
    with pair(repeat(status(500)), [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (3, 1)


@pytest.mark.behaviour("ERR-23")
def test_45_a_dead_line_after_one_retry() -> None:
    with pair(repeat(drop()), [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (2, 1)


@pytest.mark.behaviour("ERR-23")
def test_46_both_down() -> None:
    with pair(repeat(status(500)), repeat(status(500))) as both:
        result = both.run()
        assert both.calls == (3, 3)
        assert (result.turn_exit_reason, result.failure_class) == ("api_retries_exhausted", "server_error")
        told = both.heard.of("status")
        assert sum("scripted status 500" in line for line in told) == 6


@pytest.mark.behaviour("ERR-19", "ERR-20", "CRED-04b")
@pytest.mark.parametrize(
    "reply",
    [
        status(404, {"error": {"message": "The model `main` does not exist", "code": "model_not_found"}}),
        status(400),
        status(401),
        status(403),
        status(402),
        json_reply({"choices": []}),
    ],
)
def test_what_goes_over_at_the_first_failure(reply: Any) -> None:
    with pair([reply], [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (1, 1)


def test_d33_what_never_goes_over() -> None:
    body = {"error": {"message": "No endpoints found matching your data policy", "code": 404}}
    with pair([status(404, body)], [text("here")]) as both:
        result = both.run()
        assert both.calls == (1, 0)
        assert result.failure_class == "provider_policy_blocked"


@pytest.mark.behaviour("ERR-12")
def test_an_overflow_goes_to_a_wider_window_when_nothing_can_be_compacted() -> None:
    with pair([overflow(8192)], [text("here")], {"context_window": 100_000}, context_window=8192) as both:
        assert both.run().completed
        assert both.calls == (1, 1)


def test_an_overflow_does_not_go_to_a_window_that_is_no_wider() -> None:
    with pair([overflow(8192)], [text("here")], {"context_window": 8192}, context_window=8192) as both:
        assert both.run().turn_exit_reason == "overflow_uncompressible"
        assert both.calls == (1, 0)


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
        assert both.run().final_response == "one"
        assert both.run().final_response == "back"


def test_when_the_whole_chain_failed_the_primary_rests_for_five_seconds() -> None:
    with pair([status(400), text("back")], [status(400), text("two")]) as both:
        assert both.run().failed
        assert both.run().final_response == "two"
        both.clock.advance(6)
        assert both.run().final_response == "back"


def test_a_switch_in_mid_turn_keeps_the_tool_rounds() -> None:
    with pair([tools(call("echo", {"text": "a"})), status(429)], [text("done")]) as both:
        result = both.run()
        assert [row["role"] for row in result.messages] == ["user", "assistant", "tool", "assistant"]
        sent = both.fallback.bodies[0]["messages"]
        assert [row["role"] for row in sent] == ["system", "user", "assistant", "tool"]
        assert both.fallback.bodies[0]["model"] == "backup"
        assert both.fallback.requests[0].headers["authorization"] == "Bearer k2"


def test_d49_a_repair_on_one_provider_is_not_carried_to_the_next() -> None:
    grammar = status(400, {"error": {"message": "error parsing grammar: pattern"}})
    with pair([grammar, status(400)], [text("here")]) as both:
        assert both.run().completed
        assert both.calls == (2, 1)


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
    heard = Heard()
    with ScriptedServer([text("fine")]) as server:
        agent = Agent(
            "openai:main", base_url=server.url, api_key="k", fallbacks=[{"model": "deepseek:deepseek-chat"}], toolsets=[],
            callbacks=heard.functions(),
        )  # fmt: skip
        assert agent.chat("go") == "fine"
        assert any(
            "fallback 1 is left out" in line and "DEEPSEEK_API_KEY" in line for line in heard.of("status")
        )
        agent.close()


@pytest.mark.behaviour("FB-01")
def test_r5_a_long_chain_is_never_cut_short() -> None:
    servers = [ScriptedServer(repeat(status(500))).start() for _ in range(5)]
    last = ScriptedServer([text("at last")]).start()
    chain = [
        {"model": f"openai:m{n}", "base_url": s.url, "api_key": "k"}
        for n, s in enumerate([*servers[1:], last])
    ]
    agent = Agent(
        "openai:main", base_url=servers[0].url, api_key="k", fallbacks=chain, toolsets=[], clock=FakeClock()
    )
    result = agent.run_conversation("go")
    assert result.final_response == "at last"
    assert result.attempts == 16
    agent.close()
    for server in (*servers, last):
        server.close()


@pytest.mark.behaviour("ERR-19", "ERR-15")
def test_a_wait_is_not_carried_over_to_the_fallback() -> None:
    with pair([status(503), status(503)], [status(503), text("here")]) as both:
        assert both.run().completed
        assert both.calls == (2, 2)
        assert all(wait <= 3 for wait in both.clock.sleeps), "the backoff starts afresh"


@pytest.mark.behaviour("TR-01c")
def test_the_connection_of_a_fallback_is_not_made_anew() -> None:
    with pair([status(400)], repeat(drop())) as both:
        assert both.run().turn_exit_reason == "api_retries_exhausted"
        assert both.calls == (1, 3)
