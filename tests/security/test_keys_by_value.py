"""Threat: a key in what a tool found. One of a known shape is hidden in all that is shown, logged and exported; one
that the agent itself uses is known by its value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.cli import main
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.providers.config_file import config_of
from fsm_agent.sessions.store import store_for
from fsm_agent.support.redaction import (
    KEYS,
    SECRET_SHAPES,
    SecretShape,
    keep_secret,
    mask,
    mask_json,
    secrets_among,
)
from fsm_agent.telemetry import conventions
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.helpers.harness import echo

KEY = "zz-custom-key-Qx81Lm"
PASSWORD = "pw-Yt63-of-the-store"
CONFIG = """
[providers.work]
base_url = "https://llm.example.org/v1"
key_env = "ZZ_WORK"

[settings.request.extra_headers]
X-Team = "team-Kp22-header"

[settings.store]
database_url = "postgresql://me:pw-Yt63-of%2Dthe-store@db.example.org/x"

[mcp.servers.one]
command = "one"
env = { ONE_TOKEN = "mcp-env-Rw55", NODE_ENV = "production", TWO_API_KEY = "${ZZ_TWO}" }

[mcp.servers.two]
url = "https://two.example.org/mcp"
headers = { Authorization = "Bearer mcp-header-Uj90" }
"""


@pytest.fixture(autouse=True)
def only_ours() -> Iterator[None]:
    """What other tests made known of keys is set aside."""
    before = set(KEYS)
    KEYS.clear()
    yield
    KEYS.clear()
    KEYS.update(before)


def turn_with_the_key(home: Path, *replies: Any) -> str:
    script = [tools(call("echo", {"text": f"found {KEY} there"})), *replies]
    with ScriptedServer(script) as server:
        agent = Agent("openai:gpt-4o", base_url=server.url, api_key=KEY, home=home, tools=[echo], toolsets=[])
        agent.run_conversation(f"go with {KEY}")
        session = agent.session_id
        agent.close()
    assert session
    return session


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "export"], ["sessions", "export", "--format", "sharegpt"], ["sessions", "show"],
        ["sessions", "show", "--full"], ["sessions", "show", "--json"], ["sessions", "search"],
        ["sessions", "search", "--json"], ["sessions", "list"], ["sessions", "list", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_leaves_the_store_does_not_hold_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    session = turn_with_the_key(tmp_path, text(f"it is {KEY}"))
    capsys.readouterr()
    name = {"search": ["there"], "list": []}.get(words[1], [session])
    main([*words[:2], *name, *words[2:], "--home", str(tmp_path)])
    told = capsys.readouterr().out
    assert "***" in told
    assert KEY not in told


def test_a_dump_and_a_test_that_is_made_of_a_turn_do_not_hold_it(tmp_path: Path) -> None:
    refusal = status(400, {"error": {"message": f"what is {KEY}?", "type": "invalid_request_error"}})
    turn_with_the_key(tmp_path, refusal)
    dumps = [path.read_text() for path in (tmp_path / "dumps").iterdir()]
    assert dumps
    assert all(KEY not in one and "***" in one for one in dumps)


def test_another_process_knows_it_by_the_config_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.setenv("ZZ_WORK", KEY)
    monkeypatch.setenv("ZZ_TWO", "mcp-variable-Hc17")
    monkeypatch.setenv("OTHER_TOKEN", "other-Bn44")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=otel-Gd31,b=x")
    config_of(tmp_path)
    for secret in (
        KEY, "team-Kp22-header", PASSWORD, "mcp-env-Rw55", "mcp-variable-Hc17", "mcp-header-Uj90", "other-Bn44",
        "otel-Gd31",
    ):  # fmt: skip
        assert mask(f"a {secret} b") == "a *** b"
        assert mask_json({"x": [f"{secret}!"]}) == {"x": ["***!"]}
    assert mask("NODE_ENV is production") == "NODE_ENV is production"


def test_spans_do_not_hold_it() -> None:
    keep_secret([KEY])
    assert KEY not in conventions.as_json([{"text": f"it is {KEY}"}])
    assert conventions.mask_words(f"it is {KEY}") == "it is ***"


def test_a_placeholder_and_a_path_are_no_secrets() -> None:
    keep_secret(["none", "", "/usr/bin"])
    assert not KEYS


def test_a_value_is_masked_as_addresses_and_json_write_it() -> None:
    keep_secret(['a"b/c d-7'])
    assert mask(json.dumps('x a"b/c d-7')) == '"x ***"'
    assert mask("?k=a%22b%2Fc%20d-7") == "?k=***"


def test_secrets_among_names() -> None:
    named = {"A_TOKEN": "${X:-zz-default}", "LEVEL": "verbose"}
    assert set(secrets_among(named, {})) == {"zz-default"}


def test_the_word_before_a_key_in_a_header_is_no_secret() -> None:
    """Masked by itself it would hide what shows that a key follows."""
    headers = {"Authorization": "Bearer ${ZZ_TOKEN}", "X-Two": "Basic", "X-Three": "Bearer zz-of-ours"}
    keep_secret(secrets_among(headers, {}, every=True))
    assert {"zz-of-ours"} == KEYS
    assert mask("Authorization: Bearer zz-of-others") == "Authorization: Bearer ***"


def test_the_pages_export_does_not_hold_it(tmp_path: Path) -> None:
    session = turn_with_the_key(tmp_path, text("done"))
    store = store_for(tmp_path)
    with store.database.reading() as c:
        [(turn,)] = c.execute("SELECT id FROM turns WHERE session = ?", (session,)).fetchall()
    debugged = DebugSession(store)
    assert KEY not in debugged.export(turn)
    assert KEY not in debugged.test(turn)


ROOT = Path(__file__).parents[2]
each = pytest.mark.parametrize("shape", SECRET_SHAPES, ids=lambda shape: shape.name)


def parts(shape: SecretShape) -> tuple[str, str, str]:
    found = re.fullmatch("(.*)⟨(.*)⟩(.*)", shape.example, re.DOTALL)
    assert found is not None
    return found[1], found[2], found[3]


@each
def test_a_secret_is_hidden_and_the_text_around_it_stays(shape: SecretShape) -> None:
    before, secret, after = parts(shape)
    assert mask(f"see: {before}{secret}{after} there") == f"see: {before}***{after} there"
    assert mask_json({"a": [before + secret + after]}) == {"a": [f"{before}***{after}"]}
    assert any(sign in (before + secret + after).lower() for sign in shape.signs)


@each
def test_ordinary_text_stays(shape: SecretShape) -> None:
    assert mask(shape.ordinary) == shape.ordinary


@each
def test_each_row_is_needed(shape: SecretShape) -> None:
    """By itself it hides its example, and no other row does."""
    before, secret, after = parts(shape)
    hides = [one.name for one in SECRET_SHAPES if one.compiled.search(before + secret + after)]
    assert hides == [shape.name]


def test_what_is_ordinary_for_one_is_so_for_all() -> None:
    for shape in SECRET_SHAPES:
        assert [one.name for one in SECRET_SHAPES if one.compiled.search(shape.ordinary)] == []


@pytest.mark.slow
def test_our_own_code_stays_but_for_its_examples() -> None:
    """As a sample of ordinary code: what is hidden in it can be counted."""
    hidden = [
        (path.name, shape.name)
        for path in sorted((ROOT / "fsm_agent").rglob("*.py"))
        if path.name != "redaction.py"
        for shape in SECRET_SHAPES
        if shape.compiled.search(path.read_text(encoding="utf-8"))
    ]
    assert hidden == []


@given(st.text(max_size=200))
def test_hiding_twice_changes_nothing(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
