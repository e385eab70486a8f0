"""Is a model server running on this machine?"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from fsm_agent.conversation.nesting import json_of

TIMEOUT = 0.3
"""Seconds; a server on loopback answers a list of models in a few milliseconds."""
_LARGEST = 1_000_000


def is_loopback(url: str | None) -> bool:
    """Does the URL point to this machine?"""
    host = (urlsplit(url).hostname or "") if url else ""
    return host == "localhost" or (_address(host) or _NOWHERE).is_loopback


def is_nearby(url: str | None) -> bool:
    """Does the URL point to this machine or to a private network?"""
    host = (urlsplit(url).hostname or "") if url else ""
    address = _address(host)
    return is_loopback(url) or host.endswith(".local") or (address is not None and address.is_private)


def local_models(base_url: str) -> tuple[str, ...]:
    """The models that a server on loopback lists at ``<base_url>/models``; none without a server. Never
    raises."""
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
