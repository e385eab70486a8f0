"""The known providers, as rows of data. A vendor's quirks are fields here, never an ``if`` elsewhere. Facts
about their models are in ``fsm_agent.providers.catalog``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import ApiMode, ErrorRow
from fsm_agent.conversation.parts import Kind
from fsm_agent.support.texts import json_of

Auth = Literal["x-api-key", "bearer", "api-key"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider.

    ``key_env`` and ``base_url_env`` name environment variables; ``base_url`` may name others in braces,
    ``A|B`` for the first of two that is set. ``key``: a reference to the key (``keyring:service/name``),
    which wins over the environment. ``default_model`` is used if a key in the environment selected this
    provider. ``catalog``: the catalog's table of its models; empty without one, ``*`` for an aggregator.
    ``price_list``: its name in ``genai-prices``. ``files``: whether it accepts files: never, for the models
    that read them, or for every model. ``model_windows`` are (prefix of a model's name, tokens), of which the
    longest prefix wins, and ``default_window`` is for the rest: both are the user's figures for a custom
    provider, and win over the catalog. ``reads``: the inputs besides text of all its models, if no catalog
    lists them. ``local``: no key and slow answers are normal. ``aggregator``: it routes to other providers.
    ``in_process``: it has no address. ``error_rows``: its own signs of error classes, tried before the
    general ones. ``manners``: the known provider whose wire it speaks, if different. ``output_key``: its name
    for the cap on output. ``effort_key``: how chat completions ask its thinking models for reasoning.
    ``developer_role``: its thinking models take the system prompt in the developer role (FMT-01).
    ``schemas``: the server constrains every model to a JSON schema, by a grammar. ``marked_models``: models
    whose prompts it caches by marks, on chat completions. ``auth``: the header that carries the key, if a
    wire knows several. ``routes``: by wire, the path of a request if it differs from the wire's default; an
    address that ends in ``/v1`` needs none. ``api_version``: the API version of such a request, unless
    ``api_version_env`` names another. ``client``: the vendor whose SDK class makes the requests."""

    name: str
    base_url: str | None = None
    key_env: str | None = None
    base_url_env: str | None = None
    key: str | None = None
    api_mode: ApiMode = "chat_completions"
    local: bool = False
    aggregator: bool = False
    in_process: bool = False
    needs_key: bool = True
    manners: str = ""
    output_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    effort_key: Literal["", "reasoning_effort", "reasoning"] = ""
    developer_role: bool = False
    schemas: bool = False
    marked_models: tuple[str, ...] = ()
    auth: Auth = "x-api-key"
    routes: tuple[tuple[ApiMode, str], ...] = ()
    api_version: str = ""
    api_version_env: str | None = None
    client: Literal["", "bedrock"] = ""
    default_model: str | None = None
    catalog: str = ""
    price_list: str = ""
    files: Literal["none", "own", "all"] = "none"
    reads: frozenset[Kind] | None = None
    default_window: int | None = None
    model_windows: tuple[tuple[str, int], ...] = ()
    error_rows: tuple[ErrorRow, ...] = ()

    def window(self, model: str) -> int | None:
        """Return the configured context window of a model in tokens, or ``None``."""
        fitting = [pair for pair in self.model_windows if model.startswith(pair[0])]
        return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else self.default_window


ROWS: tuple[Profile, ...] = (
    Profile(
        "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL",
        catalog="openai", price_list="openai", files="own",
        output_key="max_completion_tokens", effort_key="reasoning_effort", developer_role=True,
        default_model="gpt-5-mini",
    ),
    Profile(
        "openai-responses", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL",
        api_mode="codex_responses", catalog="openai", price_list="openai", files="own",
        default_model="gpt-5-mini",
    ),
    Profile(
        "anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL",
        api_mode="anthropic_messages",
        catalog="anthropic", price_list="anthropic", files="own", default_model="claude-sonnet-5-5",
    ),
    Profile(
        "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL",
        aggregator=True, effort_key="reasoning", marked_models=("claude",),
        auth="bearer", catalog="*", files="all", default_model="openrouter/auto",
    ),
    Profile(
        "deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL",

        catalog="deepseek", price_list="deepseek", default_model="deepseek-chat",
    ),
    Profile(
        "moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "MOONSHOT_BASE_URL",
        auth="bearer", catalog="moonshot", price_list="moonshotai",
        default_model="kimi-latest",
    ),
    Profile(
        "mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "MISTRAL_BASE_URL",
        catalog="mistral", price_list="mistral", default_model="mistral-medium-latest",
    ),
    Profile(
        "groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "GROQ_BASE_URL",
        catalog="groq", price_list="groq", output_key="max_completion_tokens",
        default_model="llama-3.3-70b-versatile",
    ),
    Profile(
        "gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY",
        "GEMINI_BASE_URL", effort_key="reasoning_effort", catalog="gemini", price_list="google",
        default_model="gemini-2.5-flash",
    ),
    Profile(
        "qwen", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY",
        "DASHSCOPE_BASE_URL", catalog="dashscope", default_model="qwen-plus",
        error_rows=(
            ErrorRow("billing", codes=("allocationquota.freetieronly",)),
            ErrorRow(
                "rate_limit", codes=("throttling.ratequota", "throttling.allocationquota", "limit_requests")
            ),
        ),
    ),
    Profile(
        "zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "ZAI_BASE_URL",
        auth="bearer", catalog="zai", price_list="zai", default_model="glm-4.5",
        error_rows=(
            ErrorRow("billing", codes=("1113",)), ErrorRow("content_policy", codes=("1301",)),
            ErrorRow("context_overflow", codes=("1261",)), ErrorRow("model_not_found", codes=("1211",)),
            ErrorRow("overloaded", codes=("1305",)),
        ),
    ),
    Profile(
        "xai", "https://api.x.ai/v1", "XAI_API_KEY", "XAI_BASE_URL",
        catalog="xai", price_list="x-ai", effort_key="reasoning_effort",
    ),
    Profile(
        "azure", None, "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT",
        catalog="openai", price_list="azure", files="own", auth="api-key",
        output_key="max_completion_tokens", effort_key="reasoning_effort", developer_role=True,
        routes=(
            ("chat_completions", "/openai/deployments/{model}/chat/completions"),
            ("codex_responses", "/openai/responses"),
        ),
        api_version="2025-04-01-preview", api_version_env="OPENAI_API_VERSION",
    ),
    Profile(
        "vertex",
        "https://{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com/v1/projects/{GOOGLE_CLOUD_PROJECT}"
        "/locations/{GOOGLE_CLOUD_LOCATION}/endpoints/openapi",
        "VERTEX_API_KEY", "VERTEX_BASE_URL",
        catalog="*", price_list="google", effort_key="reasoning_effort",
    ),
    Profile(
        "bedrock", "https://bedrock-runtime.{AWS_REGION|AWS_DEFAULT_REGION}.amazonaws.com",
        "AWS_BEARER_TOKEN_BEDROCK", "ANTHROPIC_BEDROCK_BASE_URL", api_mode="anthropic_messages",
        needs_key=False, catalog="anthropic", price_list="aws", files="own", client="bedrock",
    ),
    Profile(
        "ollama", "http://127.0.0.1:11434/v1", None, "OLLAMA_BASE_URL",
        local=True, needs_key=False, schemas=True,
    ),
    Profile(
        "lmstudio", "http://127.0.0.1:1234/v1", None, "LMSTUDIO_BASE_URL",
        local=True, needs_key=False, schemas=True,
    ),
    Profile(
        "llamacpp", "http://127.0.0.1:8080/v1", None, "LLAMACPP_BASE_URL",
        local=True, needs_key=False, schemas=True,
    ),
    Profile(
        "vllm", "http://127.0.0.1:8000/v1", None, "VLLM_BASE_URL",
        local=True, needs_key=False, schemas=True,
    ),
    Profile("local", None, "LOCAL_API_KEY", "LOCAL_BASE_URL", local=True, needs_key=False),
    Profile(
        "offline", in_process=True, needs_key=False, default_model="demo", default_window=128_000,
        reads=frozenset(),
    ),
    Profile(
        "scripted", in_process=True, needs_key=False, default_window=128_000, reads=frozenset(get_args(Kind)),
    ),
)  # fmt: skip

PROFILES: dict[str, Profile] = {row.name: row for row in ROWS}
BY_KEY: tuple[Profile, ...] = tuple(PROFILES[name] for name in ("anthropic", "openai", "openrouter"))
"""The order in which a key in the environment selects a provider."""
LOCAL_SERVERS: tuple[Profile, ...] = tuple(PROFILES[name] for name in ("ollama", "lmstudio", "llamacpp"))
"""The order in which loopback servers are probed."""


# Detection of local model servers.


TIMEOUT = 0.3
"""Seconds; a server on loopback answers a list of models in a few milliseconds."""
_LARGEST = 1_000_000


def is_loopback(url: str | None) -> bool:
    """Return whether the URL points to this machine."""
    host = (urlsplit(url).hostname or "") if url else ""
    return host == "localhost" or (_address(host) or _NOWHERE).is_loopback


def is_nearby(url: str | None) -> bool:
    """Return whether the URL points to this machine or to a private network."""
    host = (urlsplit(url).hostname or "") if url else ""
    address = _address(host)
    return is_loopback(url) or host.endswith(".local") or (address is not None and address.is_private)


def local_models(base_url: str) -> tuple[str, ...]:
    """Return the models that a server on loopback lists at ``<base_url>/models``; empty without a server.
    Never raises."""
    if not is_loopback(base_url):
        return ()
    import http.client

    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT)
    try:
        connection.request("GET", parts.path.rstrip("/") + "/models", headers={"Accept": "application/json"})
        listed = json_of(connection.getresponse().read(_LARGEST).decode())["data"]
        return tuple(str(row["id"]) for row in listed if row.get("id"))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return ()
    finally:
        connection.close()


_NOWHERE = ipaddress.ip_address("192.0.2.1")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
