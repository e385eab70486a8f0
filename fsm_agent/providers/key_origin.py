"""Where a key may go: to the origin that it is for, and over TLS.

A key in the environment is for its provider's own address, and for the one that the provider's variable
(``OPENAI_BASE_URL``) names. A key that is given together with an address is for that address. Nothing goes
to another machine without TLS unless its host is in the setting ``credential.plain_http``; only a server in
a private network that is sent no key needs no such word."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from fsm_agent.errors import ConfigError
from fsm_agent.providers.probe import is_loopback, is_nearby
from fsm_agent.providers.profiles import ROWS, Profile
from fsm_agent.support.redaction import mask

KEY_SHAPES = (("sk-ant-", "anthropic"), ("sk-or-", "openrouter"), ("gsk_", "groq"), ("AIza", "gemini"),
              ("xai-", "xai"))  # fmt: skip
"""How keys begin that only one provider gives out."""
_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Scheme, host and port, as a browser compares them: ``https://api.openai.com``."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return f"{parts.scheme}://{host}" + ("" if port in (None, _PORTS.get(parts.scheme)) else f":{port}")


def vendors_at(url: str | None) -> frozenset[str]:
    """The known providers whose own address this is, whatever the path."""
    if not url:
        return frozenset()
    host = urlsplit(origin(url)).hostname
    return frozenset(
        row.name for row in ROWS if row.needs_key and row.base_url and urlsplit(row.base_url).hostname == host
    )


def is_for(profile: Profile, url: str | None, named: str | None) -> bool:
    """Is the key in the environment for ``url``? ``named``: the address that the provider's variable names. A
    provider without an address of its own has its key for the one that is given."""
    if url is None or profile.base_url is None:
        return not vendors_at(url)
    own = {origin(profile.base_url)}
    if named and vendors_at(named) <= vendors_at(profile.base_url):
        own.add(origin(named))
    return origin(url) in own


def check_keys(profile: Profile, url: str | None, keys: Iterable[str]) -> None:
    """A key of another provider, sent to a provider's own address, can only be a mistake (decision 20)."""
    expected = vendors_at(url) or (frozenset((profile.name,)) if url == profile.base_url else frozenset())
    for key in keys if expected else ():
        owner = next((name for shape, name in KEY_SHAPES if key.startswith(shape)), "")
        if owner and owner not in expected:
            what = f"the key for provider {profile.name!r} looks like one of {owner}"
            raise ConfigError(what, mask(key), f"a key of {profile.name}, or model '{owner}:<model>'")


def check_tls(url: str | None, *, key: bool, plain_http: Collection[str]) -> None:
    """Refuse an address without TLS that nobody has allowed. ``key``: one is sent there."""
    if url is None or urlsplit(url).scheme != "http" or is_loopback(url) or (is_nearby(url) and not key):
        return
    host = urlsplit(url).hostname or ""
    if host not in {one.lower() for one in plain_http}:
        carried = "the key and the conversation" if key else "the conversation"
        allowed = f'an https address, or the setting credential.plain_http = ["{host}"]'
        raise ConfigError(f"{carried} would go to {origin(url)} without TLS", None, allowed)
