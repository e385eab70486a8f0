"""From exceptions, statuses and bodies to failures: one masked line, a code, a wish to wait, texts for matching."""

from __future__ import annotations

import itertools
import json
import ssl
from typing import Any

import pytest

from fsm_agent.providers.failures import (
    body_failure,
    codes,
    describe_low_limits,
    failure_from,
    http_failure,
    one_line,
    retry_after,
    sentence,
    shape_failure,
    texts,
)
from fsm_agent.support.redaction import mask

NOW = 1_700_000_000.0
META = {
    "provider_name": "Acme",
    "raw": '{"error": {"message": "Slow down, please", "code": "rate_limit_exceeded"}}',
    "headers": {"X-RateLimit-Reset": "1700000030000"},
}
AGGREGATED = {"error": {"code": 429, "message": "Provider returned error", "metadata": META}}


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class StatusError(Exception):
    """Shaped like an SDK's error."""

    def __init__(self, message: str, response: Response | None = None, body: Any = None) -> None:
        super().__init__(message)
        self.response = response
        self.body = body


class RateLimitError(Exception):
    pass


def chained(*links: Exception) -> Exception:
    """An exception whose causes are the following ones."""
    for outer, inner in itertools.pairwise(links):
        outer.__cause__ = inner
    return links[0]


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (StatusError("x", Response(503)), "http", 503),
        (chained(RuntimeError("outer"), ValueError("mid"), StatusError("x", Response(401))), "http", 401),
        (RateLimitError("slow"), "http", 429),
        (chained(RuntimeError("outer"), RateLimitError("slow")), "http", 429),
        (ConnectionResetError("peer"), "transport", None), (TimeoutError(), "transport", None),
        (ssl.SSLCertVerificationError("certificate verify failed"), "transport", None),
        (chained(RuntimeError("wrapped"), BrokenPipeError("pipe")), "transport", None),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "transport", None),
        (UnicodeEncodeError("ascii", "ü", 0, 1, "ordinal not in range"), "encode", None),
        (ValueError("ours"), "local", None), (TypeError("ours"), "local", None),
    ],
)  # fmt: skip
def test_the_kind_of_a_failure(error: Exception, kind: str, status: int | None) -> None:
    failure = failure_from(error, NOW)
    assert (failure.kind, failure.status) == (kind, status)
    assert failure.message
    assert failure.exception


def test_causes_are_followed_to_depth_five() -> None:
    links, last = [RuntimeError(str(n)) for n in range(4)], StatusError("x", Response(500))
    assert failure_from(chained(*links, last), NOW).status == 500
    assert failure_from(chained(*links, RuntimeError("4"), last), NOW).status is None


def test_all_texts_of_the_chain_are_there_for_matching() -> None:
    failure = failure_from(chained(RuntimeError("Wrapped"), OSError("[SSL: BAD_RECORD_MAC]")), NOW)
    assert "[ssl: bad_record_mac]" in failure.detail
    assert failure.detail == failure.detail.lower()


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}},
         "too long", "context_length_exceeded"),
        ({"error": {"message": "busy", "type": "overloaded_error", "code": None}}, "busy", "overloaded_error"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "Busy", "overloaded_error"),
        ([{"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}], "quota", "RESOURCE_EXHAUSTED"),
        ({"detail": "no such route"}, "no such route", ""),
        ({"error": "plain"}, "plain", ""),
        ({"message": "no error field", "code": "e1"}, "no error field", "e1"),
        ({"error": {"message": 'Error code: 400 - {"error": {"message": "inner", "code": "insufficient_quota"}}'}},
         "inner", "insufficient_quota"),
        (AGGREGATED, "Provider returned error: Slow down, please", "rate_limit_exceeded"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": "plain words"}}},
         "Provider returned error: plain words", ""),
        ("just text\nin two lines", "just text in two lines", ""),
        ({"error": {"code": 402, "message": "pay"}}, "pay", "402"),
        (None, "HTTP 400 Bad Request", ""),
        ("", "HTTP 400 Bad Request", ""),
        ({}, "HTTP 400 Bad Request", ""),
    ],
)  # fmt: skip
def test_message_and_code_of_a_body(body: Any, message: str, code: str) -> None:
    failure = http_failure(400, body, {}, NOW)
    assert (failure.message, failure.code) == (message, code)


def test_an_aggregators_error_shows_both_and_when_to_come_back() -> None:
    failure = http_failure(429, AGGREGATED, {}, NOW)
    for part in ("provider returned error", "slow down, please", "rate_limit_exceeded", "metadata", "acme"):
        assert part in failure.detail
    assert failure.retry_after == 30


@pytest.mark.behaviour("ERR-27")
def test_a_page_of_html_is_one_line() -> None:
    head = "<!DOCTYPE html><html><head><title>502\n Bad Gateway</title></head><body>"
    page = head + "<p>x</p>" * 5000 + "</body></html>"
    failure = http_failure(502, page, {}, NOW)
    assert failure.message == "HTML page: 502 Bad Gateway"
    assert len(failure.detail) < 8_001
    assert one_line("<html><style>p {}</style><body>Only <b>this</b></body></html>") == "HTML page: Only this"
    assert len(one_line("word " * 1000)) == 500


@pytest.mark.parametrize(
    "wrap", [lambda v: {"error": {"message": v}}, lambda v: {"detail": [{"msg": v}]}, lambda v: v]
)
def test_keys_never_show(wrap: Any) -> None:
    key = "Incorrect API key provided: sk-proj-abc123def456."
    text = f"{key} Authorization: Bearer tok.en-123456, key=hunter2-hunter2"
    failure = http_failure(401, wrap(text), {}, NOW, secrets=("hunter2-hunter2",))
    seen = failure.message + failure.detail + failure.code
    for secret in ("abc123def456", "tok.en-123456", "hunter2"):
        assert secret not in seen.lower()


def test_secrets_are_masked_wherever_they_are_but_not_placeholders() -> None:
    assert mask("x my-own-secret y my-own-secret", ["my-own-secret"]) == "x *** y ***"
    assert mask("none of it", ["none", ""]) == "none of it"


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "3"}, None, 3),
        ({"retry-after": "0"}, None, 0),
        ({"Retry-After": "1.5"}, None, 1.5),
        ({"Retry-After": "-4"}, None, None),
        ({"Retry-After": "soon"}, None, None),
        ({"Retry-After": "nan"}, None, None),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}, None, 30),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:00 GMT"}, None, 0),
        ({"Retry-After": "9", "Retry-After-Ms": "1500"}, None, 1.5),
        ({"Retry-After": "9"}, {"error": {"retry_after": 1}}, 9),
        ({}, {"error": {"retry_after": 12}}, 12),
        ({}, {"error": {"resets_in_seconds": 60}}, 60),
        ({}, {"error": {"resets_at": NOW + 90}}, 90),
        ({}, {"error": {"resets_at": NOW - 90}}, 0),
        ({}, [{"error": {"details": [{"@type": "x"}, {"retryDelay": "34s"}]}}], 34),
        ({}, {"error": {"retry_after": True, "message": "in 5 s"}}, None),
        ({}, None, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, None, 360),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, None, 0.12),
        ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "6m0s"}, None, None),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:50Z",
          "anthropic-ratelimit-requests-remaining": "9", "anthropic-ratelimit-requests-reset": "2023-11-14T23:13:50Z"},
         None, 30),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW + 45) * 1000)}, None, 45),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "tomorrow"}, None, None),
        ({"X-RateLimit-Remaining": "0"}, None, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"}, {"retry_after": 4}, 4),
    ],
)  # fmt: skip
def test_how_long_a_provider_asks_to_wait(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    assert retry_after(headers, body, NOW) == seconds


def test_a_200_that_is_no_reply() -> None:
    failure = body_failure({"error": {"message": "later", "code": "overloaded", "retry_after": 4}}, NOW)
    assert (failure.kind, failure.status) == ("shape", None)
    assert (failure.code, failure.retry_after) == ("overloaded", 4)
    failure = shape_failure("no choices", {"message": "Rate limit reached for sk-abcdef123456"})
    assert (failure.kind, failure.exception) == ("shape", "InvalidResponse")
    assert "rate limit reached" in failure.detail
    assert "abcdef123456" not in failure.message + failure.detail


def test_hostile_bodies_end() -> None:
    nested: Any = "leaf"
    for _ in range(200):
        words = json.dumps(nested) if len(str(nested)) < 2000 else "deep"
        nested = {"error": {"message": words, "metadata": {"raw": nested}}}
    assert isinstance(sentence(nested), str)
    assert isinstance(codes(nested), list)
    assert len(texts(nested)) < 1000


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, ""),
        ({"x-ratelimit-remaining-requests": "30", "x-ratelimit-limit-requests": "500"}, ""),
        ({"x-ratelimit-remaining-requests": "3"}, ""),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-limit-requests": "0"}, ""),
        ({"x-ratelimit-remaining-requests": "few", "x-ratelimit-limit-requests": "500"}, ""),
        ({"x-remaining-requests": "3", "x-limit-requests": "500"}, ""),
        ({"X-RateLimit-Remaining": "3", "X-RateLimit-Limit": "500"}, "3 of 500 requests left"),
        ({"x-ratelimit-remaining-tokens": "1000", "x-ratelimit-limit-tokens": "30000",
          "x-ratelimit-reset-tokens": "1m2.5s"}, "1,000 of 30,000 tokens left for 63 s"),
        ({"anthropic-ratelimit-input-tokens-remaining": "0", "anthropic-ratelimit-input-tokens-limit": "50000",
          "anthropic-ratelimit-input-tokens-reset": "2001-09-09T01:47:00Z",
          "anthropic-ratelimit-requests-remaining": "49", "anthropic-ratelimit-requests-limit": "50"},
         "0 of 50,000 input tokens left for 20 s"),
    ],
)  # fmt: skip
def test_what_little_is_left_of_a_limit_is_said(headers: dict[str, str], said: str) -> None:
    assert describe_low_limits(headers, 1_000_000_000.0) == said
