"""The catalog's facts about models, and the warning for unknown ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Runtime
from fsm_agent.providers.catalog import facts_of
from fsm_agent.providers.choose import GUESSES, choose
from fsm_agent.providers.profiles import PROFILES, Profile
from fsm_agent.testing import ScriptedServer, repeat, status, text
from tests.helpers.harness import table

MILLION = 1_000_000
MADE_UP = choose("openai:gpt-x", api_key="k").guess


def kinds_read(runtime: Runtime) -> set[str]:
    known = {"image": runtime.vision, "audio": runtime.audio, "file": runtime.files}
    return {kind for kind, reads in known.items() if reads}


def test_models_of_today() -> None:
    for model, window, output, reads in [
        ("anthropic:claude-haiku-4-5", 200_000, 64_000, "image file"),
        ("anthropic:claude-haiku-4-5-20251001", 200_000, 64_000, "image file"),
        ("anthropic:claude-haiku-5-5", MILLION, 128_000, "image file"),
        ("anthropic:claude-sonnet-4-6", MILLION, 64_000, "image file"),
        ("anthropic:claude-sonnet-5-5", MILLION, 128_000, "image file"),
        ("anthropic:claude-opus-4-5", 200_000, 64_000, "image file"),
        ("anthropic:claude-opus-4-8", MILLION, 128_000, "image file"),
        ("anthropic:claude-opus-5.5", MILLION, 128_000, "image file"),
        ("anthropic:claude-fable-5-1", MILLION, 128_000, "image file"),
        ("openai:gpt-4", 8_192, 4_096, ""),
        ("openai:gpt-4-0613", 8_192, 4_096, ""),
        ("openai:gpt-4o", 128_000, 16_384, "image file"),
        ("openai:gpt-4.1", 1_047_576, 32_768, "image file"),
        ("openai:gpt-5", 272_000, 128_000, "image file"),
        ("openai:gpt-5-mini", 272_000, 128_000, "image file"),
        ("openai-responses:gpt-5-mini-2025-08-07", 272_000, 128_000, "image file"),
        ("openai:gpt-6-sol", 922_000, 128_000, "image file"),
        ("openai:o3", 200_000, 100_000, "image file"),
        ("openai:o4-mini", 200_000, 100_000, "image file"),
        ("gemini:gemini-2.5-flash", 1_048_576, 65_536, "image audio"),
        ("gemini:gemini-2.5-pro", 1_048_576, 65_536, "image audio"),
        ("gemini:gemini-3.8-flash", 1_048_576, 65_536, "image audio"),
        ("deepseek:deepseek-chat", 131_072, 8_192, ""),
        ("deepseek:deepseek-v4-pro", MILLION, 393_216, ""),
        ("moonshot:kimi-latest", 131_072, None, "image"),
        ("moonshot:kimi-k3", 1_048_576, 1_048_576, "image"),
        ("mistral:mistral-medium-latest", 262_144, 262_144, "image"),
        ("mistral:codestral-2508", 128_000, 128_000, ""),
        ("groq:openai/gpt-oss-120b", 131_072, 65_536, ""),
        ("groq:llama-3.3-70b-versatile", 131_072, 32_768, ""),
        ("qwen:qwen-plus", 129_024, 16_384, ""),
        ("qwen:qwen3-max", 258_048, 65_536, ""),
        ("zai:glm-4.6", 200_000, 128_000, ""),
        ("zai:glm-5.3", MILLION, 128_000, ""),
        ("openrouter:anthropic/claude-sonnet-5.5", MILLION, 128_000, "image file"),
        ("openrouter:openai/gpt-5:online", 272_000, 128_000, "image file"),
        ("openrouter:google/gemini-2.5-pro", 1_048_576, 65_536, "image audio file"),
        ("openrouter:z-ai/glm-5.3", MILLION, 128_000, "file"),
    ]:
        choice = choose(model, api_key="k")
        facts, runtime = choice.facts, choice.runtime()
        assert (facts.window, facts.output, facts.reads) == (window, output, frozenset(reads.split())), model
        assert (runtime.window, runtime.most_output, kinds_read(runtime)) == (window, output, facts.reads), (
            model
        )
        assert facts.source, model
        assert not choice.guess, model


@pytest.mark.parametrize("profile", [one for one in PROFILES.values() if one.default_model and one.catalog])
def test_a_provider_has_a_default_model_that_is_known(profile: Profile) -> None:
    if profile.name != "openrouter":  # whose default is whichever it chooses
        assert choose(f"{profile.name}:{profile.default_model}", api_key="k").facts.source


@pytest.mark.parametrize(
    ("model", "window", "words"),
    [
        ("openai:gpt-99", 128_000, "taken for 128,000 tokens"),
        ("anthropic:claude-next", 200_000, "taken for 200,000 tokens"),
        ("openrouter:nobody/nothing", 128_000, "taken for 128,000 tokens"),
        ("local:phi", None, "not known before"),
    ],
)
def test_an_unknown_model_gets_a_safe_guess(model: str, window: int | None, words: str) -> None:
    choice = choose(model, base_url="http://127.0.0.1:9/v1", api_key="k")
    assert (choice.window, choice.facts.source, choice.runtime().vision) == (window, "", True)
    assert words in choice.guess
    assert choose(model, "http://127.0.0.1:9/v1", "k", context_window=9_000).guess == ""


def test_a_guess_is_reported_once_in_a_process(tmp_path: Path) -> None:
    told: list[str] = []
    with ScriptedServer([text("a"), text("b"), text("c"), text("d")]) as server:
        for model in ("openai:gpt-99", "openai:gpt-99", "openai:gpt-98", "openai:gpt-5"):
            options = {"toolsets": [], "home": tmp_path, "callbacks": {"status": told.append}}
            with Agent(model, base_url=server.url, api_key="k", **options) as agent:
                agent.run_conversation("go")
    assert [line.partition(":")[0] + line.partition(":")[2][:7] for line in told] == [
        "nothing is known of openaigpt-99:", "nothing is known of openaigpt-98:",
    ]  # fmt: skip
    assert len(GUESSES - {MADE_UP}) == 2


def test_a_guess_about_a_fallback_is_reported_at_the_switch() -> None:
    with ScriptedServer([text("fine")]) as good:
        chain = [{"model": "local:phi", "base_url": good.url}]
        with table(repeat(status(401)), model="openai:gpt-5", fallbacks=chain) as (agent, _, _, heard):
            assert agent.run_conversation("go").completed
    assert [line for line in heard.of("status") if "nothing is known of local:phi" in line]


def test_unknown_features_are_tried_where_a_refusal_is_repaired() -> None:
    facts = choose("openai:gpt-99", api_key="k").facts
    assert [facts.can_read(kind) for kind in ("image", "audio", "file")] == [True, False, False]
    routed = choose("openrouter:nobody/nothing", api_key="k").facts
    assert [routed.can_read(kind) for kind in ("image", "audio", "file")] == [True, False, True]


def test_the_data_is_what_make_models_writes() -> None:
    data = Path(__file__).parents[2] / "fsm_agent" / "providers"
    listed = json.loads((data / "models.json").read_text(encoding="utf-8"))
    assert set(listed) == {"source", "models"}
    keys = {key for table in listed["models"].values() for facts in table.values() for key in facts}
    assert keys == {"window", "output", "reads", "does", "efforts"}
    assert all(facts["window"] > 0 for table in listed["models"].values() for facts in table.values())
    assert "MIT License" in (data / "models.LICENSE").read_text(encoding="utf-8")
    assert {one.catalog for one in PROFILES.values()} - {"", "*"} <= set(listed["models"])


def test_what_is_known_reads_as_one_line() -> None:
    assert facts_of("openai", "gpt-5").words() == (
        "prompts of 272,000 tokens; replies of 128,000; reads text, files, images; thinks (minimal, low, medium,"
        " high); JSON schemas (from the catalog, litellm 1.109.1)"
    )


@pytest.mark.parametrize(
    "name",
    [
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "anthropic.claude-sonnet-4-5-v1:0",
        "global.anthropic.claude-sonnet-4-5",
    ],
)
def test_a_model_at_bedrock_is_known_by_its_own_name(name: str) -> None:
    assert facts_of("anthropic", name) == facts_of("anthropic", "claude-sonnet-4-5")
    assert facts_of("anthropic", name).source


READ = {
    "image file": "openai:gpt-4-turbo openai:gpt-4o-mini openai:o1 openai-responses:gpt-5 anthropic:claude-sonnet-4-5"
    " openrouter:anthropic/claude-sonnet-4.5 openrouter:openrouter/auto",
    "file": "openrouter:deepseek/deepseek-chat",
    "": "openai:gpt-3.5-turbo openai:o3-mini deepseek:deepseek-reasoner moonshot:moonshot-v1-8k mistral:codestral-latest"
    " zai:glm-4.5-air qwen:qwen3-coder-plus offline:demo",
    "image": "moonshot:kimi-k2.5 moonshot:moonshot-v1-8k-vision-preview mistral:pixtral-large-latest"
    " groq:meta-llama/llama-4-scout-17b-16e-instruct zai:glm-4.5v zai:glm-4.6v qwen:qwen-vl-max ollama:gemma3"
    " ollama:llama3.2-vision local:anything ollama:llama3.1:8b openai:o1-mini anthropic:a-model-of-tomorrow",
    "audio": "openai:gpt-audio",
    "image audio file": "scripted:any",
}
"""The last two of those that read images are guesses."""


@pytest.mark.behaviour("BUILD-18")
def test_what_a_model_reads() -> None:
    for model, read in ((one, read) for read, models in READ.items() for one in models.split()):
        address = "http://127.0.0.1:1/v1" if model == "local:anything" else None
        runtime = choose(model, base_url=address, api_key="k").runtime()
        assert kinds_read(runtime) == set(read.split()), model
