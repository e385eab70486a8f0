"""The providers we know, as rows of data. A vendor's quirks are fields here, never an ``if`` elsewhere.

Context windows are the figures that vendors publish for their models, in tokens. They change without notice:
a model that no prefix names gets its provider's ``default_window``, and ``context_window=`` overrides both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsm_agent.conversation.effects import ApiMode, ErrorRow


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider.

    ``key_env`` and ``base_url_env`` name environment variables. ``default_model`` is used when a key in the
    environment chose this provider. ``model_windows`` are (prefix of a model's name, tokens); the longest
    prefix wins. ``local``: no key and slow answers are normal. ``aggregator``: it stands before other
    providers. ``in_process``: it has no address. ``error_rows``: its own signs of error classes, which come
    before the general ones. ``manners``: the known provider whose wire it speaks, where that is not itself.
    ``output_key``: its name for the cap on output. ``effort_key``: how chat completions ask its thinking
    models for reasoning. ``developer_role``: it takes the prompt of its thinking models as the developer's
    (FMT-01). ``marked_models``: names whose prompts it caches by marks, on chat completions. ``auth``: the
    header that carries the key on the Messages wire."""

    name: str
    base_url: str | None = None
    key_env: str | None = None
    base_url_env: str | None = None
    api_mode: ApiMode = "chat_completions"
    local: bool = False
    aggregator: bool = False
    in_process: bool = False
    needs_key: bool = True
    manners: str = ""
    output_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    effort_key: Literal["", "reasoning_effort", "reasoning"] = ""
    developer_role: bool = False
    marked_models: tuple[str, ...] = ()
    auth: Literal["x-api-key", "bearer"] = "x-api-key"
    default_model: str | None = None
    default_window: int | None = None
    model_windows: tuple[tuple[str, int], ...] = ()
    error_rows: tuple[ErrorRow, ...] = ()

    def window(self, model: str) -> int | None:
        """Context window of a model in tokens; ``None`` when nothing is known of it."""
        fitting = [pair for pair in self.model_windows if model.startswith(pair[0])]
        return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else self.default_window


_OPENAI_WINDOWS = (
    ("gpt-3.5", 16_385),
    ("gpt-4", 8_192),
    ("gpt-4-turbo", 128_000),
    ("gpt-4o", 128_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-5", 400_000),
    ("gpt-5-chat", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
)

ROWS: tuple[Profile, ...] = (
    Profile(
        "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL",
        output_key="max_completion_tokens", effort_key="reasoning_effort", developer_role=True,
        default_model="gpt-5-mini",
        default_window=128_000, model_windows=_OPENAI_WINDOWS,
    ),
    Profile(
        "openai-responses", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL",
        api_mode="codex_responses", default_model="gpt-5-mini", default_window=128_000,
        model_windows=_OPENAI_WINDOWS,
    ),
    Profile(
        "anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL",
        api_mode="anthropic_messages", default_model="claude-sonnet-5-5",
        default_window=200_000,
    ),
    Profile(
        "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL",
        aggregator=True, effort_key="reasoning", marked_models=("claude",),
        auth="bearer", default_model="openrouter/auto", default_window=128_000,
        model_windows=(
            ("anthropic/", 200_000), ("openai/gpt-4.1", 1_047_576), ("openai/gpt-5", 400_000),
            ("google/gemini", 1_048_576),
        ),
    ),
    Profile(
        "deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL",
        default_model="deepseek-chat", default_window=128_000,
    ),
    Profile(
        "moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "MOONSHOT_BASE_URL",
        auth="bearer", default_model="kimi-latest",
        default_window=131_072,
        model_windows=(("kimi-k2", 262_144), ("moonshot-v1-8k", 8_192), ("moonshot-v1-32k", 32_768)),
    ),
    Profile(
        "mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "MISTRAL_BASE_URL",
        default_model="mistral-medium-latest", default_window=131_072,
        model_windows=(("codestral", 256_000),),
    ),
    Profile(
        "groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "GROQ_BASE_URL",
        output_key="max_completion_tokens", default_model="llama-3.3-70b-versatile", default_window=131_072,
    ),
    Profile(
        "gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY",
        "GEMINI_BASE_URL", effort_key="reasoning_effort", default_model="gemini-2.5-flash",
        default_window=1_048_576,
    ),
    Profile(
        "qwen", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY",
        "DASHSCOPE_BASE_URL", default_model="qwen-plus", default_window=131_072,
        model_windows=(("qwen-max", 32_768), ("qwen3-max", 262_144)),
        error_rows=(
            ErrorRow("billing", codes=("allocationquota.freetieronly",)),
            ErrorRow(
                "rate_limit", codes=("throttling.ratequota", "throttling.allocationquota", "limit_requests")
            ),
        ),
    ),
    Profile(
        "zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "ZAI_BASE_URL",
        auth="bearer", default_model="glm-4.5", default_window=131_072, model_windows=(("glm-4.6", 200_000),),
        error_rows=(
            ErrorRow("billing", codes=("1113",)), ErrorRow("content_policy", codes=("1301",)),
            ErrorRow("context_overflow", codes=("1261",)), ErrorRow("model_not_found", codes=("1211",)),
            ErrorRow("overloaded", codes=("1305",)),
        ),
    ),
    Profile("ollama", "http://127.0.0.1:11434/v1", None, "OLLAMA_BASE_URL", local=True, needs_key=False),
    Profile("lmstudio", "http://127.0.0.1:1234/v1", None, "LMSTUDIO_BASE_URL", local=True, needs_key=False),
    Profile("llamacpp", "http://127.0.0.1:8080/v1", None, "LLAMACPP_BASE_URL", local=True, needs_key=False),
    Profile("vllm", "http://127.0.0.1:8000/v1", None, "VLLM_BASE_URL", local=True, needs_key=False),
    Profile("local", None, "LOCAL_API_KEY", "LOCAL_BASE_URL", local=True, needs_key=False),
    Profile("offline", in_process=True, needs_key=False, default_model="demo", default_window=128_000),
    Profile("scripted", in_process=True, needs_key=False, default_window=128_000),
)  # fmt: skip

PROFILES: dict[str, Profile] = {row.name: row for row in ROWS}
BY_KEY: tuple[Profile, ...] = tuple(PROFILES[name] for name in ("anthropic", "openai", "openrouter"))
"""In this order a key in the environment chooses a provider."""
LOCAL_SERVERS: tuple[Profile, ...] = tuple(PROFILES[name] for name in ("ollama", "lmstudio", "llamacpp"))
"""In this order a running server on loopback is looked for."""

_THINKERS: tuple[tuple[str, float], ...] = (
    ("deep-research", 600.0),
    ("o1", 300.0),
    ("o3", 300.0),
    ("o4", 300.0),
    ("gpt-5", 300.0),
    ("gpt-6", 300.0),
    ("reasoner", 300.0),
    ("thinking", 300.0),
    ("r1", 300.0),
    ("qwq", 300.0),
    ("magistral", 240.0),
    ("glm-4.5", 240.0),
    ("grok-4", 240.0),
)
"""Families of models that think before they speak, and the seconds they may be silent (STR-02: 180 to
600)."""


def stale_floor(model: str) -> float:
    """Seconds that this model may be silent at least; 0 for one that speaks at once."""
    name = "-" + model.lower().rsplit("/", 1)[-1]
    return max((seconds for family, seconds in _THINKERS if f"-{family}" in name), default=0.0)
