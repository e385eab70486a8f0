"""Classifies errors with a table of (predicate, class) rows in priority order; the first match names the
class.

Order: wording that overrides the status, then status with wording, then the provider's structured code, then
wording alone, then TLS, then the kind of failure. Structured codes are preferred over English where both
exist. A provider's own rows (``ErrorRow`` of its profile) precede all of these."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from fsm_agent.conversation.effects import ErrorRow, Failure

Predicate = Callable[[Failure, "Size"], bool]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the request: bare errors on a very large request are overflows in disguise. ``thinks``: the
    model may be silent for long, so that a dropped connection says nothing about the size."""

    tokens: int = 0
    messages: int = 0
    window: int | None = None
    thinks: bool = False

    @property
    def large(self) -> bool:
        """Over 40 % of the window, or over 80,000 tokens or 80 messages in windows up to 256,000."""
        return self._over(0.4, 80_000, 80)

    @property
    def very_large(self) -> bool:
        """The same for dropped connections: 60 %, 120,000 tokens, 200 messages. Never below 30,000 tokens:
        servers with small windows report an overflow, so a lost connection is only that (a compaction would
        cost more than a second try)."""
        return self._over(0.6, 120_000, 200) and (self.tokens > 30_000 or self.messages > 200)

    def _over(self, share: float, tokens: int, messages: int) -> bool:
        if self.window and self.tokens > share * self.window:
            return True
        return (self.window or 0) <= 256_000 and (self.tokens > tokens or self.messages > messages)


@dataclass(frozen=True, slots=True)
class Detection:
    """One row: a class and its condition."""

    name: str
    when: Predicate
    why: str


# The language of the rows


def words(*alternatives: str) -> Predicate:
    """Accept an error that contains any of these texts (lower-cased)."""
    return lambda failure, _: any(text in failure.detail for text in alternatives)


def pattern(*alternatives: str) -> Predicate:
    """Accept an error in which any of these regular expressions matches (lower-cased). They are compiled at
    the first failure: most turns see none."""
    compiled = cache(partial(re.compile, "|".join(alternatives)))
    return lambda failure, _: bool(compiled().search(failure.detail))


def status(*codes: int) -> Predicate:
    """Accept a failure with one of these HTTP codes."""
    return lambda failure, _: status_of(failure) in codes


def status_of(failure: Failure) -> int | None:
    """Return the HTTP status; for an error inside a 200, the number in the error itself."""
    if failure.status is None and re.fullmatch(r"[45]\d\d", failure.code):
        return int(failure.code)
    return failure.status


def code(*codes: str) -> Predicate:
    """Match one of the error's structured codes or types; the detail lists those of nested errors, one per
    line."""
    return lambda failure, _: (
        failure.code.lower() in codes or not set(codes).isdisjoint(failure.detail.split("\n"))
    )


def kind(*kinds: str) -> Predicate:
    """Accept a failure of one of these kinds."""
    return lambda failure, _: failure.kind in kinds


def both(*parts: Predicate) -> Predicate:
    """Accept what all parts accept."""
    return lambda failure, size: all(part(failure, size) for part in parts)


def either(*parts: Predicate) -> Predicate:
    """Accept what at least one part accepts."""
    return lambda failure, size: any(part(failure, size) for part in parts)


def neither(*parts: Predicate) -> Predicate:
    """Accept what no part accepts."""
    return lambda failure, size: not any(part(failure, size) for part in parts)


def unnumbered(failure: Failure, _: Size) -> bool:
    """Accept a provider's words without a status. The text of a broken connection is not the provider's."""
    return status_of(failure) is None and failure.kind != "transport"


def server_side(failure: Failure, _: Size) -> bool:
    """Accept a failure with a code from 500."""
    return (status_of(failure) or 0) >= 500


def client_side(failure: Failure, _: Size) -> bool:
    """Accept a failure with a code from 400 to 499."""
    return 400 <= (status_of(failure) or 0) < 500


def redirected(failure: Failure, _: Size) -> bool:
    """Accept a failure with a code from 300 to 399."""
    return 300 <= (status_of(failure) or 0) < 400


def short(failure: Failure, _: Size) -> bool:
    """Accept a failure whose message has fewer than 30 characters."""
    return len(failure.message) < 30


def was_sent(failure: Failure, _: Size) -> bool:
    """Accept a failure of a request that left this machine."""
    return failure.sent


def on_large(_: Failure, size: Size) -> bool:
    """Accept any failure of a large request."""
    return size.large


def on_very_large(_: Failure, size: Size) -> bool:
    """Accept any failure of a very large request, unless the model may think for long."""
    return size.very_large and not size.thinks


# Words that several rows share

CLIENT = either(status(400, 404, 405, 406, 409, 411, 415, 422), unnumbered)
OVERFLOW_WORDS = pattern(
    r"context.?(length|size|window|limit)", r"maximum (context|prompt|input) ", r"token limit", r"too many tokens",
    r"(prompt|input|token length|conversation) (is )?too long", r"prompt exceeds", r"max(imum)? length exceeded",
    r"exceeds? (the )?(model'?s? |maximum )?limit", r"exceeds? the maximum (number of tokens|length|allowed)", r"max_model_len",
    r"slot context", r"n_keep.{0,20}n_ctx", r"range of input length", r"max_tokens must be at least 1, got -",
    r"reduce the length of (the|your) (messages|prompt|input)", r"上下文", r"超出.{0,12}长度", r"超过.{0,12}长度", r"最大长度",
    r"(输入|提示词?).{0,6}(过长|超长)",
)  # fmt: skip
CAP_WORDS = pattern(
    r"max_(completion_|output_)?tokens\W{1,3}(value\W{1,3})?(is |are )?(too large|too high|exceed|must be less|should be less)",
    r"max_(completion_|output_)?tokens\W{1,3}\d[\d_,]* > ", r"range of max_(completion_|output_)?tokens\W",
    r"max_(completion_|output_)?tokens\W{1,3}exceeds? (the )?(context|model|maximum)", r"available_tokens\W{1,3}\d",
    r"too large.{0,40}max_(completion_|output_)?tokens", r"max_(completion_|output_)?tokens\W{1,3}must be (at most|<=)",
    r"invalid max_(completion_|output_)?tokens value",
)  # fmt: skip
MODEL_WORDS = pattern(
    r"\bmodels?\b[^.\n]{0,80}\b(does not exist|not exist|not found|is not available|not supported by|decommissioned)",
    r"not a valid model", r"not found the model", r"no such model", r"\b(unknown|unsupported|invalid) model\b", r"no models loaded",
    r"no endpoints found", r"(^|\n)model: ",
)  # fmt: skip
IMAGE_REFUSED = pattern(
    r"\b(image|image_url|images|vision|multimodal)\b[^.\n]{0,40}(not (be )?(support|allowed|enabled)|unsupported|only supported)",
    r"(not support|unsupported|cannot read|cannot process|could not process|does not accept)[^.\n]{0,40}\b(image|images|image_url|vision)\b",
    r"no endpoints found that support image", r"not a multimodal model", r"unknown variant `image_url`", r"at most 0 image",
    r"missing data required for image input",
)  # fmt: skip


def refuses(names: str) -> Predicate:
    """Accept a refusal of parts with one of ``names`` by the model or its server."""
    return pattern(
        rf"\b({names})\b[^.\n]{{0,30}}(not supported|not allowed|not enabled|unsupported|only supported)",
        rf"(not support|unsupported|does not accept)( content| input| type|:| \W)*\W*({names})\b",
        rf"no endpoints found that support (input )?({names})\b", rf"unknown variant `({names})`", rf"at most 0 ({names})\b",
    )  # fmt: skip


ANSWER_SCHEMA = pattern(
    r"response[_ ]?format", r"json[_ ]?schema\b", r"json mode", r"text\.format", r"output_config\.format", r"output_format",
    r"structured[_ ]outputs?", r"response[_ ]?(mime[_ ]?type|schema)",
)  # fmt: skip
NOTHING_SAID = pattern(
    r"(returned|produced|gave|received|sent) an? empty (response|message|completion|reply)", r"empty response from",
    r"no content was (returned|generated)",
)  # fmt: skip
TRANSIENT_HINT = words("try again", "resets", "retry", "wait", "window", "per minute", "per hour")
NO_FREE_TIER = pattern(r"free_tier[^\n]{0,80}limit: 0\b", r"free tier [^.\n]{0,40}exhausted")
NO_FUNDS = code(
    "insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "billing_error", "payment_required",
    "insufficient_credits", "insufficient_balance", "balance_depleted", "exceeded_current_quota_error", "arrearage",
)  # fmt: skip
BAD_KEY = words(
    "invalid api key",
    "incorrect api key",
    "api key not valid",
    "invalid_api_key",
    "api_key_invalid",
    "api key expired",
)
TLS = words("[ssl", "tlsv1", "tls alert", "bad record mac", "ssl alert", "ssl_error", "handshake failure")

# fmt: off
DETECTIONS: tuple[Detection, ...] = (
    Detection("local_bug", kind("local"), "our own bug, never a retry"),
    Detection("unicode", kind("encode"), "the request could not be written"),
    Detection("attempt_cap", kind("capped"), "turn and children have sent all that they may"),
    Detection("stale_breaker", kind("breaker"), "too many stale attempts in a row"),
    Detection("content_policy", either(
        code("content_filter", "content_policy_violation", "responsibleaipolicyviolation", "new_sensitive", "data_inspection_failed",
             "datainspectionfailed", "invalid_prompt"),
        words("content_filter", "usage policies", "violating our usage policy", "request was flagged", "input was flagged",
              "cybersecurity risk", "safety system", "responsibleaipolicyviolation", "new_sensitive", "content policy",
              "content exists risk", "considered high risk", "inappropriate content")), "a refusal, whatever the status"),
    Detection("thinking_signature", both(CLIENT, either(
        both(words("thinking"), words("signature", "cannot be modified", "must remain as they were")),
        both(words("thought signature", "thought_signature"), words("corrupted", "not valid", "invalid")))),
        "signed reasoning was rejected"),
    Detection("invalid_encrypted_content", either(code("invalid_encrypted_content"), both(CLIENT, words("encrypted content"),
              words("could not be", "decrypt"))), "encrypted reasoning was rejected"),
    Detection("long_context_tier", both(status(429), words("extra usage"), words("long context")), "tier without long context"),
    Detection("long_context_beta_forbidden", both(CLIENT, words("long context beta"), words("not yet available")), "beta header"),
    Detection("grammar_pattern", either(words("error parsing grammar", "failed to parse grammar", "json-schema-to-grammar"),
              both(words("unable to generate parser"), words("template"))), "schema cannot become a grammar"),
    Detection("streaming_unsupported", both(CLIENT, pattern(r"\bstream(ing)?\b.{0,60}(not supported|unsupported|not available)",
              r"(not support|unsupported|does not support).{0,40}\bstream(ing)?\b", r"must be verified to stream",
              r"cannot use tools with stream")), "asks for whole replies"),
    Detection("server_error", NOTHING_SAID, "an advisory that may speak of lengths, not an overflow"),
    Detection("image_too_large", both(either(CLIENT, status(413)), pattern(r"image[^.\n]{0,60}(exceed|too large|too big)",
              r"dimensions exceed")), "shrink it; before overflow"),
    Detection("list_tool_content_unsupported", both(CLIENT, either(words("text is not set", "sequence, expected a string",
              "only allowed for messages with role 'user'"),
              both(words("tool"), pattern(r"content must be a string", r"expected (a )?string,? (but )?got (a |an )?(list|array)",
              r"input should be a valid string")))), "flatten tool content; before overflow"),
    Detection("images_rejected", both(either(CLIENT, status(500)), IMAGE_REFUSED), "no vision"),
    Detection("audio_rejected", both(either(CLIENT, status(500)), refuses("audio|input_audio")), "no audio"),
    Detection("files_rejected", both(CLIENT, refuses("pdfs?|documents?|input_file|file (input|content|part)s?|file")), "no files"),
    Detection("output_schema_rejected", both(CLIENT, either(code("invalid_json_schema"), pattern(
              r"invalid schema for (response_format|text\.format|output)", r"schema[^.\n]{0,40}(too complex|too many|too deep)"))),
              "this schema of the answer, not schemas"),
    Detection("output_schema_unsupported", both(CLIENT, ANSWER_SCHEMA), "no schema of the answer; before a bad parameter"),
    Detection("format_error", both(neither(server_side), either(code("unsupported_parameter", "unknown_parameter"), pattern(
              r"(unsupported|unknown) parameter", r"unrecognized (request )?argument", r"extra inputs are not permitted"))),
              "before overflow and output cap: it may name max_tokens"),
    Detection("output_cap", both(CLIENT, CAP_WORDS), "output cap too large for this model or prompt; before overflow"),
    Detection("payload_too_large", either(status(413), words("request entity too large", "payload too large", "error code: 413"),
              both(words("request too large"), pattern(r"\btpm\b", r"tokens per min"))), "no wait makes this request fit"),
    Detection("context_overflow", both(neither(status(401, 402, 403, 429), kind("transport"), words("tokens per min")), either(
              code("context_length_exceeded", "max_tokens_exceeded", "exceed_context_size_error"), OVERFLOW_WORDS)),
              "too long; before rate limit in a 400"),
    Detection("provider_policy_blocked", both(either(status(400, 403, 404), unnumbered), words("data policy",
              "guardrail restrictions", "settings/privacy")), "the aggregator's policy; before the missing model"),
    Detection("model_not_found", either(code("model_not_found", "model_not_available", "model_decommissioned", "invalid_model"),
              both(either(status(400, 404), unnumbered), MODEL_WORDS)), "no such model"),
    Detection("auth_permanent", both(either(status(400, 401, 403), unnumbered), either(code("token_invalidated", "token_revoked",
              "refresh_token_reused"), words("invalid_grant", "token has been revoked", "token was revoked", "token invalidated",
              "token has been invalidated", "refresh token was already used", "refresh token has already been used"))),
              "this credential is dead"),
    Detection("upstream_rate_limit", both(status(429), words("provider returned error"), words("metadata")),
              "the aggregator's provider is limited, or its account there; not ours"),
    Detection("rate_limit", both(either(status(402, 429), unnumbered), words("usage limit", "quota"), TRANSIENT_HINT,
              neither(NO_FUNDS, NO_FREE_TIER)), "a quota that resets by itself; before billing"),
    Detection("billing", either(status(402), NO_FUNDS, both(either(status(400, 403, 404, 429), unnumbered), either(NO_FREE_TIER,
              words("insufficient credits", "insufficient balance", "insufficient_quota", "credit balance", "payment required",
              "billing hard limit", "exceeded your current quota", "exceeded current quota", "out of funds", "out of extra usage",
              "out of credits", "have any credits", "spending limit", "key limit exceeded", "specified api usage limits",
              "in good standing", "余额不足")))), "nothing left to pay with"),
    Detection("auth", either(status(401, 403), both(either(status(400), unnumbered), BAD_KEY), both(unnumbered, words(
              "authentication", "unauthorized", "forbidden", "invalid token", "token expired", "expired token", "access denied",
              "no active subscription"))), "who are you"),
    Detection("overloaded", either(status(503, 529), code("overloaded_error", "engine_overloaded_error", "overloaded"), both(
              either(status(429, 498), unnumbered), words("overloaded", "at capacity", "over capacity", "capacity exceeded",
              "high demand", "high traffic"))), "before rate limit: same key, wait"),
    Detection("rate_limit", either(status(429), code("resource_exhausted", "throttled", "throttling", "rate_limit_exceeded",
              "rate_limit_error", "rate_limit_reached_error"), both(unnumbered, words("rate limit", "too many requests", "throttl",
              "per minute", "per day", "try again in", "please retry after"))), "slow down"),
    Detection("timeout", either(status(408), both(unnumbered, words("timed out", "deadline exceeded"))), "no answer in time"),
    Detection("ssl_cert", both(kind("transport"), words("certificate verify failed", "self-signed certificate",
              "self signed certificate", "unable to get local issuer", "certificate has expired", "hostname mismatch")),
              "before transient TLS"),
    Detection("timeout", both(kind("transport"), TLS), "a TLS alert: the connection broke, whatever it says"),
    Detection("context_overflow", both(kind("transport"), was_sent, on_very_large, words("disconnect", "without sending", "closed",
              "reset")), "dropped on a very large request"),
    Detection("stale", kind("stale"), "killed by the watchdog"),
    Detection("timeout", kind("transport"), "no or a broken answer"),
    Detection("invalid_response", kind("shape"), "200 without a reply in it"),
    Detection("format_error", both(status(500, 502), words("invalid_request_error", "unknown parameter", "unsupported parameter",
              "unrecognized request argument")), "validation behind a 500"),
    Detection("format_error", redirected, "a redirect: not followed, and asking again brings it again"),
    Detection("server_error", server_side, "their bug"),
    Detection("context_overflow", both(status(400), short, on_large), "a bare 400 on a large request"),
    Detection("no_such_path", both(status(404), neither(words("model"))), "a bare 404: the address is wrong, now and later"),
    Detection("format_error", client_side, "bad request"),
    Detection("unknown", lambda _failure, _size: True, "everything else"),
)
# fmt: on


def detection_of(row: ErrorRow) -> Detection:
    """Convert a provider's own row: every part that it names must match."""
    parts = [
        *([status(*row.statuses)] if row.statuses else ()),
        *([code(*row.codes)] if row.codes else ()),
        *([words(*row.words)] if row.words else ()),
    ]
    return Detection(row.name, both(*parts), "the provider's own")


def detect(failure: Failure, size: Size | None = None, extra: tuple[ErrorRow, ...] = ()) -> Detection:
    """Return the first row that matches; ``extra`` rows of a provider's profile come first."""
    own = (detection_of(row) for row in extra)
    return next(row for row in (*own, *DETECTIONS) if row.when(failure, size or Size()))
