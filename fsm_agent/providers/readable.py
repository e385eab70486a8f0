"""What models read besides text. The one place that says so; ``parts.assume`` of the settings adds to it.

A guess is safe in the direction in which it can be mended: images are believed to be read, because a provider
that refuses them says so and the request is sent again without them; audio and files are not, because their
text, or a plain refusal, costs less than a request that fails."""

from __future__ import annotations

import re

from fsm_agent.conversation.parts import Kind

_BLIND = re.compile(
    r"^(gpt-3\.5|gpt-4(-0\d{3}|-32k)?$|gpt-oss|o1-(mini|preview)|o3-mini|gpt-(4o-)?audio|gpt-4o-(mini-)?audio"
    r"|claude-(2|instant)|deepseek-(chat|reasoner|coder|v[23]|r1)|kimi-k2($|-0|-turbo|-thinking|-instruct)"
    r"|moonshot-v1-(8k|32k|128k|auto)$|codestral|devstral|open-mi[sx]tral|mistral-(tiny|embed)"
    r"|qwen-(turbo|coder)|qwen[23](\.5)?-coder|qwq|glm-(4\.[567]|4|5)(-air|-airx|-x|-flash|-plus)?$"
    r"|llama-?3\.[13]|llama3(\.[13])?([-:]|$)|mixtral)"
)
"""Beginnings of the names of models that read no images."""
_HEARS = re.compile(r"^(gpt-audio|gpt-4o-(mini-)?audio|gemini-[123]|voxtral|qwen[\w.-]*-omni|qwen-audio)")
_READS_FILES = re.compile(
    r"^(gpt-4o(?!-(mini-)?audio)|gpt-4\.1|gpt-[5-9]|chatgpt-4o|o1($|-pro|-20)|o3($|-pro|-20|-deep)|o4|codex|claude-)"
)
_OWN_FILES = ("openai", "openai-responses", "anthropic")
"""Providers that take files for their own models."""


def readable(provider: str, model: str) -> frozenset[Kind]:
    """Return the kinds of parts besides text that a model of this provider is believed to read."""
    name = model.lower().rsplit("/", 1)[-1]
    if provider == "offline":
        return frozenset()
    if provider == "scripted":  # a port of the user's own, or a script: it gets what it is given
        return frozenset(("image", "audio", "file"))
    found: set[Kind] = set() if _BLIND.match(name) else {"image"}
    if _HEARS.match(name):
        found.add("audio")
    if provider == "openrouter" or (provider in _OWN_FILES and _READS_FILES.match(name)):
        found.add("file")  # OpenRouter reads PDFs for every model
    return frozenset(found)
