"""What models read besides text."""

from __future__ import annotations

import pytest

from fsm_agent.providers.choose import choose

READ = {
    "image file": [
        "openai:gpt-4-turbo",
        "openai:gpt-4o", "openai:gpt-4o-mini", "openai:gpt-4.1", "openai:gpt-5", "openai:gpt-5-mini", "openai:o1", "openai:o3",
        "openai:o4-mini", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5",
        "openrouter:anthropic/claude-sonnet-4.5", "openrouter:openrouter/auto",
    ],
    "file": ["openrouter:deepseek/deepseek-chat", ],
    "": [
        "openai:gpt-3.5-turbo", "openai:gpt-4", "openai:gpt-4-0613", "openai:o3-mini", "deepseek:deepseek-chat",
        "deepseek:deepseek-reasoner", "moonshot:moonshot-v1-8k", "mistral:codestral-latest",
        "groq:llama-3.3-70b-versatile", "groq:openai/gpt-oss-120b", "zai:glm-4.6", "zai:glm-4.5-air", "qwen:qwen3-coder-plus",
        "offline:demo",
    ],
    "image": [
        "moonshot:kimi-latest", "moonshot:kimi-k2.5", "moonshot:moonshot-v1-8k-vision-preview",
        "mistral:mistral-medium-latest", "mistral:pixtral-large-latest", "groq:meta-llama/llama-4-scout-17b-16e-instruct",
        "zai:glm-4.5v", "zai:glm-4.6v", "qwen:qwen-vl-max", "ollama:gemma3", "ollama:llama3.2-vision", "local:anything", "ollama:llama3.1:8b",
        "openai:o1-mini", "anthropic:a-model-of-tomorrow",  # a guess
    ],
    "audio": ["openai:gpt-audio", ],
    "image audio": ["gemini:gemini-2.5-flash", ],
    "image audio file": ["openrouter:google/gemini-2.5-pro", "scripted:any"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "read"), [(model, read) for read, models in READ.items() for model in models]
)
def test_what_a_model_reads(model: str, read: str) -> None:
    runtime = choose(
        model, base_url="http://127.0.0.1:1/v1" if model == "local:anything" else None, api_key="k"
    ).runtime()
    known = {"image": runtime.vision, "audio": runtime.audio, "file": runtime.files}
    assert {kind for kind, reads in known.items() if reads} == set(read.split())


@pytest.mark.behaviour("BUILD-18")
def test_a_turn_knows_it() -> None:
    runtime = choose("openai:gpt-4o", api_key="k").runtime()
    assert (runtime.vision, runtime.audio, runtime.files) == (True, False, True)
