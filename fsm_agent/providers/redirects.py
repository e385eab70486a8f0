"""A provider's address that points elsewhere. No request to a model follows a redirect, to whatever place.

A request carries the key and the whole conversation, which are meant for the address that the user gave; and
each request is an attempt that the table has spent, so nobody may send another one behind its back.
(Why: decision 54.)
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit, urlunsplit

from fsm_agent.conversation.effects import Failure
from fsm_agent.providers.error_body import one_line
from fsm_agent.support.redaction import mask

PATHS = ("/chat/completions", "/responses", "/v1/messages")
"""What the wires add to a base URL."""
_SHOWN = 200
"""Longest address in characters that is shown."""


def is_redirect(status: int) -> bool:
    """Say whether an HTTP code points elsewhere."""
    return 300 <= status < 400


def redirect_failure(
    status: int,
    asked: str,
    location: str | None,
    secrets: Iterable[str] = (),
    exception: str = "",
) -> Failure:
    """What a redirect means: one line with the status, the place without secrets, and what to do.

    ``asked`` is the address of the request, ``location`` the header of the response. The place is no part of
    the ``detail``, so that no word in it is taken for an error of the provider's.
    """
    secrets = tuple(secrets)
    place = _place(asked, location)
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "redirect"
    shown, advice = _shown(place, secrets), _advice(place, secrets)
    message = f"HTTP {status} {phrase} points to {shown}; redirects are not followed: {advice}"
    return Failure(
        "http",
        one_line(message),
        status=status,
        code="redirect",
        exception=exception,
        detail="redirect",
    )


def _place(asked: str, location: str | None) -> str:
    """Scheme, host and path of the new address; other parts may carry secrets. Empty if it cannot be read."""
    try:
        parts = urlsplit(urljoin(asked, location or ""))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    if not location or not host or parts.scheme not in ("http", "https"):
        return ""
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _advice(place: str, secrets: Iterable[str]) -> str:
    """The base URL that leads to the place, if what a wire adds to one is still at its end."""
    base = next((place.removesuffix(path) for path in PATHS if place.endswith(path)), "")
    if not base:
        return "set base_url to the API's address"
    return f"set base_url to {_shown(base, secrets)} if that is right"


def _shown(address: str, secrets: Iterable[str]) -> str:
    return one_line(mask(address, secrets), _SHOWN) if address else "no web address"
