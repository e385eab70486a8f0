"""Which provider is meant: arguments, environment, local servers, the offline demo; one clear line when none fits."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.vendors import runtime_family
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View
from fsm_agent.errors import ConfigError
from fsm_agent.providers.catalog import silence_of
from fsm_agent.providers.choose import choose
from fsm_agent.providers.profiles import PROFILES, Profile, is_loopback, is_nearby, local_models
from fsm_agent.testing import ScriptedServer
from tests.helpers.processes import printed

OPENAI = {"OPENAI_API_KEY": "sk-one"}
gpt = functools.partial(dict, model="openai:gpt-5")


def running(*addresses: str) -> Callable[[str], list[str]]:
    """A probe that finds servers at these addresses."""
    return lambda url: ["tiny", "big"] if any(address in url for address in addresses) else []


def test_an_explicit_model_wins_over_everything() -> None:
    env = {**OPENAI, "FSM_AGENT_MODEL": "openai:gpt-5"}
    choice = choose("deepseek:deepseek-chat", api_key="k-123", env=env)
    assert (choice.profile.name, choice.model, choice.keys) == ("deepseek", "deepseek-chat", ("k-123",))
    assert (choice.base_url, choice.why) == ("https://api.deepseek.com/v1", "the model was given")
    runtime = choice.runtime(primary=False)
    assert (runtime.output_key, runtime.primary) == ("max_tokens", False)


def test_the_environment_names_the_model() -> None:
    env = {"FSM_AGENT_MODEL": "groq:llama-3.3-70b-versatile", "GROQ_API_KEY": "gsk_1", **OPENAI}
    choice = choose(env=env)
    assert (choice.profile.name, choice.keys) == ("groq", ("gsk_1",))
    assert "FSM_AGENT_MODEL" in choice.why


@pytest.mark.parametrize(
    ("env", "provider"),
    [
        ({"OPENAI_API_KEY": "a", "OPENROUTER_API_KEY": "b", "ANTHROPIC_API_KEY": "c"}, "anthropic"),
        ({"OPENAI_API_KEY": "a", "OPENROUTER_API_KEY": "b"}, "openai"),
        ({"OPENROUTER_API_KEY": "b", "ANTHROPIC_API_KEY": " "}, "openrouter"),
        ({"OPENAI_API_KEY": "  ", "OPENROUTER_API_KEY": "b"}, "openrouter"),
        ({"ANTHROPIC_API_KEY": "c"}, "anthropic"),
        ({}, "offline"),
    ],
)
def test_the_first_key_in_the_environment_decides(env: Mapping[str, str], provider: str) -> None:
    choice = choose(env=env, probe=running())
    assert (choice.profile.name, choice.model) == (provider, PROFILES[provider].default_model)
    assert choice.why


@pytest.mark.parametrize(
    ("addresses", "provider"),
    [((":11434", ":1234", ":8080"), "ollama"), ((":1234", ":8080"), "lmstudio"), ((":8080",), "llamacpp")],
)
def test_a_local_server_is_used_when_no_key_is_set(addresses: tuple[str, ...], provider: str) -> None:
    choice = choose(env={}, probe=running(*addresses))
    assert (choice.profile.name, choice.model, choice.keys, choice.local) == (provider, "tiny", (), True)


def test_without_a_probe_nothing_is_looked_for() -> None:
    choice = choose(env={})
    assert (choice.profile.name, choice.model, choice.base_url) == ("offline", "demo", None)


def test_a_name_without_provider_and_a_base_url_is_local() -> None:
    choice = choose("llama3:8b", base_url="http://127.0.0.1:9999/v1", env=OPENAI)
    assert (choice.profile.name, choice.model, choice.keys) == ("local", "llama3:8b", ())
    assert choice.local
    assert not choose("m", base_url="https://models.example.com/v1", env={}).local


def test_only_the_first_colon_separates() -> None:
    assert choose("ollama:llama3:8b", env={}).model == "llama3:8b"


def test_a_base_url_alone_takes_the_first_model_listed_there() -> None:
    choice = choose(base_url="http://localhost:7000/v1", env={}, probe=running(":7000"))
    assert (choice.profile.name, choice.model) == ("local", "tiny")


def test_base_urls_by_argument_environment_and_profile() -> None:
    env = {**OPENAI, "OPENAI_BASE_URL": "https://eu.example.com/v1"}
    assert choose("openai:gpt-5", env=OPENAI).base_url == "https://api.openai.com/v1"
    assert choose("openai:gpt-5", env=env).base_url == "https://eu.example.com/v1"
    here = "http://localhost:1/v1"
    assert choose("openai:gpt-5", base_url=here, env=env).base_url == here


def test_keys_by_argument_pool_source_and_environment() -> None:
    class Source:
        def get(self) -> str:
            return "sk"

        def refresh(self) -> str:
            return "sk"

    assert choose("openai:gpt-5", env=OPENAI).keys == ("sk-one",)
    assert choose("openai:gpt-5", api_key=["a-1", " b-2 "], env=OPENAI).keys == ("a-1", "b-2")
    assert choose("openai:gpt-5", api_key=Source(), env={}).keys == ()
    assert choose("openai:gpt-5", base_url="http://127.0.0.1:1/v1", env={}).keys == ()


def test_a_window_that_is_given_comes_first() -> None:
    assert choose("openai:gpt-5", api_key="k", context_window=1_234).window == 1_234
    assert choose("openai:gpt-99", context_window=1234, env=OPENAI).window == 1234
    assert choose("openai:gpt-99", context_window=10**12, env=OPENAI).window == 10**12
    assert choose("ollama:x", env={}).window is None


def test_a_vendor_is_a_row() -> None:
    mine = Profile("mine", "https://models.example.com/v1", "MINE_KEY", default_window=10)
    choice = choose("mine:m1", env={"MINE_KEY": "abc"}, profiles={**PROFILES, "mine": mine})
    assert (choice.base_url, choice.keys, choice.window) == (mine.base_url, ("abc",), 10)


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        ({"model": "openia:gpt-5"}, OPENAI, ["unknown provider 'openia'", "openia:gpt-5", "ollama"]),
        ({"model": "gpt-5"}, OPENAI, ["no provider", "gpt-5", "<provider>:<model>"]),
        ({"model": "openai:"}, OPENAI, ["no model after the colon", "openai:<model>"]),
        ({"model": ""}, OPENAI, ["empty", "<provider>:<model>"]), ({"model": 7}, OPENAI, ["no text", "7"]),
        ({}, {"FSM_AGENT_MODEL": "nope:x"}, ["FSM_AGENT_MODEL", "unknown provider"]),
        (gpt(), {}, ["no key", "OPENAI_API_KEY"]),
        (gpt(base_url="https://proxy.example.com"), {}, ["OPENAI_API_KEY"]),
        (gpt(api_key=""), OPENAI, ["api_key is empty"]),
        (gpt(api_key=["a", " "]), OPENAI, ["api_key is empty", "list"]),
        (gpt(api_key=[]), OPENAI, ["api_key is empty"]),
        (gpt(api_key=5), OPENAI, ["api_key cannot be used", "int"]),
        (gpt(base_url="localhost:8000"), OPENAI, ["base_url", "localhost:8000", "http://"]),
        (gpt(base_url="ftp://x/v1"), OPENAI, ["base_url", "ftp://x/v1"]),
        (gpt(base_url="http:///v1"), OPENAI, ["base_url"]),
        (gpt(base_url="http://host:port/v1"), OPENAI, ["base_url"]),
        (gpt(base_url="http://h:99999"), OPENAI, ["base_url"]),
        (gpt(base_url="http://[::1"), OPENAI, ["base_url"]),
        (gpt(base_url="http://a b/v1"), OPENAI, ["base_url"]), (gpt(base_url=""), OPENAI, ["base_url"]),
        (gpt(), {**OPENAI, "OPENAI_BASE_URL": "nonsense"}, ["OPENAI_BASE_URL", "nonsense"]),
        ({"model": "local:m"}, {}, ["needs an address", "LOCAL_BASE_URL"]),
        ({"base_url": "http://127.0.0.1:1/v1"}, {}, ["without a model", "FSM_AGENT_MODEL"]),
        (gpt(api_mode="chat"), OPENAI, ["unknown api_mode", "chat", "chat_completions"]),
        ({"model": "anthropic:claude"}, {}, ["no key", "ANTHROPIC_API_KEY"]),
        (gpt(context_window=0), OPENAI, ["context_window", "0", "positive"]),
        (gpt(context_window=10**13), OPENAI, ["context_window", "1 to 1,000,000,000,000"]),
        (gpt(context_window="128k"), OPENAI, ["context_window", "128k"]),
        (gpt(context_window=True), OPENAI, ["context_window", "True"]),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_one_clear_line(
    arguments: dict[str, Any], env: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        choose(**arguments, env=env)
    message = str(raised.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []
    assert "sk-one" not in message


def test_the_probe_finds_a_real_server_and_survives_anything_else() -> None:
    with ScriptedServer(models=["m-1", "m-2"]) as server:
        assert local_models(server.url) == ("m-1", "m-2")
        assert server.completions == 0
        assert local_models(f"http://127.0.0.1:{server.port}/nowhere") == ()
        dead = server.url
    assert local_models(dead) == ()
    assert local_models("https://models.example.com/v1") == ()
    assert local_models("") == ()


@pytest.mark.parametrize(
    ("url", "loopback", "nearby"),
    [
        ("http://127.0.0.1:1/v1", True, True), ("http://localhost/v1", True, True),
        ("http://[::1]:8080/v1", True, True), ("http://192.168.1.5:11434/v1", False, True),
        ("http://studio.local:1234/v1", False, True), ("https://api.openai.com/v1", False, False),
        (None, False, False),
    ],
)  # fmt: skip
def test_near_and_far(url: str | None, loopback: bool, nearby: bool) -> None:
    assert (is_loopback(url), is_nearby(url)) == (loopback, nearby)


def test_choosing_loads_no_sdk_and_prices_are_loaded_when_something_was_paid_and_fetch_nothing() -> None:
    program = """
import socket, sys
import fsm_agent.providers.choose
assert not {'openai', 'anthropic', 'httpx2'} & set(sys.modules)
fsm_agent.providers.choose.choose('openai:gpt-5', api_key='k')
from fsm_agent import Agent
assert 'genai_prices' not in sys.modules
def refused(*_, **__): raise AssertionError('network')
socket.socket.connect = refused
from fsm_agent.providers.catalog import price_of
assert price_of('gpt-5', 'openai').input == 1.25
"""
    printed("-c", program)


@pytest.mark.behaviour("STR-02")
@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        ("gpt-5-mini", 300), ("o3-deep-research", 600), ("deepseek/deepseek-r1", 300), ("gpt-4o", 0),
        ("kimi-k2-thinking", 300), ("turbo1", 0),
    ],
)  # fmt: skip
def test_models_that_think_may_be_silent_for_longer(model: str, seconds: float) -> None:
    assert silence_of(model) == seconds


@pytest.mark.behaviour("MODE-01")
@pytest.mark.parametrize(
    ("model", "url", "given", "mode"),
    [
        ("openai:gpt-5", None, None, "chat_completions"),
        ("openai-responses:gpt-5", None, None, "codex_responses"),
        ("openai:gpt-5", None, "codex_responses", "codex_responses"),
        ("anthropic:claude", None, None, "anthropic_messages"),
        ("anthropic:claude", "https://proxy.example.com", None, "anthropic_messages"),
        ("anthropic:claude", None, "chat_completions", "chat_completions"),
        ("m", "https://gate.example.com/anthropic", None, "anthropic_messages"),
        ("m", "https://gate.example.com/anthropic/v1/", None, "anthropic_messages"),
        ("m", "https://api.anthropic.com/v1", None, "anthropic_messages"),
        ("m", "https://gate.example.com/anthropic", "chat_completions", "chat_completions"),
        ("m", "https://anthropic.example.com/v1", None, "chat_completions"),
    ],
)
def test_the_wire_as_given_else_the_providers_own_else_by_the_address(
    model: str, url: str | None, given: str | None, mode: str
) -> None:
    choice = choose(model, base_url=url, api_key="k", api_mode=given)
    assert choice.api_mode == choice.runtime().api_mode == mode


@pytest.mark.behaviour("CACHE-04")
@pytest.mark.parametrize(
    ("model", "mode", "marks", "family"),
    [
        ("anthropic:claude-sonnet-4-5", None, True, "anthropic"), ("anthropic:next", None, True, "anthropic"),
        ("anthropic:claude-sonnet-4-5", "chat_completions", False, "chat"),
        ("openrouter:anthropic/claude-sonnet-4.5", None, True, "openrouter"),
        ("openrouter:openai/gpt-5", None, False, "openrouter"),
        ("openai:claude-behind-a-gate", "anthropic_messages", True, "claude"),
        ("moonshot:kimi-k2", "anthropic_messages", False, "unsigned"), ("openai:gpt-5", None, False, "chat"),
    ],
)  # fmt: skip
def test_who_caches_by_marks_and_takes_thoughts_back(
    model: str, mode: str | None, marks: bool, family: str
) -> None:
    runtime = choose(model, api_key="k", api_mode=mode).runtime()
    assert (runtime.cache_marks, runtime_family(runtime).name) == (marks, family)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("openai:gpt-5-mini", "reasoning_effort"), ("openai:o3", "reasoning_effort"), ("openai:gpt-4o", ""),
        ("openai:gpt-5-chat-latest", ""), ("openrouter:anthropic/claude-sonnet-4.5", "reasoning"),
        ("mistral:magistral", ""), ("gemini:gemini-3-pro", "reasoning_effort"), ("gemini:gemini-1.5-pro", ""),
    ],
)  # fmt: skip
def test_how_much_to_think_is_asked_only_where_it_is_understood(model: str, key: str) -> None:
    assert choose(model, api_key="k").runtime().effort_key == key


@pytest.mark.behaviour("FMT-01")
@pytest.mark.parametrize(
    ("model", "role"),
    [
        ("openai:gpt-5-mini", "developer"), ("openai:o3", "developer"), ("openai:o1-mini", "system"),
        ("openai:gpt-4o", "system"), ("openrouter:openai/gpt-5", "system"),
        ("deepseek:deepseek-chat", "system"),
    ],
)  # fmt: skip
def test_thinking_models_of_openai_get_the_prompt_from_the_developer(model: str, role: str) -> None:
    runtime = choose(model, api_key="k").runtime()
    sent = WireCopy().messages("Be good.", [Message("user", "q")], (), View.of(runtime, frozenset()))
    assert json.loads(b"".join(sent))[0] == {"role": role, "content": "Be good."}
