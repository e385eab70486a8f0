"""From whatever went wrong at a provider to a ``Failure``. Needs no SDK: exceptions are read by their
shape.
"""

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

# What an error body says: its sentence, its codes, all its texts. Pure functions over decoded JSON or raw
# text.


LIMIT = 500
"""Longest message in characters (ERR-27)."""
_DEPTH = 6
_TITLE = re.compile(r"<title[^<>]*>(.*?)(?:</title>|\Z)", re.IGNORECASE | re.DOTALL)
_HTML = re.compile(r"^\s*(<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_HIDDEN = re.compile(
    r"<script\b.*?(?:</script>|\Z)|<style\b.*?(?:</style>|\Z)|<[^<>]+>", re.IGNORECASE | re.DOTALL
)
MOST = 200_000
"""Characters that are looked at of one text; connections read less of an error."""


def one_line(text: str, limit: int = LIMIT) -> str:
    """Collapse white space, and a page of HTML to its title or visible text; cut to ``limit`` characters."""
    text = clean(text[:MOST])
    if _HTML.match(text):
        title = _TITLE.search(text)
        text = "HTML page: " + html.unescape(title[1] if title else _HIDDEN.sub(" ", text))
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_of(body: Any) -> Any:
    """The part of a body that tells of the error: the ``error`` field, or the body itself. Some vendors send
    a list."""
    if isinstance(body, list):
        body = next((part for part in body if isinstance(part, Mapping)), body)
    return body.get("error") or body if isinstance(body, Mapping) else body


def sentence(body: Any, depth: int = _DEPTH) -> str:
    """The sentence meant for people; of an aggregator's error also what the provider behind it said."""
    error = error_of(body)
    if isinstance(error, str):
        return _sentence_in(error, depth)
    if not isinstance(error, Mapping) or not depth:
        return ""
    values = (error.get(key) for key in ("message", "detail", "msg"))
    own = next((_sentence_in(value, depth) for value in values if isinstance(value, str) and value), "")
    upstream = _upstream(error)
    said = sentence(upstream, depth - 1) if upstream is not None else ""
    return f"{own}: {said}" if own and said and said != own else own or said


def codes(body: Any) -> list[str]:
    """Every structured code, best first: names before types before numbers, the outer error before nested
    ones."""
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
    """Every text anywhere in a body, JSON inside texts included; ``metadata`` marks an aggregator's
    wrapper."""
    found = list(_texts(body, _DEPTH))
    error = error_of(body)
    if isinstance(error, Mapping) and isinstance(error.get("metadata"), Mapping):
        found.append("metadata")
    return found


def _errors(body: Any) -> Iterator[Mapping[str, Any]]:
    """The error, then those nested in its message or metadata."""
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
    """The error of the provider behind an aggregator; its raw text may be JSON."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(raw, str):
        return _json_in(raw) or raw
    return raw


def _sentence_in(text: str, depth: int) -> str:
    """A message that holds JSON is replaced by the message inside."""
    inner = _json_in(text) if depth else None
    return (sentence(inner, depth - 1) if inner is not None else "") or text


def _json_in(text: str) -> Any:
    """The JSON object inside a text, or ``None``."""
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


# A redirect from a provider's address. No request to a model follows one.
#
# A request carries the key and the whole conversation, which are meant for the configured address. Each
# request is also an attempt that the table has counted, so the transport may not send an uncounted one.
# (Why: decision 54.)


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
    return f"set base_url to {_format_detail(base, secrets)} if that is right"


def _format_detail(address: str, secrets: Iterable[str]) -> str:
    return one_line(mask(address, secrets), _SHOWN) if address else "no web address"


# How long a provider asks to wait, from its headers or its error body.


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
"""Figures above this are points in time (in seconds; a thousand times that: milliseconds), not durations."""
LITTLE = 0.05
"""Fraction of a limit: the user is notified when less of it is left."""
_NO_NAME = ("x", "ratelimit", "remaining", "anthropic")


def retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    """Seconds from ``now``, never negative; 0 means at once, ``None`` that nothing was said.

    ``retry-after-ms`` wins over ``Retry-After`` (seconds or an HTTP date), and both over hints in the body:
    ``retry_after``, ``retryDelay`` (Google), ``resets_in_seconds``, ``resets_at``, ``X-RateLimit-Reset``
    (OpenRouter's metadata). Last of all the headers of limits are looked at: those that have nothing left say
    when they have again (``x-ratelimit-reset-tokens: 6m0s``, ``anthropic-ratelimit-requests-reset``)."""
    lower = {name.lower(): value for name, value in headers.items()}
    if (milliseconds := _seconds(lower.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = lower.get("retry-after")
    if value is not None:
        seconds = _seconds(value)
        return seconds if seconds is not None else _until(value, now)
    hinted = next(_hints(body, now, 5), None)
    return max(_resets(lower, now), default=0.0) or None if hinted is None else hinted


def little_left(headers: Mapping[str, str], now: float) -> str:
    """Say in a few words which limits of a provider have little left (``x-ratelimit-remaining-tokens``,
    ``anthropic-ratelimit-requests-remaining`` and the like), and when they have more again; nothing when
    there is enough, or nothing was said."""
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
    """When the exhausted limits reset; headers in lower case."""
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
    """A non-negative finite number, as a number or as text such as ``34`` or ``34.2s``."""
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
"""How far a chain of causes is followed."""
_DETAIL = 8_000
"""Longest detail in characters: enough for every text of an error, bounded for a page of HTML."""

_TRANSPORT = ("httpx", "httpx2", "httpcore", "httpcore2", "anyio", "h11", "h2", "aiohttp")
_WRAPPERS = frozenset({"APIConnectionError", "APITimeoutError"})
"""An SDK's own names for what its transport raised; the cause says more."""
_LOCAL = frozenset({"LocalProtocolError", "InvalidURL", "UnsupportedProtocol"})
"""A request that could not even be written: an illegal header or URL. Asking again would not help."""
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
"""The connection was never made, so the provider cannot have seen the request."""

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
"""The status that Anthropic and Amazon document for each type of error; an error inside a stream comes
without one."""


def failure_from(exc: BaseException, now: float, secrets: Iterable[str] = ()) -> Failure:
    """Say what an exception of an SDK, of its transport or of the machine means. ``now`` is wall time in
    seconds.

    Everything that looks like a key, and every one of ``secrets``, is masked in all texts. The status is
    looked for along the chain of causes; an SDK's ``RateLimitError`` counts as 429 without one."""
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
    """A response with an error status. ``body`` is decoded JSON or raw text; ``text`` what the exception
    said."""
    return _build("http", body, headers, now, secrets, text or f"Error code: {status}", status, exception)


def body_failure(body: Any, now: float = 0.0, secrets: Iterable[str] = (), text: str = "") -> Failure:
    """A 200 that carries an error instead of a reply; its code and message are kept."""
    return _build("shape", body, {}, now, secrets, text, None, "ErrorInBody")


def event_failure(body: Any, now: float = 0.0, secrets: Iterable[str] = (), text: str = "") -> Failure:
    """An error that arrived inside a stream whose status said 200. Where its type has a status of its own,
    that counts."""
    error = error_of(body)
    kind = error.get("type") if isinstance(error, Mapping) else None
    status = _STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None
    if status is None:
        return body_failure(body, now, secrets, text)
    return http_failure(status, body, {}, now, secrets, "ErrorInStream", text)


def shape_failure(what: str, body: Any = None, secrets: Iterable[str] = ()) -> Failure:
    """A 200 whose body is no reply. ``what`` says why; a glimpse of the body follows."""
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
    said = one_line(mask(sentence(body), secrets))
    detail = _detail([text, *texts(body), *known], secrets)
    return Failure(
        kind,
        said or (_phrase(status) if status is not None else one_line(mask(text, secrets))),
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
    said = next((text for link in (cause, *chain) if (text := str(link).strip())), "")
    detail = _detail([f"{type(link).__name__}: {link}" for link in chain], secrets)
    return Failure(
        kind,
        one_line(mask(f"{name}: {said}" if said else name, secrets)),
        code=code,
        exception=name,
        detail=detail,
        sent=sent,
    )


def _detail(texts: Iterable[str], secrets: Iterable[str]) -> str:
    """All texts of an error in small letters, as words are looked for in them."""
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
    """A response that cannot be decoded. Of a number of too many digits Python's JSON says so with a
    plain ``ValueError``."""
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
