"""Which class of error is it? A table of (predicate, class) rows in priority order; the first that matches names it.

Order (behaviour catalogue 5.2): wording that overrides the status, then status with wording, then the provider's structured
code, then wording alone, then TLS, then the kind of failure. Structured codes are preferred over English where both exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fsm_agent.requests import Failure

Predicate = Callable[[Failure, "Size"], bool]


@dataclass(frozen=True, slots=True)
class Size:
    """How large the request was: bare errors on a very large request are overflows in disguise."""

    tokens: int = 0
    messages: int = 0
    window: int | None = None

    @property
    def large(self) -> bool:
        """Over 40 % of the window, or over 80,000 tokens or 80 messages in windows up to 256,000."""
        if self.window and self.tokens > 0.4 * self.window:
            return True
        return (self.window or 0) <= 256_000 and (self.tokens > 80_000 or self.messages > 80)

    @property
    def very_large(self) -> bool:
        """The same for dropped connections: 60 %, 120,000 tokens, 200 messages."""
        if self.window and self.tokens > 0.6 * self.window:
            return True
        return (self.window or 0) <= 256_000 and (self.tokens > 120_000 or self.messages > 200)


@dataclass(frozen=True, slots=True)
class Detection:
    """One row: the class it names, and when."""

    name: str
    when: Predicate
    why: str


def words(*alternatives: str) -> Predicate:
    """Any of these texts occurs in the error (lower-cased)."""
    return lambda failure, _: any(text in failure.detail for text in alternatives)


def pattern(expression: str) -> Predicate:
    compiled = re.compile(expression)
    return lambda failure, _: bool(compiled.search(failure.detail))


def status(*codes: int) -> Predicate:
    return lambda failure, _: failure.status in codes


def code(*codes: str) -> Predicate:
    return lambda failure, _: failure.code.lower() in codes


def kind(*kinds: str) -> Predicate:
    return lambda failure, _: failure.kind in kinds


def both(*parts: Predicate) -> Predicate:
    return lambda failure, size: all(part(failure, size) for part in parts)


def either(*parts: Predicate) -> Predicate:
    return lambda failure, size: any(part(failure, size) for part in parts)


def neither(*parts: Predicate) -> Predicate:
    return lambda failure, size: not any(part(failure, size) for part in parts)


def no_status(failure: Failure, _: Size) -> bool:
    return failure.status is None


def server_side(failure: Failure, _: Size) -> bool:
    return failure.status is not None and failure.status >= 500


def short(failure: Failure, _: Size) -> bool:
    return len(failure.message) < 30


def on_large(_: Failure, size: Size) -> bool:
    return size.large


def on_very_large(_: Failure, size: Size) -> bool:
    return size.very_large


CLIENT = status(400, 404, 405, 406, 409, 411, 415, 422)
OVERFLOW_WORDS = pattern(
    r"context.?(length|size|window)|maximum context|token limit|too many tokens|prompt (is )?too long|exceeds? (the )?"
    r"(context |token |model'?s? |maximum )?limit|max_model_len|slot context|input (is )?too long|exceed_context_size"
    r"|上下文|超出.*长度|最大长度"
)
TRANSIENT_HINT = words("try again", "resets", "retry", "wait", "window", "per minute", "per hour")

# fmt: off
DETECTIONS: tuple[Detection, ...] = (
    Detection("local_bug", kind("local"), "our own bug, never a retry"),
    Detection("unicode", kind("encode"), "the request could not be written"),
    Detection("stale_breaker", kind("breaker"), "too many stale attempts in a row"),
    Detection("content_policy", either(
        code("content_filter", "content_policy_violation", "responsibleaipolicyviolation", "new_sensitive"),
        words("content_filter", "usage policies", "usage policy violation", "request was flagged", "cybersecurity risk",
              "safety system", "responsibleaipolicyviolation", "new_sensitive", "content policy")), "a refusal, whatever the status"),
    Detection("thinking_signature", both(words("thinking"), words("signature", "cannot be modified",
              "must remain as they were")), "signed reasoning was rejected"),
    Detection("invalid_encrypted_content", either(code("invalid_encrypted_content"), both(words("encrypted content"),
              words("could not be", "decrypt"))), "encrypted reasoning was rejected"),
    Detection("long_context_tier", both(status(429), words("extra usage"), words("long context")), "tier without long context"),
    Detection("long_context_beta_forbidden", both(words("long context beta"), words("not yet available")), "beta header refused"),
    Detection("grammar_pattern", either(words("error parsing grammar", "json-schema-to-grammar"),
              both(words("unable to generate parser"), words("template"))), "schema cannot become a grammar"),
    Detection("streaming_unsupported", both(CLIENT, pattern(r"stream(ing)?\b.{0,60}(not supported|unsupported|not available)"
              r"|(not support|unsupported|does not support).{0,40}stream")), "asks for whole replies"),
    Detection("server_error", words("returned an empty response", "empty response from"), "advisory, not an overflow"),
    Detection("image_too_large", both(words("image"), words("exceeds", "too large", "dimensions exceed")), "shrink it"),
    Detection("list_tool_content_unsupported", either(words("text is not set"), both(words("tool"), words(
              "content must be a string", "expected string, got list", "expected string, got array"))), "flatten tool content"),
    Detection("images_rejected", both(CLIENT, words("image"), words("not support", "unsupported", "invalid", "cannot")), "no vision"),
    Detection("output_cap", both(CLIENT, words("max_tokens", "max_completion_tokens", "max_output_tokens"),
              words("too large", "exceed", "at most", "greater than", "maximum", "less than or equal"),
              neither(words("unsupported parameter", "unknown parameter", "unrecognized", "not supported", "unsupported_parameter")),
              neither(OVERFLOW_WORDS)), "output cap too large for this model or prompt"),
    Detection("format_error", both(neither(server_side), either(code("unsupported_parameter", "unknown_parameter"),
              words("unsupported parameter", "unknown parameter", "unrecognized argument",
              "unrecognized request argument"))), "before overflow: it may name max_tokens"),
    Detection("payload_too_large", either(status(413), words("request entity too large", "payload too large", "error code: 413")),
              "too many bytes"),
    Detection("context_overflow", both(neither(status(401, 402, 403, 429)), either(code("context_length_exceeded",
              "max_tokens_exceeded", "exceed_context_size_error"), OVERFLOW_WORDS)), "too long; before rate limit in a 400"),
    Detection("provider_policy_blocked", both(status(400, 403, 404), words("data policy", "guardrail restrictions",
              "privacy settings", "no endpoints found matching your data")), "the aggregator's policy"),
    Detection("model_not_found", both(status(400, 404), either(code("model_not_found", "model_not_available"), words(
              "not a valid model", "model not found", "no such model", "unknown model", "unsupported model", "does not exist",
              "no endpoints support tool use", "no endpoints found"))), "no such model"),
    Detection("auth_permanent", words("invalid_grant", "token has been revoked", "token was revoked", "token invalidated",
              "refresh token was already used"), "this credential is dead"),
    Detection("rate_limit", both(either(status(402), no_status), words("usage limit", "quota"), TRANSIENT_HINT), "resets by itself"),
    Detection("billing", either(status(402), code("insufficient_quota", "billing_not_active", "payment_required",
              "insufficient_credits", "balance_depleted"), both(either(status(400, 403, 404, 429), no_status), words(
              "insufficient credits", "insufficient balance", "insufficient_quota", "credit balance", "payment required",
              "billing hard limit", "exceeded your current quota", "out of funds", "out of extra usage", "spending limit"))),
              "nothing left to pay with"),
    Detection("auth", either(status(401, 403), both(no_status, words("invalid api key", "incorrect api key", "authentication",
              "unauthorized", "forbidden", "invalid token", "token expired", "access denied"))), "who are you"),
    Detection("upstream_rate_limit", both(status(429), words("provider returned error")), "the aggregator's provider is limited"),
    Detection("overloaded", either(status(503, 529), code("overloaded_error", "overloaded"), both(either(status(429), no_status),
              words("overloaded", "at capacity", "over capacity", "high demand"))), "before rate limit: same key, wait"),
    Detection("rate_limit", either(status(429), code("resource_exhausted", "throttled", "rate_limit_exceeded", "rate_limit_error"),
              both(no_status, words("rate limit", "too many requests", "throttl", "try again in", "please retry after"))), "slow down"),
    Detection("ssl_cert", words("certificate verify failed", "self-signed certificate", "self signed certificate",
              "unable to get local issuer", "certificate has expired", "hostname mismatch"), "before transient TLS"),
    Detection("invalid_response", kind("shape"), "200 without a reply in it"),
    Detection("stale", kind("stale"), "killed by the watchdog"),
    Detection("timeout", either(status(408), both(no_status, words("timed out", "deadline exceeded"))), "no answer in time"),
    Detection("context_overflow", both(kind("transport"), on_very_large, words("disconnect", "without sending", "closed", "reset")),
              "dropped on a very large request"),
    Detection("timeout", kind("transport"), "no or a broken answer"),
    Detection("format_error", both(server_side, words("invalid_request_error", "unknown parameter", "unsupported parameter")),
              "validation behind a 500"),
    Detection("server_error", server_side, "their bug"),
    Detection("context_overflow", both(status(400), short, on_large), "a bare 400 on a large request"),
    Detection("unknown", both(status(404), neither(words("model"))), "a bare 404 may be a restart"),
    Detection("format_error", lambda failure, _: failure.status is not None and 400 <= failure.status < 500, "bad request"),
    Detection("unknown", lambda _failure, _size: True, "everything else"),
)
# fmt: on


def detect(failure: Failure, size: Size | None = None, extra: tuple[Detection, ...] = ()) -> Detection:
    """The first row that matches; ``extra`` rows of a provider's profile come first."""
    return next(row for row in (*extra, *DETECTIONS) if row.when(failure, size or Size()))
