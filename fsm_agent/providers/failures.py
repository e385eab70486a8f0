"""Build a ``Failure`` from any error at a provider. Needs no SDK: exceptions are recognized by shape."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from fsm_agent.conversation.effects import Failure
from fsm_agent.providers.reply_values import too_much
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import OverlyNestedError, clean, json_of

# Parse an error body: its sentence, its codes, and all its texts. Pure functions over decoded JSON or raw
# text.


LIMIT = 500
"""Maximum message in characters (ERR-27)."""
_DEPTH = 6
_TITLE = re.compile(r"<title[^<>]*>(.*?)(?:</title>|\Z)", re.IGNORECASE | re.DOTALL)
_HTML = re.compile(r"^\s*(<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_HIDDEN = re.compile(
    r"<script\b.*?(?:</script>|\Z)|<style\b.*?(?:</style>|\Z)|<[^<>]+>", re.IGNORECASE | re.DOTALL
)
MOST = 200_000
"""Maximum characters read of one text; connections read less of an error."""


def one_line(text: str, limit: int = LIMIT) -> str:
    """Collapse white space, and a page of HTML to its title or visible text; cut to ``limit`` characters."""
    text = clean(text[:MOST])
    if _HTML.match(text):
        title = _TITLE.search(text)
        text = "HTML page: " + html.unescape(title[1] if title else _HIDDEN.sub(" ", text))
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_of(body: Any) -> Any:
    """Return the part of a body that describes the error: the ``error`` field, or the body itself. Some
    vendors send a list."""
    if isinstance(body, list):
        body = next((part for part in body if isinstance(part, Mapping)), body)
    return body.get("error") or body if isinstance(body, Mapping) else body


def sentence(body: Any, depth: int = _DEPTH) -> str:
    """Return the sentence meant for people; from an aggregator, also the upstream provider's."""
    error = error_of(body)
    if isinstance(error, str):
        return _sentence_in(error, depth)
    if not isinstance(error, Mapping) or not depth:
        return ""
    values = (error.get(key) for key in ("message", "detail", "msg"))
    own = next((_sentence_in(value, depth) for value in values if isinstance(value, str) and value), "")
    upstream = _upstream(error)
    text = sentence(upstream, depth - 1) if upstream is not None else ""
    return f"{own}: {text}" if own and text and text != own else own or text


def codes(body: Any) -> list[str]:
    """Return every structured code, best first: names, types, then numbers; outer errors before nested."""
    found: list[tuple[int, str]] = []
    for depth, error in enumerate(_errors(body)):
        details = error.get("details")
        named = details.get("error_code") if isinstance(details, Mapping) else None
        for rank, value in enumerate((error.get("code") or named, error.get("type"), error.get("status"))):
            if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value):
                number = str(value).isdigit()
                found.append(((100 if number else 0) + rank * 10 + depth, clean(str(value))))
    return list(dict.fromkeys(value for _, value in sorted(found, key=lambda pair: pair[0])))


def texts(body: Any) -> list[str]:
    """Return every text in a body, including JSON inside texts; ``metadata`` marks an aggregator's
    wrapper."""
    found = list(_texts(body, _DEPTH))
    error = error_of(body)
    if isinstance(error, Mapping) and isinstance(error.get("metadata"), Mapping):
        found.append("metadata")
    return found


def _errors(body: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the error, then those nested in its message or metadata."""
    for _ in range(_DEPTH):
        body = error_of(body)
        if isinstance(body, str):
            body = error_of(_json_in(body))
        if not isinstance(body, Mapping):
            return
        yield body
        nested = _upstream(body)
        body = nested if nested is not None else _json_in(str(body.get("message") or ""))


def _upstream(error: Mapping[str, Any]) -> Any:
    """Return the upstream provider's error inside an aggregator's; its raw text may be JSON."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(raw, str):
        return _json_in(raw) or raw
    return raw


def _sentence_in(text: str, depth: int) -> str:
    """Return the sentence of a message; if the message contains JSON, the sentence inside it."""
    inner = _json_in(text) if depth else None
    return (sentence(inner, depth - 1) if inner is not None else "") or text


def _json_in(text: str) -> Any:
    """Return the JSON object inside a text, or ``None``."""
    text = text[:MOST]
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return None
    try:
        value = json_of(text[start : end + 1])
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield one_line(value, 4 * LIMIT)
        if depth and (inner := _json_in(value)) is not None:
            yield from _texts(inner, depth - 1)
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part, depth - 1)


# A redirect from a provider's address. Requests to a model never follow one.
#
# A request carries the key and the whole conversation, which are meant for the configured address. Each
# request is also an attempt that the table has counted, so the transport may not send an uncounted one.
# (Why: decision 54.)


PATHS = ("/chat/completions", "/responses", "/v1/messages")
"""The paths that wires add to a base URL."""
_SHOWN = 200
"""Maximum characters of a displayed address."""


def is_redirect(status: int) -> bool:
    """Return whether an HTTP status is a redirect."""
    return 300 <= status < 400


def redirect_failure(
    status: int,
    asked: str,
    location: str | None,
    secrets: Iterable[str] = (),
    exception: str = "",
) -> Failure:
    """Build the failure for a redirect: one line with the status, the target without secrets, and the fix.

    ``asked`` is the address of the request, ``location`` the header of the response. The target is not part
    of the ``detail``, so that its words are not matched as a provider's error.
    """
    secrets = tuple(secrets)
    place = _place(asked, location)
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "redirect"
    shown, advice = _format_detail(place, secrets), _advice(place, secrets)
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
    """Return scheme, host, and path of the new address; other parts may contain secrets. Empty if it is
    unreadable."""
    try:
        parts = urlsplit(urljoin(asked, location or ""))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    if not location or not host or parts.scheme not in ("http", "https"):
        return ""
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _advice(place: str, secrets: Iterable[str]) -> str:
    """Return the advice: the base URL of the target, if the target still ends with a wire's path."""
    base = next((place.removesuffix(path) for path in PATHS if place.endswith(path)), "")
    if not base:
        return "set base_url to the API's address"
    return f"set base_url to {_format_detail(base, secrets)} if that is right"


def _format_detail(address: str, secrets: Iterable[str]) -> str:
    return one_line(mask(address, secrets), _SHOWN) if address else "no web address"


# The wait that a provider requests in its headers or error body.


_DURATION = re.compile(r"\s*+(\d{1,15}(?:\.\d{1,15})?)\s*+s?\s*+\Z")
_UNITS = re.compile(
    r"(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,5}(?:\.\d{1,9})?)s)?(?:(\d{1,5})ms)?"
)
_SIZES = (86_400, 3_600, 60, 1, 0.001)
_HINTS = frozenset(
    {
        "retry_after",
        "retry_after_seconds",
        "retrydelay",
        "resets_in_seconds",
        "resets_at",
        "reset_at",
        "x_ratelimit_reset",
    }
)
_EPOCH = 1e9
"""Numbers above this are points in time (in seconds; in milliseconds above a thousand times that), not
durations."""
LITTLE = 0.05
"""Fraction of a limit below which the user is notified."""
_NO_NAME = ("x", "ratelimit", "remaining", "anthropic")


def retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    """Return the requested wait in seconds from ``now``, never negative; 0 means at once, ``None`` without a
    request.

    ``retry-after-ms`` wins over ``Retry-After`` (seconds or an HTTP date), and both over hints in the body:
    ``retry_after``, ``retryDelay`` (Google), ``resets_in_seconds``, ``resets_at``, ``X-RateLimit-Reset``
    (OpenRouter's metadata). Finally, the rate-limit headers are read: the latest reset of an exhausted limit
    counts (``x-ratelimit-reset-tokens: 6m0s``, ``anthropic-ratelimit-requests-reset``)."""
    lower = {name.lower(): value for name, value in headers.items()}
    if (milliseconds := _seconds(lower.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = lower.get("retry-after")
    if value is not None:
        seconds = _seconds(value)
        return seconds if seconds is not None else _until(value, now)
    hinted = next(_hints(body, now, 5), None)
    return max(_resets(lower, now), default=0.0) or None if hinted is None else hinted


def describe_low_limits(headers: Mapping[str, str], now: float) -> str:
    """Describe the limits of a provider that are nearly used up (``x-ratelimit-remaining-tokens``,
    ``anthropic-ratelimit-requests-remaining`` and the like), and when they reset; empty if there are none."""
    lower = {name.lower(): value for name, value in headers.items() if "ratelimit" in name.lower()}
    return "; ".join(_scarce(lower, now))


def _scarce(headers: Mapping[str, str], now: float) -> Iterator[str]:
    for name, value in headers.items():
        left, most = _seconds(value), _seconds(headers.get(name.replace("remaining", "limit")))
        if "remaining" not in name or left is None or not most or left > most * LITTLE:
            continue
        words = (word for word in name.split("-") if word not in _NO_NAME)
        wait = next(_reset(headers.get(name.replace("remaining", "reset"), ""), now), None)
        soon = "" if wait is None else f" for {math.ceil(wait)} s"
        yield f"{left:,.0f} of {most:,.0f} {' '.join(words) or 'requests'} left{soon}"


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """Yield the seconds until each exhausted limit resets; header names in lower case."""
    for name, left in headers.items():
        if "ratelimit" not in name or "remaining" not in name or _seconds(left) != 0:
            continue
        yield from _reset(headers.get(name.replace("remaining", "reset"), ""), now)


def _reset(value: str, now: float) -> Iterator[float]:
    if (figure := _seconds(value)) is not None:
        yield _from_epoch(figure, now)
    elif (units := _UNITS.fullmatch(value.strip())) is not None and value.strip():
        yield sum(float(one) * size for one, size in zip(units.groups("0"), _SIZES, strict=True))
    else:
        yield from _at(value, now)


def _at(moment: str, now: float) -> Iterator[float]:
    with suppress(ValueError, OverflowError):
        yield max(0.0, datetime.fromisoformat(moment).astimezone(UTC).timestamp() - now)


def _hints(body: Any, now: float, depth: int) -> Iterator[float]:
    if isinstance(body, Mapping):
        for key, value in body.items():
            hint = str(key).lower().replace("-", "_") in _HINTS
            if hint and (seconds := _seconds(value)) is not None:
                yield _from_epoch(seconds, now)
        body = list(body.values())
    if depth and isinstance(body, list):
        for part in body:
            yield from _hints(part, now, depth - 1)


def _from_epoch(figure: float, now: float) -> float:
    if figure < _EPOCH:
        return figure
    return max(0.0, (figure / 1000 if figure > 1000 * _EPOCH else figure) - now)


def _seconds(value: Any) -> float | None:
    """Parse a non-negative finite number, given as a number or as text such as ``34`` or ``34.2s``."""
    if isinstance(value, str):
        found = _DURATION.match(value)
        value = float(found[1]) if found else None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        return None
    return float(value)


def _until(date: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None


DEPTH = 5
"""Maximum length of a chain of causes."""
_DETAIL = 8_000
"""Maximum detail in characters: enough for every text of an error, bounded for a page of HTML."""

_TRANSPORT = ("httpx", "httpx2", "httpcore", "httpcore2", "anyio", "h11", "h2", "aiohttp")
_WRAPPERS = frozenset({"APIConnectionError", "APITimeoutError"})
"""An SDK's wrappers for errors of its transport; the cause is more specific."""
_LOCAL = frozenset({"LocalProtocolError", "InvalidURL", "UnsupportedProtocol"})
"""Errors of a request that could not be written: an illegal header or URL. Retrying would not help."""
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
"""Errors of a connection that was never made, so the provider cannot have seen the request."""

_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    "validationException": 400,
    "modelTimeoutException": 408,
    "modelStreamErrorException": 424,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}
"""The status that Anthropic and Amazon document for each error type; stream errors have no status."""


def failure_from(exc: BaseException, now: float, secrets: Iterable[str] = ()) -> Failure:
    """Classify an exception of an SDK, its transport, or the machine. ``now`` is wall time in seconds.

    Everything that looks like a key, and each of ``secrets``, is masked in all texts. The status is searched
    along the chain of causes; an SDK's ``RateLimitError`` without a status counts as 429."""
    secrets = tuple(secrets)
    chain = list(_causes(exc))
    for link in chain:
        if (status := _status(link)) is not None and 200 <= status < 300:
            return event_failure(_body(link), now, secrets, str(link))
        if status is not None and is_redirect(status):
            location = _headers(link).get("location")
            asked = str(getattr(getattr(link, "request", None), "url", ""))
            return redirect_failure(status, asked, location, secrets, type(link).__name__)
        if status is not None:
            return http_failure(
                status, _body(link), _headers(link), now, secrets, type(link).__name__, str(link)
            )
    if any(isinstance(link, UnicodeEncodeError) for link in chain):
        return _plain("encode", exc, chain, secrets, sent=False)
    if isinstance(exc, ImportError):
        return _plain("local", exc, chain, secrets, sent=False)
    for link in chain:
        if type(link).__name__ == "APIError" and (body := _body(link)) is not None:
            return body_failure(body, now, secrets, str(link))
    cause = next((link for link in chain if type(link).__name__ not in _WRAPPERS), exc)
    name = type(cause).__name__
    if name == "BadBody":
        return too_much(str(cause))
    if name in _LOCAL:
        return _plain("local", cause, chain, secrets, sent=False)
    if _is_decoding(cause):
        return _plain("transport", cause, chain, secrets, code="malformed_chunk")
    if any(_is_transport(link) for link in chain):
        return _plain("transport", cause, chain, secrets, sent=name not in _UNSENT)
    return _plain("local", cause, chain, secrets)


def http_failure(
    status: int,
    body: Any,
    headers: Mapping[str, str],
    now: float,
    secrets: Iterable[str] = (),
    exception: str = "",
    text: str = "",
) -> Failure:
    """Build the failure for an error status. ``body``: decoded JSON or raw text; ``text``: the exception's
    message."""
    return _build("http", body, headers, now, secrets, text or f"Error code: {status}", status, exception)


def body_failure(body: Any, now: float = 0.0, secrets: Iterable[str] = (), text: str = "") -> Failure:
    """Build the failure for an error in place of a reply, with status 200; its code and message are kept."""
    return _build("shape", body, {}, now, secrets, text, None, "ErrorInBody")


def event_failure(body: Any, now: float = 0.0, secrets: Iterable[str] = (), text: str = "") -> Failure:
    """Build the failure for an error inside a stream whose status was 200. If its type implies a status, that
    is used."""
    error = error_of(body)
    kind = error.get("type") if isinstance(error, Mapping) else None
    status = _STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None
    if status is None:
        return body_failure(body, now, secrets, text)
    return http_failure(status, body, {}, now, secrets, "ErrorInStream", text)


def shape_failure(what: str, body: Any = None, secrets: Iterable[str] = ()) -> Failure:
    """Build the failure for a status 200 whose body is not a reply. ``what`` is the reason; an excerpt of the
    body follows."""
    secrets = tuple(secrets)
    seen = one_line(body if isinstance(body, str) else "" if body is None else repr(body), 200)
    message = mask(f"{what}: {seen}" if seen else what, secrets)
    detail = _detail([what, *texts(body)], secrets)
    return Failure("shape", one_line(message), detail=detail, exception="InvalidResponse")


def _build(
    kind: Any, body: Any, headers: Mapping[str, str], now: float, secrets: Iterable[str], text: str,
    status: int | None, exception: str,
) -> Failure:  # fmt: skip
    secrets = tuple(secrets)
    known = codes(body)
    message = one_line(mask(sentence(body), secrets))
    detail = _detail([text, *texts(body), *known], secrets)
    return Failure(
        kind,
        message or (_phrase(status) if status is not None else one_line(mask(text, secrets))),
        status=status,
        code=mask(known[0], secrets)[:100] if known else "",
        exception=exception,
        detail=detail,
        retry_after=retry_after(headers, body, now),
    )


def _plain(
    kind: Any,
    cause: BaseException,
    chain: list[BaseException],
    secrets: tuple[str, ...],
    code: str = "",
    sent: bool = True,
) -> Failure:
    name = type(cause).__name__
    message = next((text for link in (cause, *chain) if (text := str(link).strip())), "")
    detail = _detail([f"{type(link).__name__}: {link}" for link in chain], secrets)
    return Failure(
        kind,
        one_line(mask(f"{name}: {message}" if message else name, secrets)),
        code=code,
        exception=name,
        detail=detail,
        sent=sent,
    )


def _detail(texts: Iterable[str], secrets: Iterable[str]) -> str:
    """Return all texts of an error, masked and lower-cased for word matching."""
    return clean(mask("\n".join(texts), secrets)).lower()[:_DETAIL]


def _causes(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(DEPTH):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _status(exc: BaseException) -> int | None:
    for owner in (exc, getattr(exc, "response", None)):
        value = getattr(owner, "status_code", None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 429 if type(exc).__name__ == "RateLimitError" else None


def _body(exc: BaseException) -> Any:
    return getattr(exc, "body", None)


def _headers(exc: BaseException) -> Mapping[str, str]:
    headers = getattr(getattr(exc, "response", None), "headers", None)
    return dict(headers.items()) if headers is not None else {}


def _is_decoding(exc: BaseException) -> bool:
    """Return whether a response could not be decoded. For a number with too many digits, Python's JSON parser
    raises a plain ``ValueError``."""
    too_long = type(exc) is ValueError and "integer string conversion" in str(exc)
    return too_long or isinstance(
        exc, (UnicodeDecodeError, RecursionError, JSONDecodeError, OverlyNestedError)
    )


def _is_transport(exc: BaseException) -> bool:
    kind = type(exc)
    if isinstance(exc, (OSError, EOFError)) or kind.__name__ in _WRAPPERS:
        return True
    return kind.__module__.partition(".")[0] in _TRANSPORT


def _phrase(status: int) -> str:
    return f"HTTP {status} {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else f"HTTP {status}"
