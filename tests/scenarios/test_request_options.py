"""What is asked of a model besides the conversation, on each wire, as the server sees it."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import ConfigError
from fsm_agent.testing import FakeClock, ScriptedServer, call, status, text, tools
from tests.helpers.harness import echo

CHAT = "openai:gpt-4o", "chat_completions"
RESPONSES = "openai:gpt-4o", "codex_responses"
CLAUDE = "anthropic:claude-opus-4-8", "anthropic_messages"
KIMI = "moonshot:kimi-k2", "anthropic_messages"
"""Speaks the wire of Claude, and takes a temperature."""


def asking(model: tuple[str, str], url: str = "", **settings: Any) -> Agent:
    options: dict[str, Any] = {"base_url": url} if url else {}
    return Agent(
        model[0], api_mode=model[1], api_key="k", tools=[echo], toolsets=[], settings=settings, **options
    )


def asked(model: tuple[str, str], request: Any, **settings: Any) -> list[dict[str, Any]]:
    """The bodies of a turn's requests."""
    with ScriptedServer([tools(call("echo", {"text": "a"})), text("done")]) as server:
        agent = asking(model, server.url, request=request, **settings)
        assert agent.run_conversation("go").completed
        agent.close()
    return server.bodies


@pytest.mark.parametrize(
    ("model", "request_", "written"),
    [
        (CHAT, {"top_p": 0.5, "seed": 7, "stop": ["END"]}, {"top_p": 0.5, "seed": 7, "stop": ["END"]}),
        (CHAT, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        (CHAT, {"tool_choice": "none"}, {"tool_choice": "none"}),
        (CHAT, {"extra_body": {"service_tier": "flex"}}, {"service_tier": "flex"}),
        (RESPONSES, {"top_p": 0.5, "parallel_tool_calls": True}, {"top_p": 0.5, "parallel_tool_calls": True}),
        (RESPONSES, {"tool_choice": "auto"}, {"tool_choice": "auto"}),
        (RESPONSES, {"extra_body": {"service_tier": "flex"}}, {"service_tier": "flex"}),
        (CLAUDE, {"stop": ["END"]}, {"stop_sequences": ["END"]}),
        (CLAUDE, {"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
        (
            CLAUDE,
            {"parallel_tool_calls": False},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (CLAUDE, {"extra_body": {"service_tier": "auto"}}, {"service_tier": "auto"}),
        (KIMI, {"top_p": 0.5}, {"top_p": 0.5}),
    ],
)
def test_each_request_of_a_turn_asks_for_it(model: tuple[str, str], request_: Any, written: Any) -> None:
    bodies = asked(model, request_)
    assert len(bodies) == 2
    for body in bodies:
        assert {name: body.get(name) for name in written} == written


@pytest.mark.parametrize(
    ("model", "choice", "written"),
    [
        (CHAT, "required", "required"),
        (CHAT, "echo", {"type": "function", "function": {"name": "echo"}}),
        (RESPONSES, "required", "required"),
        (RESPONSES, "echo", {"type": "function", "name": "echo"}),
        (CLAUDE, "required", {"type": "any"}),
        (CLAUDE, "echo", {"type": "tool", "name": "echo"}),
    ],
)
def test_a_choice_that_is_forced_holds_until_a_tool_has_run(
    model: tuple[str, str], choice: str, written: Any
) -> None:
    first, second = asked(model, {"tool_choice": choice})
    assert first["tool_choice"] == written
    assert "tool_choice" not in second


def test_claude_is_not_asked_to_think_while_a_tool_is_forced() -> None:
    first, _ = asked(CLAUDE, {"tool_choice": "required"}, reasoning_effort="high")
    assert first["tool_choice"] == {"type": "any"}
    assert "thinking" not in first


@pytest.mark.parametrize(
    ("model", "request_", "says"),
    [
        (
            RESPONSES,
            {"seed": 3},
            r"request.seed cannot be asked of openai:gpt-4o .*given: 3; allowed: tool_choice",
        ),
        (RESPONSES, {"stop": ["x"]}, r"request.stop cannot be asked"),
        (
            CLAUDE,
            {"seed": 3},
            r"request.seed cannot be asked .*; allowed: tool_choice, parallel_tool_calls, stop$",
        ),
        (CLAUDE, {"top_p": 0.5}, r"request.top_p cannot be asked"),
        (
            CHAT,
            {"tool_choice": "nothing"},
            r"tool_choice names no tool; given: nothing; allowed: auto, .*echo",
        ),
        (CHAT, {"stop": ["a"] * 5}, r"request.stop"),
        (CHAT, {"top_p": 0}, r"request.top_p"),
        (
            CHAT,
            {"extra_body": {"messages": []}},
            r"request.extra_body is out of range; given: messages; allowed: fields",
        ),
        (CHAT, {"extra_body": {"x": object()}}, r"extra_body"),
    ],
)
def test_what_the_model_lacks_is_refused_with_what_it_has(
    model: tuple[str, str], request_: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        asking(model, request=request_)


def test_a_fallback_is_asked_without_what_it_lacks_and_gets_no_extra_fields() -> None:
    lines: list[str] = []
    with ScriptedServer([status(404)]) as first, ScriptedServer([text("done")]) as second:
        agent = Agent(
            "openai:gpt-4o", base_url=first.url, api_key="k", api_mode="chat_completions", tools=[echo], toolsets=[],
            fallbacks=[{"model": "openai:gpt-4o", "base_url": second.url, "api_key": "k", "api_mode": "codex_responses"}],
            settings={"request": {"seed": 3, "top_p": 0.5, "extra_body": {"service_tier": "flex"}}},
            callbacks={"status": lines.append}, clock=FakeClock(),
        )  # fmt: skip
        assert agent.run_conversation("go").completed
        agent.close()
    assert first.bodies[0]["seed"] == 3
    assert first.bodies[0]["service_tier"] == "flex"
    [body] = second.bodies
    assert body["top_p"] == 0.5
    assert not {"seed", "service_tier"} & body.keys()
    assert any("is asked without seed" in line for line in lines)
