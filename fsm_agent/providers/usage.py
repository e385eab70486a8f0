"""Token counts in canonical buckets, from each wire's own way of counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.fields import mapping_of

MOST_TOKENS = 1_000_000_000
"""Of one request: a hundred times the largest window. A larger count is a mistake or an attack."""


def usage_from(wire: Any) -> Usage | None:
    """Read a ``usage`` object. ``None`` when it says nothing: unknown is not zero.

    On this wire the prompt includes what was read from and written to the cache, so both are taken out of it.
    Vendors name the cached part differently: ``prompt_tokens_details.cached_tokens`` (OpenAI, OpenRouter),
    ``prompt_cache_hit_tokens`` (DeepSeek), ``cached_tokens`` (Moonshot), ``cache_read_input_tokens``
    (gateways to Anthropic)."""
    if not _says(wire, "prompt_tokens", "completion_tokens", "total_tokens"):
        return None
    prompt_parts = mapping_of(wire.get("prompt_tokens_details"))
    output_parts = mapping_of(wire.get("completion_tokens_details"))
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


def messages_usage(wire: Any) -> Usage | None:
    """Read a ``usage`` object of the Messages API, whose input excludes what was read from and written to the
    cache. ``None`` when it says nothing."""
    if not _says(wire, "input_tokens", "output_tokens"):
        return None
    output, parts = _first(wire.get("output_tokens")), mapping_of(wire.get("output_tokens_details"))
    return Usage(
        input=_first(wire.get("input_tokens")),
        output=output,
        cache_read=_first(wire.get("cache_read_input_tokens")),
        cache_write=_first(wire.get("cache_creation_input_tokens")),
        reasoning=min(_first(parts.get("thinking_tokens")), output),
    )


def responses_usage(wire: Any) -> Usage | None:
    """Read a ``usage`` object of the Responses API, whose input includes what was read from and written to
    the cache. ``None`` when it says nothing."""
    if not _says(wire, "input_tokens", "output_tokens"):
        return None
    prompt, output = _first(wire.get("input_tokens")), _first(wire.get("output_tokens"))
    parts = mapping_of(wire.get("input_tokens_details"))
    read = min(_first(parts.get("cached_tokens")), prompt)
    write = min(_first(parts.get("cache_write_tokens")), prompt - read)
    reasoning = _first(mapping_of(wire.get("output_tokens_details")).get("reasoning_tokens"))
    return Usage(prompt - read - write, output, read, write, min(reasoning, output))


def _first(*values: Any) -> int:
    """The first count above zero."""
    return next((int(n) for n in values if _is_count(n) and n > 0), 0)


def _says(wire: Any, *names: str) -> TypeGuard[Mapping[str, Any]]:
    """Does it count any of these, and none of them in a way that is no count? A figure that cannot be true
    makes the others worth nothing."""
    told = [wire[name] for name in names if wire.get(name) is not None] if isinstance(wire, Mapping) else []
    return bool(told) and all(map(_is_count, told))


def _is_count(value: Any) -> bool:
    """A whole number of tokens, also one written as a float, in bounds that no request reaches."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= MOST_TOKENS and value == int(value)
