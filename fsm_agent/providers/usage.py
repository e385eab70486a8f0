"""Token counts of the chat-completions wire in canonical buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.messages import Usage


def usage_from(wire: Any) -> Usage | None:
    """Read a ``usage`` object. ``None`` when it says nothing: unknown is not zero.

    On this wire the prompt includes what was read from and written to the cache, so both are taken out of it. Vendors
    name the cached part differently: ``prompt_tokens_details.cached_tokens`` (OpenAI, OpenRouter),
    ``prompt_cache_hit_tokens`` (DeepSeek), ``cached_tokens`` (Moonshot), ``cache_read_input_tokens`` (gateways to
    Anthropic).
    """
    if not isinstance(wire, Mapping) or not {"prompt_tokens", "completion_tokens", "total_tokens"} & wire.keys():
        return None
    prompt_parts = _mapping(wire.get("prompt_tokens_details"))
    output_parts = _mapping(wire.get("completion_tokens_details"))
    read = _first(
        prompt_parts.get("cached_tokens"),
        wire.get("prompt_cache_hit_tokens"),
        wire.get("cached_tokens"),
        wire.get("cache_read_input_tokens"),
    )
    write = _first(prompt_parts.get("cache_write_tokens"), wire.get("cache_creation_input_tokens"))
    prompt, output = _first(wire.get("prompt_tokens")), _first(wire.get("completion_tokens"))
    read = min(read, prompt)
    write = min(write, prompt - read)
    return Usage(
        input=prompt - read - write,
        output=output,
        cache_read=read,
        cache_write=write,
        reasoning=min(_first(output_parts.get("reasoning_tokens"), wire.get("reasoning_tokens")), output),
    )


def _first(*values: Any) -> int:
    """The first count above zero."""
    return next((int(n) for n in values if isinstance(n, (int, float)) and not isinstance(n, bool) and n > 0), 0)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
