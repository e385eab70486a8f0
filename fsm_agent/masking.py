"""Keeping secrets out of everything that is shown, logged or stored."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_SHORTEST = 6
"""Characters; a shorter "secret" is a placeholder like "none", and masking it would garble ordinary words."""

_SHAPES = re.compile(
    r"""
    \b(?P<scheme>bearer|basic)\s+[\w.~+/=-]{6,}                                  # Authorization: Bearer …
    | \b(?:sk|pk|rk)-[\w-]{6,}                                                   # OpenAI, Anthropic, OpenRouter …
    | \b(?:gsk|xai|hf|ghp|gho|github_pat|glpat|xox[abps])[_-][\w-]{8,}           # Groq, xAI, hubs and chats
    | \bAIza[\w-]{10,}                                                           # Google
    | \bAKIA[A-Z0-9]{12,}                                                        # AWS
    | \beyJ[\w-]{8,}\.[\w-]+\.[\w-]+                                             # JSON web tokens
    | (?P<name>\b(?:api[_-]?key|x-api-key|access[_-]?token|secret|password)["']?\s*[:=]\s*["']?)[^\s"',;&]{6,}
    | (?P<site>://[^\s:/@]+:)[^\s/@]+(?=@)                                       # https://user:password@host
    """,
    re.VERBOSE | re.IGNORECASE,
)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without anything that looks like a key, and without these secrets wherever they occur.

    The first characters that tell the kind of a key are kept: ``sk-***``.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return _SHAPES.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    if (scheme := found["scheme"]) is not None:
        return f"{scheme} {MASK}"
    if (kept := found["name"] or found["site"]) is not None:
        return kept + MASK
    kind = re.match(r"[A-Za-z]+[_-]|AIza|AKIA|eyJ", found[0])
    return f"{kind[0] if kind else ''}{MASK}"
