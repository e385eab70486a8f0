"""Keeping secrets out of everything that is shown, logged or stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fsm_agent.support.secret_shapes import MASK as MASK
from fsm_agent.support.secret_shapes import without_shapes

_SHORTEST = 6
"""Characters; a shorter "secret" is a placeholder like "none", and masking it would garble ordinary words."""

_IS = r"""\\*["']?\s*(?:[:=]|=>|%3[AaDd])\s*\\*["']?"""
"""Between a name and its value: in a header, in JSON, in JSON within JSON, in an assignment, in an
address."""
_SHAPES = re.compile(
    rf"""
    (?P<pem>-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----)
      (?:(?!-----)[^"']){{1,20000}}(?:-----END\ [A-Z ]*PRIVATE\ KEY-----)?
    | (?P<cookie>\b(?:set-)?cookie{_IS})(?=[^"'\r\n]{{0,200}}=)[^"'\\\r\n]{{6,}}  # Cookie: name=value; …
    | \b(?P<scheme>bearer)\s+[\w.~+/=-]{{6,}}                                 # Authorization: Bearer …
    | \b(?P<basic>basic)\s+(?=[\w+/-]*(?:\d|=|(?-i:[a-z][A-Z])))[\w+/=-]{{6,}}  # user and password, encoded
    | (?P<auth>\bauthorization{_IS}(?:token|apikey|digest)\s+)[^\s"'\\,;&]{{6,}}
    | \b(?:sk|pk|rk)(?:-|_live_|_test_)[\w-]{{6,}}  # OpenAI, Anthropic, Stripe …
    | \b(?:gsk|xai|hf|gh[oprsu]|github_pat|glpat|xox[a-z]|xapp|dop_v1|shpat|nvapi|pplx)
      [_-][\w-]{{8,}}                                                        # hubs, chats and clouds
    | \b(?:npm_[a-z0-9]{{30,}}|pypi-[\w-]{{16,}}|SG\.[\w-]{{10,}}\.[\w-]{{10,}}|ya29\.[\w-]{{10,}})
    | \bAIza[\w-]{{10,}}                                                      # Google
    | (?-i:\b(?:AKIA|ASIA)[A-Z0-9]{{12,}})                                    # AWS
    | (?P<hook>hooks\.slack\.com/services/)[\w/]+
    | \beyJ[\w-]{{8,}}\.[\w-]+\.[\w-]+                                        # JSON web tokens
    | (?P<name>(?:(?:api|access|secret|private|signing|encryption|auth)[_-]?(?:access[_-]?)?key(?:[_-]?id)?
      |(?:access|auth|refresh|id|session|bearer|api)[_-]?token|client[_-]?secret|secret|passw(?:or)?d|passphrase){_IS})(?!-----BEGIN)[^\s"'\\,;&]{{6,}}
    | (?P<flag>--(?:password|passwd|api-?key|token|secret)\s+["']?)[^\s"'-][^\s"']{{5,}}  # of a command
    | (?P<env>(?-i:\b[A-Z][A-Z0-9_]*_(?:TOKEN|PASS|PWD|PAT|CREDENTIALS?))\s*=\s*["']?)[^\s"']{{6,}}
    | (?P<soft>(?:\btoken|[_-]token|signature|(?<=[?&])(?:sig|key|code)|session_?id){_IS})
      (?=[\w.~+/%-]*\d)[\w.~+/=%-]{{8,}}(?![\w(])
    | (?P<site>://[^\s:/@"']+:)[^\s/"']+(?=@)                                 # https://user:password@host
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SIGNS = (
    *(
        "key",
        "token",
        "secret",
        "pass",
        "pwd",
        "bearer",
        "basic",
        "authorization",
        "cookie",
        "signature",
        "session",
        "://",
    ),
    *(
        "sk-",
        "pk-",
        "rk-",
        "_live_",
        "_test_",
        "gsk",
        "xai",
        "hf_",
        "hf-",
        "gh",
        "glpat",
        "xox",
        "xapp",
        "dop_v1",
        "shpat",
    ),
    *(
        "nvapi",
        "pplx",
        "npm_",
        "pypi-",
        "sg.",
        "ya29",
        "aiza",
        "akia",
        "asia",
        "slack",
        "eyj",
        "_pat",
        "credential",
        "?sig",
    ),
    *("&sig", "?code", "&code"),
)
"""One of these, in lower case, is in every text that the shapes find anything in; looking for them is ten
times as fast."""
_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|apikey|access[_-]?token|auth[_-]?token|secret|password|authorization)$",
    re.IGNORECASE,
)
_KEYS = ("_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
"""Ends of the names of variables that hold keys."""
_KEPT = ("scheme", "basic")
"""Groups that a blank stands behind; every other one is kept as it is."""


class Exact(str):
    """A text that must reach a person as it is, such as what they are asked to approve: ``mask_json`` leaves
    it alone."""

    __slots__ = ()


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without anything that looks like a key, and without these secrets wherever they occur, also as
    addresses and JSON write them.

    The first characters that tell the kind of a key are kept: ``sk-***``.
    """
    for secret in sorted({form for one in secrets for form in _forms(one)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = without_shapes(text)
    lower = text.lower()
    return _SHAPES.sub(_masked, text) if any(sign in lower for sign in _SIGNS) else text


def mask_json(value: Any, secrets: Sequence[str] = ()) -> Any:
    """JSON values without keys: by their shape anywhere in a text, by their name in an object, and these
    ``secrets``. What is ``Exact`` stays."""
    if _is_plain(value):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {
            key: MASK if one and _is_plain(one) and _SECRET_NAME.search(str(key)) else mask_json(one, secrets)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_json(one, secrets) for one in value]
    return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Exact)


def environment_keys(environment: Mapping[str, str]) -> list[str]:
    """Values of variables that hold keys."""
    return [value for name, value in environment.items() if value and name.upper().endswith(_KEYS)]


def _forms(secret: str) -> Iterator[str]:
    if len(secret) >= _SHORTEST:
        yield from (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])


def _masked(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if kind is not None:
        return f"{found[kind]} {MASK}" if kind in _KEPT else f"{found[kind]}{MASK}"
    begin = re.match(r"[A-Za-z]+[_-]|AIza|AKIA|ASIA|eyJ", found[0])
    return f"{begin[0] if begin else ''}{MASK}"
