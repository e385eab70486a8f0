"""Providers that speak a known wire at an address of another form, against a real HTTP server."""

from __future__ import annotations

import base64
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.aws import _auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fsm_agent import Agent, TurnResult
from fsm_agent.errors import ConfigError
from fsm_agent.providers.choose import choose
from fsm_agent.providers.credentials import keyless_environment
from fsm_agent.support.installation import install_command
from tests.helpers.http_server import Asked
from tests.helpers.web_replies import WebReplies, objects

CHAT = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
RESPONSE = {"status": "completed", "output": [SAID]}
MESSAGE = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
CLAUDE = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PATH = "/model/us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def asked_of(
    model: str, told: Mapping[str, Any], home: Path, path: str = "", **options: Any
) -> tuple[Asked, TurnResult]:
    with WebReplies(*objects(told)) as server:
        agent = Agent(model, base_url=server.url + path, toolsets=[], home=home, **options)
        result = agent.run_conversation("go")
        agent.close()
    [asked] = server.asked
    return asked, result


def test_azure_has_the_deployment_in_its_path_and_the_key_in_its_own_header(tmp_path: Path) -> None:
    asked, result = asked_of("azure:my deployment", CHAT, tmp_path, api_key="azure-key")
    assert result.final_response == "hi"
    assert asked.path == "/openai/deployments/my%20deployment/chat/completions?api-version=2025-04-01-preview"
    assert asked.headers["api-key"] == "azure-key"
    assert "authorization" not in asked.headers
    assert asked.body["model"] == "my deployment"


def test_the_version_of_azure_is_that_of_the_environment_or_of_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _ = asked_of("azure:gpt", CHAT, tmp_path, "/openai/v1", api_key="azure-key")
    assert (asked.path, asked.headers["api-key"]) == ("/openai/v1/chat/completions", "azure-key")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    asked, result = asked_of("azure:gpt", RESPONSE, tmp_path, api_key="k", api_mode="codex_responses")
    assert result.final_response == "hi"
    assert asked.path == "/openai/responses?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [("", "api-key", "team-key"), ('auth = "bearer"', "authorization", "Bearer team-key")],
)
def test_azure_by_a_table_of_the_config_file(
    auth: str, header: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_KEY", "team-key")
    with WebReplies(*objects(CHAT)) as server:
        table = f'base_url = "{server.url}"\nlike = "azure"\nkey_env = "TEAM_KEY"\napi_version = "2030-01-01"\n{auth}\n'
        (tmp_path / "config.toml").write_text(f"[providers.team]\n{table}")
        with Agent("team:gpt", toolsets=[], home=tmp_path) as agent:
            assert agent.chat("go") == "hi"
    [asked] = server.asked
    assert asked.path == "/openai/deployments/gpt/chat/completions?api-version=2030-01-01"
    assert asked.headers[header] == value
    assert len({"api-key", "authorization"} & asked.headers.keys()) == 1


@pytest.mark.parametrize("model", ["vertex:google/gemini-2.5-flash", "xai:grok-4-20"])
def test_those_that_speak_chat_completions(model: str, tmp_path: Path) -> None:
    asked, result = asked_of(model, CHAT, tmp_path, "/v1/some/place", api_key="a-token")
    assert result.final_response == "hi"
    assert asked.path == "/v1/some/place/chat/completions"
    assert asked.headers["authorization"] == "Bearer a-token"
    assert asked.body["model"] == model.partition(":")[2]


def test_addresses_are_put_together_from_the_environment() -> None:
    place = {"GOOGLE_CLOUD_PROJECT": "my-project", "GOOGLE_CLOUD_LOCATION": "europe-west4"}
    vertex = choose("vertex:google/gemini-2.5-flash", env=place | {"VERTEX_API_KEY": "ya29.token"})
    assert vertex.base_url == (
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west4"
        "/endpoints/openapi"
    )
    assert vertex.keys == ("ya29.token",)
    assert choose(CLAUDE, env={"AWS_DEFAULT_REGION": "eu-west-1"}).base_url == (
        "https://bedrock-runtime.eu-west-1.amazonaws.com"
    )
    assert choose("xai:grok-4-20", env={"XAI_API_KEY": "xai-1"}).base_url == "https://api.x.ai/v1"
    azure = {"AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/", "AZURE_OPENAI_API_KEY": "k"}
    assert choose("azure:gpt", env=azure).keys == ("k",)


@pytest.mark.parametrize(
    ("model", "env", "says"),
    [
        ("vertex:a", {"GOOGLE_CLOUD_PROJECT": "p"}, "VERTEX_BASE_URL, or GOOGLE_CLOUD_LOCATION$"),
        ("vertex:a", {"GOOGLE_CLOUD_LOCATION": "a/b"}, "or GOOGLE_CLOUD_LOCATION and GOOGLE_CLOUD_PROJECT$"),
        (CLAUDE, {}, "ANTHROPIC_BEDROCK_BASE_URL, or AWS_REGION$"),
        ("azure:gpt", {"AZURE_OPENAI_API_KEY": "k"}, "base_url or AZURE_OPENAI_ENDPOINT$"),
    ],
)
def test_an_address_that_cannot_be_put_together(model: str, env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        choose(model, env=env)


def test_a_key_of_the_environment_goes_to_its_own_address_alone() -> None:
    env = {"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "bedrock-key"}
    assert choose(CLAUDE, env=env).keys == ("bedrock-key",)
    assert choose(CLAUDE, "https://elsewhere.example", env=env).keys == ()
    del env["AWS_REGION"]
    assert choose(CLAUDE, "https://elsewhere.example", env=env).keys == (), "nor where it has no address yet"


# Bedrock


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Credentials:
    """An AWS account in the environment, and nothing of the machine's own."""
    sessions: Any = _auth._get_session  # the types of the SDK hide that it is cached
    sessions.cache_clear()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "an-account-secret",
    }.items():
        monkeypatch.setenv(name, value)
    return Credentials("AKIATEST", "an-account-secret")


def frame(told: Mapping[str, Any], **headers: str) -> bytes:
    """An event of Amazon's own form."""
    named = {":message-type": "event", ":event-type": "chunk"}
    named |= {f":{name.replace('_', '-')}": value for name, value in headers.items()}
    head = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in named.items()
    )
    payload = json.dumps(told).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack("!I", zlib.crc32(prelude)) + head + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


def chunk(**event: Any) -> bytes:
    return frame({"bytes": base64.b64encode(json.dumps(event).encode()).decode()})


BEGUN = {"model": "claude", "usage": {"input_tokens": 7, "output_tokens": 1}}
SPOKEN = (
    chunk(type="message_start", message=BEGUN),
    chunk(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
    chunk(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "from the rock"}),
    chunk(type="content_block_stop", index=0),
    chunk(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
    chunk(type="message_stop"),
)


def turn(home: Path, *replies: tuple[int, str, bytes], **options: Any) -> tuple[list[Asked], TurnResult]:
    with WebReplies(*replies) as server:
        at_once = {"base": 0, "cap": 0}
        quick = {"backoff": {"exception": at_once, "invalid": at_once}} | options.pop("settings", {})
        with Agent(CLAUDE, base_url=server.url, toolsets=[], home=home, settings=quick, **options) as agent:
            result = agent.run_conversation("go")
    return server.asked, result


STREAM = "application/vnd.amazon.eventstream"


def signature_of(asked: Asked, account: Credentials) -> str:
    """What the account signs of this request."""
    names = asked.headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    kept = {name: asked.headers[name] for name in names if name != "host"}
    request = AWSRequest("POST", f"http://{asked.headers['host']}{asked.path}", data=asked.raw, headers=kept)
    signer = SigV4Auth(account, "bedrock", "eu-west-1")
    request.context["timestamp"] = asked.headers["x-amz-date"]
    canonical = signer.canonical_request(request)
    signed: str = signer.signature(signer.string_to_sign(request, canonical), request)
    return signed


def test_bedrock_is_sent_a_signed_request_and_streams_in_its_own_form(
    account: Credentials, tmp_path: Path
) -> None:
    [asked], result = turn(tmp_path, (200, STREAM, b"".join(SPOKEN)))
    assert (result.final_response, result.completed) == ("from the rock", True)
    assert asked.path == f"{PATH}/invoke-with-response-stream"
    assert asked.body["anthropic_version"]
    assert not {"model", "stream"} & asked.body.keys()
    assert asked.body["messages"][0]["role"] == "user"
    signed = asked.headers["authorization"]
    assert signed.startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
    assert signed.endswith(f"Signature={signature_of(asked, account)}")
    assert "an-account-secret" not in f"{asked.headers} {asked.raw!r}"


def test_a_bedrock_key_is_a_bearer(account: Credentials, tmp_path: Path) -> None:
    extra = {"request": {"extra_headers": {"anthropic-beta": "one,two"}}}
    [asked], result = turn(tmp_path, *objects(MESSAGE), api_key="bedrock-key", settings=extra)
    assert result.final_response == "hi"
    assert asked.headers["authorization"] == "Bearer bedrock-key"
    assert asked.body["anthropic_beta"] == ["one", "two"]


def test_the_next_bedrock_key_is_used_when_one_is_refused(account: Credentials, tmp_path: Path) -> None:
    denied = 401, "application/json", b'{"message": "The security token included in the request is invalid"}'
    asked, result = turn(tmp_path, denied, *objects(MESSAGE), api_key=["bedrock-key-1", "bedrock-key-2"])
    assert result.final_response == "hi"
    assert [one.headers["authorization"][-1] for one in asked] == ["1", "2"]


def test_errors_of_bedrock_are_classed(account: Credentials, tmp_path: Path) -> None:
    exception = {"message_type": "exception", "exception_type": "throttlingException"}
    throttled = frame({"message": "Too many requests"}, **exception)
    busy = 429, "application/json", b'{"message": "Too many tokens, please wait"}'
    asked, result = turn(tmp_path, (200, STREAM, throttled), busy, (200, STREAM, b"".join(SPOKEN)))
    assert (len(asked), result.final_response) == (3, "from the rock")
    denied = 403, "application/json", b'{"message": "User is not authorized to perform bedrock:InvokeModel"}'
    _, result = turn(tmp_path, denied)
    assert result.failed
    assert "not authorized" in str(result.error)


@pytest.mark.parametrize(
    "body",
    [b"\xff" * 40, b"\0" * 40, SPOKEN[0][:-1] + b"!", frame({"bytes": "%"}), frame({"bytes": 7})],
    ids=["far too long", "too short", "checksum", "no base64", "no text"],
)
def test_a_damaged_stream_of_bedrock_is_a_failure(body: bytes, account: Credentials, tmp_path: Path) -> None:
    asked, result = turn(tmp_path, (200, STREAM, body), (200, STREAM, b"".join(SPOKEN)))
    assert (len(asked), result.final_response) == (2, "from the rock")


def test_without_an_account_nothing_is_sent(
    account: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    asked, result = turn(tmp_path, *objects(MESSAGE))
    assert (asked, result.failed) == ([], True)
    assert "Could not resolve AWS credentials" in str(result.error)


def test_what_bedrock_needs_is_said_before_the_turn(
    account: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("boto3", "botocore", "botocore.eventstream"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=re.escape(f"needs boto3; allowed: {install_command('bedrock')}")):
        Agent(CLAUDE, home=tmp_path)


def test_commands_do_not_see_the_account_of_bedrock(account: Credentials, tmp_path: Path) -> None:
    Agent(CLAUDE, toolsets=[], home=tmp_path).close()
    assert not {name for name in keyless_environment() if "SECRET" in name}
