"""Secrets in every form in which they come along: addresses, headers, JSON, environments, commands, files."""

from __future__ import annotations

import json
import time

import pytest

from fsm_agent.support.redaction import mask

SECRET = "Zx9-Q7.hunter_2plus"
FORMS = (
    # addresses
    "https://me:{}@host/x", "postgres://me:{}@db/x", "https://me:a@{}@host", "https://h/x?token={}", "https://h/x?api_key={}",
    "https://h/x?a=1&access_token={}&b=2", "https://h/x?key={}", "https://h/x?sig={}", "https://h/x?X-Amz-Signature={}",
    "x=api_key%3D{}",
    # headers
    "X-Api-Key: {}", "x-goog-api-key: {}", "X-Auth-Token: {}", "Authorization: Bearer {}", "authorization: token {}",
    "Proxy-Authorization: ApiKey {}", "Cookie: session={}; theme=dark", "Set-Cookie: sid={}; Path=/",
    # JSON, also in JSON
    '{{"api_key": "{}"}}', "{{'apiKey': '{}'}}",
    '{{"client_secret":"{}"}}', '{{"password": "{}"}}', '{{"refreshToken":"{}"}}',
    '{{\\"api_key\\": \\"{}\\"}}', '{{\\\\\\"secret\\\\\\": \\\\\\"{}\\\\\\"}}',
    # environments and commands
    "OPENAI_API_KEY={}", "export FOO_TOKEN='{}'", "DB_PASSWORD={}", "PGPASS_PWD={}", "AWS_SECRET_ACCESS_KEY={}",
    "aws_secret_access_key = {}", "GITHUB_PAT={}", "mysql --password {}", "tool --api-key '{}'", 'curl -H "X-API-Key: {}"',
    "passphrase: {}",
)  # fmt: skip


def test_a_secret_is_masked_in_every_form() -> None:
    for text in FORMS:
        masked = mask(text.format(SECRET))
        assert SECRET not in masked, text
        assert "hunter" not in masked, text
        assert "***" in masked, text


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abcdefghijkl", "sk_live_abcdefghijklmno", "rk_test_abcdefghijkl", "ghp_abcdefghijklmnop",
        "ghs_abcdefghijklmnop",
        "github_pat_abcdefghijkl", "glpat-abcdefghijkl", "xoxb-1234567890-abc", "xapp-1-A0-abcdef0123", "hf_abcdefghijklmn",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789", "pypi-AgEIcHlwaS5vcmcabcdef", "SG.abcdefghijklmnop.qrstuvwxyz",
        "ya29.abcdefghijklmnop", "AKIAABCDEFGHIJKLMNOP", "ASIAABCDEFGHIJKLMNOP", "AIzaSyDabcdefghijklmnop",
        "dop_v1_abcdef0123456789",
        "hooks.slack.com/services/T000/B000/XXXXXXXXXXXX", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdef",
    ],
)  # fmt: skip
def test_known_kinds_of_keys_are_masked_without_a_name(secret: str) -> None:
    masked = mask(f"it says {secret} there")
    assert secret[-6:] not in masked
    assert masked.startswith("it says ")
    assert masked.endswith(" there")


@pytest.mark.parametrize("newline", ["\n", "\\n"])
def test_a_private_key_is_masked_whole_also_when_its_end_is_missing(newline: str) -> None:
    key = newline.join(
        ["-----BEGIN RSA PRIVATE KEY-----", "MIIEabc", "defghi", "-----END RSA PRIVATE KEY-----"]
    )
    assert mask(f"before {key} after") == "before -----BEGIN RSA PRIVATE KEY-----*** after"
    assert "MIIE" not in mask(f'{{"private_key": "{key}"}}')
    assert "MIIE" not in mask(key[:60])


@pytest.mark.parametrize(
    "text",
    [
        "basic understanding of tokens", "max_tokens: 100000", "total_tokens=123456", "token: 5 of 10 used",
        "the secret: of life",
        "token = tokenizer.next()", "a task-based risk-averse ask", "sk_buff_alloc(size)", "monkey: banana", "https://host:8080/path",
        "git@github.com:me/it.git", "see session 12", "npm_config_cache=/tmp/x", "password reset", "SORT_KEY=created_at",
    ],
)  # fmt: skip
def test_ordinary_words_stay(text: str) -> None:
    assert mask(text) == text


def test_json_stays_json() -> None:
    inner = json.dumps({"api_key": SECRET, "n": 1, "url": f"https://me:{SECRET}@host"})
    text = json.dumps({"messages": [{"role": "tool", "content": inner}], "authorization": f"Bearer {SECRET}"})
    read = json.loads(mask(text))
    assert SECRET not in str(read)
    assert json.loads(read["messages"][0]["content"])["n"] == 1


def test_a_known_secret_is_masked_however_it_is_written() -> None:
    secret = 'a/b+c"d é'
    masked = mask(f"{secret} | a%2Fb%2Bc%22d%20%C3%A9 | {json.dumps(secret)}", [secret])
    assert masked == '*** | *** | "***"'


@pytest.mark.parametrize(
    "part", ["cookie:", "://a:", "token:", '\\"', "-----BEGIN PRIVATE KEY-----", "key='", "A_B_C_", "SG."]
)
def test_no_text_is_slow(part: str) -> None:
    text = part * (200_000 // len(part))
    began = time.process_time()
    mask(text)
    assert time.process_time() - began < 2
