"""Every row of the detection table, each by wordings that providers really use, and the ordering traps among
the rows."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from fsm_agent.conversation.effects import ErrorRow, Failure
from fsm_agent.providers.choose import choose
from fsm_agent.providers.failures import body_failure, failure_from, http_failure, shape_failure
from fsm_agent_states.logic.detect import DETECTIONS, Size, detect
from fsm_agent_states.logic.facts import output_cap_from, prompt_tokens_from, window_from


def http(
    status: int, message: Any = "", code: Any = None, kind: str | None = None, /, **more: Any
) -> Failure:
    """An error response in the form that most providers use; a dict or an HTML page is the whole body."""
    body = message
    if isinstance(message, str) and not message.startswith("<"):
        body = {"error": {"message": message, "type": kind, "code": code, **more}}
    return http_failure(status, body, {}, 0.0, exception="APIStatusError", text=f"Error code: {status}")


def inside(message: str, code: Any = None, kind: str | None = None) -> Failure:
    """An error inside a 200."""
    return body_failure({"error": {"message": message, "code": code, "type": kind}})


def broken(message: str, exception: type[Exception] = ConnectionResetError) -> Failure:
    return failure_from(exception(message), 0.0)


def aggregated(status: int, raw: str) -> Failure:
    metadata = {"raw": raw, "provider_name": "Acme"}
    return http(
        status, {"error": {"message": "Provider returned error", "code": status, "metadata": metadata}}
    )


LARGE = Size(tokens=90_000, messages=30, window=200_000)
VERY_LARGE = Size(tokens=130_000, messages=30, window=200_000)
REQUEST_TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested"
    " 342389. The input or output tokens must be reduced in order to run successfully."
)
GEMINI_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. * Quota exceeded for"
    " metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: {limit}, model:"
    " gemini-2.5-pro\nPlease retry in 20.04466179s."
)

# One entry a row, by its reason: failures, or pairs of a failure and the size of the request.
EXAMPLES: dict[str, list[Failure | tuple[Failure, Size]]] = {
    "our own bug, never a retry": [failure_from(TypeError("'NoneType' object is not iterable"), 0.0)],
    "the request could not be written": [failure_from(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "not allowed"), 0.0)],
    "turn and children have sent all that they may": [Failure("capped", "turn and children have sent 3 requests", sent=False)],
    "too many stale attempts in a row": [Failure("breaker", "5 requests in a row went silent", sent=False)],
    "a refusal, whatever the status": [
        Failure("http", "the model declined: no", code="content_filter"),
        http(400, "Your request was rejected as a result of our safety system.", "content_policy_violation"),
        http(400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "invalid_prompt"),
        http(400, {"error": {"message": "The response was filtered", "code": "content_filter",
                             "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
        http(403, "openai/gpt-5 requires moderation. Your input was flagged for violence."),
        http(400, "Content Exists Risk", "invalid_request_error"),
        http(400, "The request was rejected because it was considered high risk", "content_filter"),
        http(400, "Input data may contain inappropriate content.", "data_inspection_failed"),
        http(429, "This request was flagged for possible cybersecurity risk."),
        http(500, "output new_sensitive (1027)"),
    ],
    "signed reasoning was rejected": [
        http(400, "messages.1.content.0: Invalid `signature` in `thinking` block", None, "invalid_request_error"),
        http(400, "Corrupted thought signature."),
        http(400, "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."),
        aggregated(400, '{"error": {"message": "messages.3.content.0: Invalid `signature` in `thinking` block"}}'),
    ],
    "encrypted reasoning was rejected": [
        http(400, "The encrypted content gAAAAA could not be verified.", "invalid_encrypted_content"),
        http(400, "Reason: Encrypted content could not be decrypted or parsed."),
    ],
    "tier without long context": [
        http(429, "Extra usage is required for long context requests.", None, "rate_limit_error"),
    ],
    "beta header": [http(400, "The long context beta is not yet available for this subscription.")],
    "schema cannot become a grammar": [
        http(400, "parse: error parsing grammar: unknown escape at \\d"),
        http(500, "Failed to parse grammar", 500, "server_error"),
        http(400, "Unable to generate parser for this template. Automatic parser generation failed."),
    ],
    "asks for whole replies": [
        http(400, "streaming is not supported by this model"),
        http(400, "Your organization must be verified to stream this model.", "unsupported_value", param="stream"),
        http(400, "This model does not support streaming."),
        http(400, "Cannot use tools with stream"),
    ],
    "an advisory that may speak of lengths, not an overflow": [
        http(400, "The provider returned an empty response; the context length may have been exceeded."),
        http(502, "Received an empty response from the upstream model"),
        inside("The model returned an empty message"),
    ],
    "shrink it; before overflow": [
        http(400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
        http(400, "At least one of the image dimensions exceed max allowed size: 8000 pixels"),
        http(413, "The image is too large: it exceeds the maximum length"),
    ],
    "flatten tool content; before overflow": [
        http(400, "messages[3]: text is not set"),
        http(400, "Failed to deserialize the JSON body into the target type: messages[2]: invalid type: sequence, "
                  "expected a string at line 1 column 90"),
        http(400, "messages.2.tool.content: Input should be a valid string"),
        http(422, "tool message content must be a string"),
        http(400, "Invalid 'messages[3]'. Image URLs are only allowed for messages with role 'user', but this message with role "
                  "'tool' contains an image URL.", "invalid_value"),
    ],
    "no vision": [
        http(404, "No endpoints found that support image input"),
        http(400, "Invalid content type. image_url is only supported by certain models."),
        http(422, "Failed to deserialize: messages[0]: unknown variant `image_url`, expected `text`"),
        http(500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", 500),
        http(400, "this model does not support image input"),
        http(400, "qwen3-8b is not a multimodal model"),
        http(400, "Could not process image"),
    ],
    "this schema of the answer, not schemas": [
        http(400, "Invalid schema for response_format 'City': In context=(), 'required' is required to be supplied"),
        http(400, "x", "invalid_json_schema"),
        http(400, "The schema of the output is too complex."),
    ],
    "no schema of the answer; before a bad parameter": [
        http(400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
        http(400, "This response_format type is unavailable now"),
        http(400, "Unsupported parameter: 'text.format' is not supported with this model.", "unsupported_parameter"),
        http(400, "output_config.format: Extra inputs are not permitted"),
        http(400, "Function calling with a response mime type: 'application/json' is unsupported"),
        http(400, 'Either "json_schema" or "grammar" can be specified, but not both'),
        http(400, "json mode cannot be combined with tool/function calling"),
    ],
    "no audio": [
        http(404, "No endpoints found that support input audio"),
        http(400, "Failed to deserialize: messages[0]: unknown variant `input_audio`, expected `text`"),
        http(500, "audio input is not supported - hint: you may need to provide the mmproj", 500),
        http(400, "At most 0 audio(s) may be provided in one prompt."),
    ],
    "no files": [
        http(404, "No endpoints found that support file input"),
        http(400, "This model does not support PDF input."),
        http(400, "Invalid content: documents are not supported by this model"),
        http(422, "Failed to deserialize: messages[0]: unknown variant `file`, expected `text`"),
    ],
    "before overflow and output cap: it may name max_tokens": [
        http(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
             "unsupported_parameter"),
        http(400, "Unrecognized request argument supplied: reasoning_effort"),
        http(422, "body.store: Extra inputs are not permitted"),
        http(400, "Unsupported parameter: 'stream_options'", "unsupported_parameter"),
    ],
    "output cap too large for this model or prompt; before overflow": [
        http(400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."),
        http(400, "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet"),
        http(400, "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less than the "
                  "`context_window` for this model"),
        http(400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
        http(400, "Range of max_tokens should be [1, 8192]"),
        http(400, "input length and `max_tokens` exceed context limit: 178959 + 20000 > 200000, decrease input length or "
                  "`max_tokens` and try again"),
        http(400, "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 16384 "
                  "tokens and your request has 9000 input tokens (8192 > 16384 - 9000)."),
    ],
    "no wait makes this request fit": [
        http(413),
        http(413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
        http(413, "Request too large for model `llama-3.3-70b` on tokens per minute (TPM): Limit 6000, Requested 12328",
             "rate_limit_exceeded", "tokens"),
        http(429, REQUEST_TOO_LARGE, "rate_limit_exceeded", "tokens"),
    ],
    "too long; before rate limit in a 400": [
        http(400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
             "context_length_exceeded"),
        http(400, "prompt is too long: 201130 tokens > 200000 maximum", None, "invalid_request_error"),
        http(400, "Input is too long for requested model."),
        http(400, "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens"),
        http(400, "Prompt contains 140000 tokens, too large for model with 131072 maximum context length"),
        http(400, "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).", 400,
             status="INVALID_ARGUMENT"),
        http(400, "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)"),
        http(400, "model max length exceeded, max length:8192"),
        http(400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"),
        http(400, "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it", 400,
             "exceed_context_size_error"),
        http(500, "Context size has been exceeded.", 500, "server_error"),
        http(400, "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context "
                  "length of only 32768 tokens, which is not enough."),
        http(400, "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"),
        http(400, "max_tokens must be at least 1, got -186."),
        http(400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        http(400, "输入内容过长，超出模型最大长度"),
        http(400, "Rate limited: too many tokens in this request, context length exceeded, please retry after 5s"),
        inside("This model's maximum context length is 8192 tokens.", 400),
    ],
    "the aggregator's policy; before the missing model": [
        http(404, "No endpoints found matching your data policy. Configure: https://openrouter.ai/settings/privacy"),
        http(404, "No endpoints available matching your guardrail restrictions and data policy."),
        inside("No endpoints found matching your data policy (Paid model training)"),
    ],
    "no such model": [
        http(404, "The model `gpt-x` does not exist or you do not have access to it.", "model_not_found"),
        http(403, "Project `p` does not have access to model `gpt-x`", "model_not_found"),
        http(404, "model: claude-x", None, "not_found_error"),
        http(400, "some/model is not a valid model ID"),
        http(404, "No endpoints found that support tool use."),
        http(400, "Model Not Exist", "invalid_request_error"),
        http(404, "Not found the model kimi-x or Permission denied", None, "resource_not_found_error"),
        http(400, "Invalid model: mistral-x", "1500", "invalid_model"),
        http(400, "The model `llama3-70b` has been decommissioned and is no longer supported.", "model_decommissioned"),
        http(404, "models/gemini-x is not found for API version v1beta", 404),
        http(400, "Unknown Model, please check the model code.", "1211"),
        http(404, 'model "llama9" not found, try pulling it first', None, "api_error"),
    ],
    "this credential is dead": [
        http(401, "Your authentication token has been invalidated. Please try signing in again.", "token_invalidated"),
        http(400, "invalid_grant"),
        http(401, "Your refresh token has already been used to generate a new access token.", "refresh_token_reused"),
        http(403, "OAuth token has been revoked. Please obtain a new token."),
    ],
    "the aggregator's provider is limited, or its account there; not ours": [
        aggregated(429, '{"error": {"message": "Slow down, please", "code": "rate_limit_exceeded"}}'),
        aggregated(429, '{"error": {"message": "The account is suspended due to insufficient balance"}}'),
    ],
    "a quota that resets by itself; before billing": [
        http(402, "Usage limit reached. It resets in 3 hours."),
        http(429, GEMINI_QUOTA.format(limit=15), 429, status="RESOURCE_EXHAUSTED"),
        inside("You hit your usage limit, try again at 5 pm"),
    ],
    "nothing left to pay with": [
        http(402),
        http(402, "Insufficient Balance"),
        http(402, "Prompt tokens limit exceeded: 36163 > 29652. To increase, visit the credits page"),
        http(429, "You exceeded your current quota, please check your plan and billing details.", "insufficient_quota"),
        http(429, GEMINI_QUOTA.format(limit=0), 429, status="RESOURCE_EXHAUSTED"),
        http(400, "Your credit balance is too low to access the Anthropic API.", None, "invalid_request_error"),
        http(400, "You have reached your specified API usage limits. You will regain access on 2026-01-01 at 00:00 UTC."),
        http(429, "Insufficient balance or no resource package. Please recharge.", "1113"),
        http(429, "余额不足或无可用资源包,请充值。"),
        http(403, "Your account is not active, organization exceeded current quota", None, "exceeded_current_quota_error"),
        http(403, "Key limit exceeded (total limit)."),
        http(400, "Access denied, please make sure your account is in good standing.", "Arrearage"),
        http(403, "The free tier of the model has been exhausted."),
        inside("Insufficient credits", 402),
    ],
    "who are you": [
        http(401, "Incorrect API key provided: x", "invalid_api_key"),
        http(401, "invalid x-api-key", None, "authentication_error"),
        http(403, "Country, region, or territory not supported", "unsupported_country_region_territory"),
        http(400, "API key not valid. Please pass a valid API key.", 400, status="INVALID_ARGUMENT"),
        inside("User not found: unauthorized"),
        inside("No auth credentials found", 401),
    ],
    "before rate limit: same key, wait": [
        http(503, "The model is overloaded. Please try again later.", 503, status="UNAVAILABLE"),
        http(529, "Overloaded", None, "overloaded_error"),
        http(429, "The engine is currently overloaded, please try again later", None, "engine_overloaded_error"),
        http(429, "Service tier capacity exceeded for this model."),
        http(498, "Flex tier capacity exceeded."),
        inside("Overloaded", None, "overloaded_error"),
        inside("No instances available", 503),
    ],
    "slow down": [
        http(429),
        http(429, "Rate limit reached for gpt-5 on tokens per min (TPM). Please try again in 4.77s.", "rate_limit_exceeded"),
        http(429, "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day"),
        http(429, "Your request reached max request: 3, please try again after 1 seconds", None, "rate_limit_reached_error"),
        failure_from(type("RateLimitError", (Exception,), {})("slow"), 0.0),
        inside("Rate limit exceeded", 429),
        inside("Too many requests, please retry after 3 seconds"),
    ],
    "no answer in time": [http(408), inside("The request timed out")],
    "before transient TLS": [
        failure_from(ssl.SSLCertVerificationError("certificate verify failed: unable to get local issuer certificate"), 0.0),
        broken("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"),
    ],
    "a TLS alert: the connection broke, whatever it says": [
        failure_from(ssl.SSLError("[SSL: SSLV3_ALERT_BAD_RECORD_MAC] sslv3 alert bad record mac"), 0.0),
        failure_from(ssl.SSLError("[SSL: TLSV1_ALERT_ACCESS_DENIED] tlsv1 alert access denied, connection closed"), 0.0),
    ],
    "dropped on a very large request": [(broken("Server disconnected without sending a response."), VERY_LARGE)],
    "killed by the watchdog": [Failure("stale", "nothing arrived for 180 s", detail="nothing arrived for 180 s")],
    "no or a broken answer": [
        broken("Server disconnected without sending a response."),
        (broken("Server disconnected without sending a response."), Size(VERY_LARGE.tokens, 30, 200_000, thinks=True)),
        (Failure("transport", "x", detail="connecterror: connection closed", sent=False), VERY_LARGE),
        failure_from(TimeoutError("timed out"), 0.0),
        broken("403 Forbidden", ConnectionRefusedError),
    ],
    "200 without a reply in it": [
        shape_failure("the response has no choices", {"hello": 1}),
        inside("something broke", 500),
    ],
    "validation behind a 500": [
        http(500, "Unknown parameter: 'foo'", None, "server_error"),
        http(502, "bad gateway", None, "invalid_request_error"),
    ],
    "a redirect: not followed, and asking again brings it again": [http(307), http(301), http(304)],
    "their bug": [http(500), http(502, "<html><title>Bad Gateway</title></html>"), http(504), http(524)],
    "a bare 400 on a large request": [(http(400), LARGE), (http(400, "Error"), Size(messages=81))],
    "a bare 404: the address is wrong, now and later": [http(404), http(404, "404 page not found")],
    "bad request": [
        http(400),
        http(422, "messages: at least one message is required"),
        (http(400, "messages: text content blocks must be non-empty"), LARGE),
        http(400, "Function call is missing a thought_signature in functionCall parts."),
        http(409, "conflict"),
    ],
    "everything else": [Failure("http", "what is this")],
}  # fmt: skip


def test_every_row_has_an_example() -> None:
    assert len({row.why for row in DETECTIONS}) == len(DETECTIONS)
    assert set(EXAMPLES) == {row.why for row in DETECTIONS}
    assert all(EXAMPLES.values())


@pytest.mark.behaviour("ERR-05", "ERR-12", "ERR-06", "COMP-04")
def test_the_row_of_an_example() -> None:
    for why, example in ((why, one) for why, some in EXAMPLES.items() for one in some):
        failure, size = example if isinstance(example, tuple) else (example, Size())
        found = detect(failure, size)
        assert found.why == why, (found.name, failure)


TRAPS: dict[str, dict[str, Failure]] = {
    "format_error": {
        "an unsupported max_tokens is not an overflow": http(
            400, "Unsupported parameter: 'max_tokens': token limit"
        ),
        "upstream is no stream": http(400, "this field is not supported by the upstream provider"),
        "stream options are no stream": http(400, "stream_options: not supported"),
        "a tool named after images is not an image": http(400, "Invalid schema for function 'make_image'"),
        "a missing tool is no model": http(400, "tool_call_id does not exist; model turns must alternate"),
    },
    "server_error": {
        "an advisory is not an overflow": http(
            400, "model returned an empty response: context window exceeded?"
        ),
        "words of a page are no status": http(502, "<html><title>502</title>unauthorized</html>"),
    },
    "rate_limit": {
        "an overflow in a 429 is a rate limit": http(429, "too many tokens per minute"),
        "a 402 that resets is no billing": http(
            402, "You have hit your usage limit. Try again in 5 minutes."
        ),
        "nested in a wrapper": inside('Error code: 429 - {"error": {"code": "rate_limit_exceeded"}}'),
    },
    "image_too_large": {
        "an image is not an overflow": http(
            400, "image exceeds the maximum size; maximum context length 8192"
        )
    },
    "list_tool_content_unsupported": {
        "list content is not an overflow": http(400, "tool content must be a string; too many tokens")
    },
    "overloaded": {"overloaded is no rate limit": http(429, "Overloaded: rate limit, too many requests")},
    "ssl_cert": {"no transient TLS": broken("[SSL: X] tlsv1 alert, certificate verify failed")},
    "context_overflow": {"in a 400 is no rate limit": http(400, "too many tokens: rate limit")},
    "provider_policy_blocked": {
        "no missing model": http(404, "No endpoints found matching your data policy"),
        "no missing right": http(403, "blocked by your data policy"),
    },
    "content_policy": {"a refusal wins over a limit": http(429, "rate limit; your request was flagged")},
    "billing": {"a 402 that does not reset": http(402, "You have hit your usage limit.")},
}


@pytest.mark.behaviour("ERR-05")
@pytest.mark.parametrize("name", TRAPS)
def test_ordering_traps(name: str) -> None:
    assert {trap: detect(failure).name for trap, failure in TRAPS[name].items()} == dict.fromkeys(
        TRAPS[name], name
    )


def test_sizes_that_count_as_large() -> None:
    assert Size(tokens=401, window=1_000).large
    assert not Size(tokens=400, window=1_000).large
    assert not Size(tokens=90_000, messages=90, window=1_000_000).large
    assert Size(messages=201).very_large
    assert not Size(messages=200).very_large
    assert Size(tokens=60_100, window=100_000).very_large
    assert not Size(tokens=601, window=1_000).very_large, "a small window: a lost connection is only that"


def test_a_profile_may_prepend_rows() -> None:
    own = (
        ErrorRow("overloaded", statuses=(400,), words=("come back",)),
        ErrorRow("billing", codes=("9001",)),
    )
    assert detect(http(400, "Come back tomorrow"), extra=own).name == "overloaded"
    assert detect(http(500, "Come back tomorrow"), extra=own).name == "server_error"
    assert detect(http(429, "no", "9001"), extra=own).name == "billing"
    assert detect(http(429, "no", "9002"), extra=own).name == "rate_limit"


@pytest.mark.parametrize(
    ("provider", "failure", "name"),
    [
        ("zai", http(429, "资源包", "1113"), "billing"), ("zai", http(400, "x", "1301"), "content_policy"),
        ("zai", http(400, "x", "1261"), "context_overflow"), ("zai", http(429, "x", "1305"), "overloaded"),
        ("qwen", http(403, "x", "AllocationQuota.FreeTierOnly"), "billing"),
        ("qwen", http(400, "x", "Throttling.AllocationQuota"), "rate_limit"),
        ("openai", http(400, "x", "1301"), "format_error"),
    ],
)  # fmt: skip
def test_the_rows_of_the_profiles_reach_the_turn(provider: str, failure: Failure, name: str) -> None:
    runtime = choose(f"{provider}:m", api_key="k").runtime()
    assert detect(failure, extra=runtime.error_rows).name == name


CAPS: list[tuple[str, int | None]] = [
    ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", 16384),
    ("max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens", 8192),
    ("`max_tokens` must be less than or equal to `16384`", 16384),
    ("the valid range of max_tokens is [1, 8192]", 8192),
    ("input length and `max_tokens` exceed context limit: 178,959 + 64000 > 200,000, decrease", 21041),
    ("'max_tokens' is too large: 8192. (8192 > 16384 - 9000).", 7384),
    ("max_tokens: 32768 > context_window: 200000 - input_tokens: 190000 = available_tokens: 10000", 10000),
    ("max_tokens is too large for this model", None),
]


def test_the_cap_that_an_error_names() -> None:
    """A little less than it says; what the window leaves may be less still."""
    for message, cap in CAPS:
        assert output_cap_from(message, None, 0) == (cap and cap - 64), message
    assert output_cap_from("the valid range of max_tokens is [1, 8192]", 10_000, 5_000) == 5_000 - 64


OVERFLOWS: list[tuple[str, int | None, int | None]] = [
    ("maximum context length is 8192 tokens. however, your messages resulted in 9012 tokens.", 8192, 9012),
    ("you requested 9000 tokens (8000 in the messages, 1000 in the completion).", None, 8000),
    ("you requested about 12000 tokens (2000 of text input, 10000 in the output)", None, 2000),
    ("prompt is too long: 201130 tokens > 200000 maximum", 200_000, 201_130),
    ("input token count (1100000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576,
     1_100_000),
    ("request (4390 tokens) exceeds the available context size (4096 tokens)", 4096, 4390),
    ('{"n_prompt_tokens": 4390, "n_ctx": 4096}', 4096, 4390),
    ("n_keep (15028) >= n_ctx (7424)", 7424, 15_028),
    ("your request exceeded model token limit: 262144 (requested: 300000)", 262_144, 300_000),
    ("maximum prompt length is 131,072 but the request contains 537812 tokens.", 131_072, 537_812),
    ("model max length exceeded, max length:8192", 8192, None),
    ("input is too long for requested model", None, None),
]  # fmt: skip


def test_the_window_that_an_overflow_names_and_the_prompt_that_it_counts() -> None:
    for message, window, tokens in OVERFLOWS:
        assert (window_from(message), prompt_tokens_from(message)) == (window, tokens), message
