"""A key goes to the origin that it is for, over TLS, and nowhere else. (Redirects: tests/providers/test_redirects.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.cli import main
from fsm_agent.errors import ConfigError
from fsm_agent.providers.choose import choose, is_for, origin, vendors_at
from fsm_agent.providers.profiles import ROWS
from fsm_agent.testing import ScriptedServer, text

KEY = "sk-one-of-the-environment"
ENV = {"OPENAI_API_KEY": KEY}
VENDORS = [row for row in ROWS if row.base_url and row.needs_key]
REMOTE = "http://llm.example.org/v1"


def refused(*words: str, **arguments: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        choose(**arguments)
    message = str(raised.value)
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message
    assert KEY not in message


@pytest.mark.parametrize(
    "vendor", [row for row in VENDORS if "openai" not in row.name], ids=lambda row: row.name
)
def test_a_key_of_the_environment_goes_to_no_other_vendor(vendor: Any) -> None:
    words = ("the key in OPENAI_API_KEY is not for", origin(vendor.base_url), "api_key")
    refused(*words, model="openai:x", base_url=vendor.base_url, env=ENV)
    refused(*words, model="openai:x", env={**ENV, "OPENAI_BASE_URL": vendor.base_url})
    refused(*words, model="openai:x", base_url=f"{origin(vendor.base_url)}:8443/", env=ENV)
    other = choose("openai:x", base_url=vendor.base_url, api_key="given-for-it", env=ENV)
    assert other.keys == ("given-for-it",)


def test_an_address_that_nobody_named_for_it_gets_no_key() -> None:
    proxy = "https://proxy.example.com/v1"
    refused(
        "OPENAI_API_KEY", "https://proxy.example.com", "OPENAI_BASE_URL", model="openai:x", base_url=proxy,
        env=ENV,
    )  # fmt: skip
    assert choose("openai:x", base_url=proxy, env={**ENV, "OPENAI_BASE_URL": proxy}).keys == (KEY,)
    assert choose("openai:x", env={**ENV, "OPENAI_BASE_URL": proxy}).keys == (KEY,)
    assert choose("openai:x", base_url=proxy, api_key="given", env=ENV).keys == ("given",)


def test_its_own_origin_is_any_path_of_it() -> None:
    for url in ("https://api.openai.com/v1", "https://API.openai.com./v2/", "https://api.openai.com:443"):
        assert choose("openai:x", base_url=url, env=ENV).keys == (KEY,)


@pytest.mark.parametrize(
    "url",
    ["http://api.openai.com/v1", "https://api.openai.com:8443/v1", "https://api.openai.com.example.org/v1",
     "https://api.openai.com@example.org/v1", "https://example.org/api.openai.com", "https://xapi.openai.com"],
)  # fmt: skip
def test_what_only_looks_like_it_is_not_it(url: str) -> None:
    with pytest.raises(ConfigError):
        choose("openai:x", base_url=url, env=ENV)


def test_a_key_that_is_known_by_its_looks_goes_to_no_other_vendor() -> None:
    for model, key, url in (
        ("openai:x", "sk-ant-abc", "https://api.openai.com/v2"),
        ("openai:x", "gsk_abc", "https://api.anthropic.com/v1"),
        ("anthropic:x", "sk-or-abc", "https://api.anthropic.com"),
    ):
        refused("looks like one of", model=model, base_url=url, api_key=key, env={})
    elsewhere = "https://proxy.example/v1"
    assert choose("openai:x", base_url=elsewhere, api_key="sk-ant-abc", env={}).keys


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "openai:x", "base_url": REMOTE, "api_key": KEY, "env": {}},
        {"model": "openai:x", "base_url": "http://10.0.0.5/v1", "api_key": KEY, "env": {}},
        {"model": "openai:x", "env": {**ENV, "OPENAI_BASE_URL": REMOTE}},
        {"model": "m", "base_url": REMOTE, "env": {}},
    ],
)
def test_nothing_goes_to_another_machine_without_tls(arguments: dict[str, Any]) -> None:
    refused("without TLS", "https", "credential.plain_http", **arguments)
    assert choose(**arguments, plain_http=["LLM.example.org", "10.0.0.5"])


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://localhost/v1"])
def test_this_machine_needs_no_tls(url: str) -> None:
    assert choose("openai:x", base_url=url, api_key=KEY, env={}).keys == (KEY,)


def test_a_server_nearby_that_gets_no_key_needs_no_tls() -> None:
    assert choose("ollama:m", base_url="http://192.168.1.5:11434/v1", env={}).keys == ()


def test_who_says_so_may_send_without_tls(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[settings]\ncredential.plain_http = ["llm.example.org"]\n')
    options: dict[str, Any] = {"base_url": REMOTE, "api_key": KEY, "toolsets": []}
    Agent("openai:x", home=tmp_path, **options).close()
    allowed = {"credential": {"plain_http": ["llm.example.org"]}}
    Agent("openai:x", home=tmp_path / "other", settings=allowed, **options).close()
    with pytest.raises(ConfigError, match="without TLS"):
        Agent("openai:x", home=tmp_path / "third", **options)


def test_on_the_command_line_it_is_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    elsewhere = ["-m", "openai:x", "--base-url", "https://api.anthropic.com/v1"]
    assert main(["run", *elsewhere, "--home", str(tmp_path), "hi"]) == 2
    said = capsys.readouterr().err
    assert "the key in OPENAI_API_KEY is not for https://api.anthropic.com" in said
    assert said.count("\n") == 1


def test_a_server_on_this_machine_does_not_get_the_key_of_a_vendor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ScriptedServer([text("hello")]) as server:
        with Agent("openai:x", base_url=server.url, home=tmp_path, toolsets=[]) as agent:
            assert agent.chat("go") == "hello"
        assert KEY not in str([(one.headers, one.body) for one in server.requests])


def test_every_vendor_has_its_key_for_its_own_address() -> None:
    for row in VENDORS:
        assert is_for(row, row.base_url, None)
        assert row.name in vendors_at(row.base_url)


@given(st.text(alphabet="ab.:/@[]#?%\\0159", max_size=30))
def test_no_address_that_can_be_written_is_another_ones(rest: str) -> None:
    """As the client that sends reads it."""
    url = f"https://api.openai.com{rest}"
    try:
        given = choose("openai:x", base_url=url, env=ENV)
    except ConfigError:
        return
    if given.keys:
        sent = httpx2.URL(str(given.base_url))
        assert (sent.scheme, sent.host.rstrip("."), sent.port) == ("https", "api.openai.com", None)
