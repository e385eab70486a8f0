"""What a turn cost: known prices exactly, custom models with their given price, everything else as unknown,
never as 0."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.catalog import GIVEN, SOURCE, cost, dearest, price_of, total_cost
from fsm_agent.providers.profiles import BY_KEY
from fsm_agent.settings import ModelPrice
from fsm_agent.testing import ScriptedModel, ScriptedServer, overflow, status, text
from tests.helpers.harness import play, table

MILLION = Usage(1_000_000, 1_000_000)
PRICED = (
    ("gpt-5-mini", "openai", MILLION, 2.25), ("gpt-5-mini-2025-08-07", "openai-responses", MILLION, 2.25),
    ("gpt-4o", "openai", Usage(500_000, 100_000, cache_read=500_000), 1.25 + 1.0 + 0.625),
    ("gpt-4o-2024-05-13", "openai", MILLION, 20.0),
    ("gpt-4.1", "openai", Usage(cache_write=1_000_000), 2.0),
    ("claude-sonnet-4-20250514", "anthropic", MILLION, 18.0),
    ("claude-3-5-haiku-latest", "anthropic", Usage(0, 0, 1_000_000, 1_000_000), 1.08),
    ("gpt-5", "openai", Usage(), 0.0), ("gemini-2.5-flash", "gemini", MILLION, 2.8),
    ("mistral-medium-latest", "mistral", MILLION, 9.0), ("kimi-k3", "moonshot", MILLION, 18.0),
    ("openai/gpt-oss-120b", "groq", MILLION, 0.75),
    ("gpt-5", "openai", Usage(0, 1_000_000, reasoning=900_000), 10.0),
)  # fmt: skip


def test_a_known_price() -> None:
    for model, provider, usage, usd in PRICED:
        found = cost(model, provider, usage)
        assert found.usd == pytest.approx(usd), (model, provider, usage)
        assert (found.status, found.source) == ("estimated", SOURCE), (model, provider, usage)


def test_an_hour_in_the_cache_costs_more_where_it_does() -> None:
    write = Usage(cache_write=1_000_000)
    assert cost("claude-haiku-4-5", "anthropic", write, "1h").usd == 2.0
    assert cost("gpt-5", "openai", write, "1h").usd == 1.25


UNPRICED = (
    ("gpt-5.6-sol", "openai"), ("gemini-2.5-pro", "gemini"), ("deepseek-chat", "deepseek"),
    ("gpt-5-turbo", "openai"), ("gpt-4o-audio-preview", "openai"), ("gpt-x", "openai"),
    ("gpt-4o", "openrouter"), ("gpt-4o", "somebody"), ("claude-sonnet-4-7", "anthropic"), ("", "openai"),
)  # fmt: skip


def test_an_unknown_price_is_not_zero() -> None:
    for model, provider in UNPRICED:
        found = cost(model, provider, MILLION)
        assert found == total_cost({(provider, model): MILLION}), (model, provider)
        assert (found.usd, found.status) == (None, "unknown"), (model, provider)


def test_a_cache_without_a_price_is_unknown() -> None:
    assert cost("gpt-5-pro", "openai", Usage(10, 10)).status == "estimated"
    assert cost("gpt-5-pro", "openai", Usage(10, 10, cache_read=1)).status == "unknown"


@pytest.mark.parametrize("provider", ["ollama", "llamacpp", "local", "offline", "scripted"])
def test_a_model_of_ones_own_is_included(provider: str) -> None:
    found = cost("anything", provider, MILLION)
    assert (found.usd, found.status, found.source) == (None, "included", None)


def test_sums() -> None:
    paid, free, unknown = ("openai", "gpt-5"), ("ollama", "x"), ("groq", "x")
    assert total_cost({paid: MILLION, ("openai", "gpt-4o"): MILLION}).usd == pytest.approx(11.25 + 12.5)
    assert total_cost({paid: MILLION, free: MILLION}).usd == 11.25
    assert total_cost({free: MILLION}).status == "included"
    assert total_cost({paid: MILLION, unknown: MILLION}).usd is None
    assert total_cost({}).status == "unknown"


def test_prices_that_are_given_come_first_and_are_named() -> None:
    theirs = ModelPrice(input=3, output=3, cache_write=9)
    given = {"openai:gpt-5": ModelPrice(input=1, output=2), "ollama:x": theirs}
    paid = cost("gpt-5", "openai", Usage(1_000_000, 1_000_000, cache_read=1_000_000), given=given)
    assert (paid.usd, paid.source) == (4.0, GIVEN)
    assert cost("x", "ollama", Usage(cache_write=1_000_000), "1h", given).usd == 9.0
    both = total_cost({("openai", "gpt-5"): MILLION, ("openai", "gpt-4o"): MILLION}, given=given)
    assert both.source == f"{SOURCE} and {GIVEN}"


def test_the_most_that_a_request_costs_writes_its_prompt_to_the_cache() -> None:
    claude, mini = price_of("claude-haiku-4-5", "anthropic"), price_of("gpt-5-mini", "openai")
    assert claude is not None
    assert mini is not None
    assert claude.most(1_000_000, 1_000_000) == pytest.approx(2.0 + 5.0)
    both = dearest([claude, mini])
    assert both is not None
    assert both.most(1_000_000, 1_000_000) == pytest.approx(7.0)
    assert dearest([claude, None]) is None


GPT = "gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.4-mini o3 o4-mini"
CLAUDE = "3-5-haiku sonnet-4 sonnet-4-5 sonnet-5-5 haiku-4-5 opus-5-5"
NAMES = " ".join(f"claude-{name}" for name in CLAUDE.split())


@pytest.mark.parametrize(("provider", "models"), [("openai", GPT), ("anthropic", NAMES)])
def test_what_is_listed_is_plausible(provider: str, models: str) -> None:
    for model in models.split():
        price = price_of(model, provider)
        assert price is not None, model
        assert 0 < price.input < price.output, model
        assert price.read is not None
        assert 0 < price.read < price.input, model
        if provider == "anthropic":
            written = (1.25 * price.input, 2 * price.input)
            assert (price.write, price.write_1h) == pytest.approx(written, rel=0.05)


def test_default_models_have_a_price() -> None:
    for profile in BY_KEY:
        if not profile.aggregator:
            assert price_of(profile.default_model or "", profile.name) is not None


# In a turn


def costs(result: Any) -> tuple[float | None, str, str | None]:
    return result.estimated_cost_usd, result.cost_status, result.cost_source


def test_a_turn_tells_what_it_cost() -> None:
    played = play([text("hi", usage=Usage(1000, 100))], model="openai:gpt-5")
    assert costs(played.result) == (pytest.approx(0.00225), "estimated", SOURCE)
    assert costs(play([text("hi")]).result) == (None, "unknown", None)
    assert costs(play([text("hi", usage=None)], model="openai:gpt-5").result) == (None, "unknown", None)


def test_a_fallback_is_paid_at_its_own_price() -> None:
    used = Usage(1_000_000, 0)
    history = [
        {"role": role, "content": f"{role} {n} " + "words " * 60}
        for n in range(14)
        for role in ("user", "assistant")
    ]
    with ScriptedServer([text("ok", usage=used)]) as second:
        entry = {"model": "openai:gpt-4o", "base_url": second.url, "api_key": "k"}
        script = [overflow(), text("a summary", usage=used), status(429)]
        with table(script, model="openai:gpt-5", fallbacks=[entry]) as (agent, *_):
            result = agent.run_conversation("go", conversation_history=history)
    assert result.final_response == "ok"
    assert costs(result) == (pytest.approx(1.25 + 2.5), "estimated", SOURCE)
    assert result.input_tokens == 2_000_000


def test_a_model_in_the_process_is_included() -> None:
    result = Agent(ScriptedModel([text("hi")]), toolsets=[]).run_conversation("go")
    assert costs(result) == (None, "included", None)
