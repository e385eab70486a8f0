"""Values of a reply on any wire: typed fields, canonical token counts, and limits on its size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply, Usage

# Coerce reply fields to their expected types; anything else is treated as missing, because a provider may
# send anything anywhere. Mappings from JSON are dicts.


def text_of(value: Any) -> str:
    """Return the value if it is text, else an empty string."""
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; empty for any other value."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def id_of(value: Any) -> str:
    """Return an id that is text or, from some servers, a whole number; empty for any other value."""
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def place_of(value: Any) -> str | int | None:
    """Return the key that identifies a part of a stream, or ``None``."""
    return value if isinstance(value, (str, int)) else None


# Canonical token counts from each wire's own way of counting.


MOST_TOKENS = 1_000_000_000
"""Maximum tokens of a request: a hundred times the largest window. More is a mistake or an attack."""


def usage_from(wire: Any) -> Usage | None:
    """Read a ``usage`` object. ``None`` without counts: unknown is not zero.

    On this wire the prompt includes tokens read from and written to the cache, so both are subtracted.
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
    """Read a ``usage`` object of the Messages API, whose input excludes tokens read from and written to the
    cache. ``None`` without counts."""
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
    """Read a ``usage`` object of the Responses API, whose input includes tokens read from and written to the
    cache. ``None`` without counts."""
    if not _says(wire, "input_tokens", "output_tokens"):
        return None
    prompt, output = _first(wire.get("input_tokens")), _first(wire.get("output_tokens"))
    parts = mapping_of(wire.get("input_tokens_details"))
    read = min(_first(parts.get("cached_tokens")), prompt)
    write = min(_first(parts.get("cache_write_tokens")), prompt - read)
    reasoning = _first(mapping_of(wire.get("output_tokens_details")).get("reasoning_tokens"))
    return Usage(prompt - read - write, output, read, write, min(reasoning, output))


def _first(*values: Any) -> int:
    """Return the first count above zero, else 0."""
    for value in filter(None, values):
        if _is_count(value):
            return int(value)
    return 0


def _says(wire: Any, *names: str) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the object has any of these counts, and all of them are plausible. One impossible figure
    makes the others worthless."""
    counts = [wire[name] for name in names if wire.get(name) is not None] if isinstance(wire, dict) else []
    return bool(counts) and all(map(_is_count, counts))


def _is_count(value: Any) -> bool:
    """Return whether this is a plausible token count: whole (perhaps as a float) and within bounds."""
    return type(value) in (int, float) and 0 <= value <= MOST_TOKENS and value == int(value)


# Limits on one reply of a provider. They are not settings: a larger reply is an attack, or a new kind of
# model that requires higher limits for every user.
#
# ``fsm_agent.settings.Tools`` limits the contents of a reply (``max_calls``), this module its size, and
# ``Timeout`` and ``Stale`` its duration.


STREAM_BYTES = 64_000_000
"""Maximum bytes of a stream, unpacked: 128,000 tokens, the most written today, in events of 500 bytes."""
EVENT_BYTES = 8_000_000
"""Maximum bytes of one event: the last of a Responses stream repeats the reply and the offered tools."""
WHOLE_BYTES = 16_000_000
"""Maximum bytes of a reply that is one object."""
ERROR_BYTES = 64_000
"""Maximum bytes read of an error. Classification uses its first words."""
EVENTS = 1_000_000
"""Maximum events of one stream: eight for each token of the longest reply."""
CHARACTERS = 4_000_000
"""Maximum characters of text, reasoning, and arguments together: eight times the longest reply."""
ID_CHARACTERS, NAME_CHARACTERS = 20_000, 1_000
"""Maximum characters of a call's id, in which some gateways hide a signature, and of its name, after which
some models write arguments. A longer id is replaced, a longer name is cut."""


def too_much(why: str) -> Failure:
    """Build the failure of a reply over one of these limits; ``why`` calls the provider "it"."""
    return Failure("shape", f"the reply was given up: {why}", exception="ReplyTooLarge", code="over_limit",
                   detail="the reply was given up: over a limit")  # fmt: skip


def within_limits(reply: ModelReply | Failure) -> ModelReply | Failure:
    """Return the reply, or a failure if it exceeds the maximum length."""
    if isinstance(reply, Failure):
        return reply
    size = len(reply.text) + len(reply.reasoning) + sum(len(call.arguments) for call in reply.tool_calls)
    if reply.blocks:
        size += len(json.dumps(reply.blocks))
    if size <= CHARACTERS:
        return reply
    return replace(too_much(f"it has {size:,} characters, more than {CHARACTERS:,}"), usage=reply.usage)
