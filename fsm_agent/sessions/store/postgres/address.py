"""The address of a database: ``postgresql://user:password@host:port/name?option=value``, and how it is
shown."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

MASKED = "***"
_SECRET = ("password", "sslpassword")


def shown(url: str) -> str:
    """Return the address as people may see it: without its passwords. Another text is returned as it
    is."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    user, colon, _ = who.partition(":")
    query = urlencode(
        [(name, MASKED if name.lower() in _SECRET else value) for name, value in parse_qsl(parts.query)],
        quote_via=quote, safe="*/,",
    )  # fmt: skip
    netloc = f"{user}{colon and f':{MASKED}'}{at}{where}"
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def secrets(url: str) -> tuple[str, ...]:
    """Return the passwords in an address."""
    parts = urlsplit(url)
    found = [
        parts.password or "",
        *(value for name, value in parse_qsl(parts.query) if name.lower() in _SECRET),
    ]
    return tuple(one for one in found if one)
