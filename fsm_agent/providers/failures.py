"""From whatever went wrong at a provider to a ``Failure``. Needs no SDK: exceptions are read by their
shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.nesting import OverlyNestedError
from fsm_agent.providers import error_body
from fsm_agent.providers.redirects import is_redirect, redirect_failure
from fsm_agent.providers.reply_limits import too_much
from fsm_agent.providers.retry_after import retry_after
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import clean

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
            return redirect_failure(status, _asked(link), location, secrets, type(link).__name__)
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
    error = error_body.error_of(body)
    kind = error.get("type") if isinstance(error, Mapping) else None
    status = _STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None
    if status is None:
        return body_failure(body, now, secrets, text)
    return http_failure(status, body, {}, now, secrets, "ErrorInStream", text)


def shape_failure(what: str, body: Any = None, secrets: Iterable[str] = ()) -> Failure:
    """A 200 whose body is no reply. ``what`` says why; a glimpse of the body follows."""
    secrets = tuple(secrets)
    seen = error_body.one_line(body if isinstance(body, str) else "" if body is None else repr(body), 200)
    message = mask(f"{what}: {seen}" if seen else what, secrets)
    detail = _detail([what, *error_body.texts(body)], secrets)
    return Failure("shape", error_body.one_line(message), detail=detail, exception="InvalidResponse")


def _build(
    kind: Any, body: Any, headers: Mapping[str, str], now: float, secrets: Iterable[str], text: str,
    status: int | None, exception: str,
) -> Failure:  # fmt: skip
    secrets = tuple(secrets)
    known = error_body.codes(body)
    said = error_body.one_line(mask(error_body.sentence(body), secrets))
    detail = _detail([text, *error_body.texts(body), *known], secrets)
    return Failure(
        kind,
        said or (_phrase(status) if status is not None else error_body.one_line(mask(text, secrets))),
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
        error_body.one_line(mask(f"{name}: {said}" if said else name, secrets)),
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


def _asked(exc: BaseException) -> str:
    """The address of the request that was answered."""
    return str(getattr(getattr(exc, "request", None), "url", ""))


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
