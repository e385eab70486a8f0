"""Headers that a person adds to requests: sent to the model in use, and shown and stored nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, Settings
from fsm_agent.cli import main
from fsm_agent.errors import ConfigError
from fsm_agent.providers.credentials import keyless_environment
from fsm_agent.settings import OUR_HEADERS
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.helpers.harness import echo

SECRET = "team-token-Zq81-not-for-eyes"
HEADERS = {"X-Team": SECRET, "anthropic-beta": "one-2026"}
MODELS = [
    ("openai:gpt-4o", "chat_completions"),
    ("openai:gpt-4o", "codex_responses"),
    ("anthropic:claude-opus-4-8", "anthropic_messages"),
]


def made(model: tuple[str, str], url: str, home: Path, **options: Any) -> Agent:
    settings = {"request": {"extra_headers": HEADERS}} | options.pop("settings", {})
    given = {"tools": [echo], "toolsets": []} | options
    return Agent(
        model[0], api_mode=model[1], base_url=url, api_key="k", home=home, settings=settings, **given
    )


@pytest.mark.parametrize("model", MODELS)
def test_each_request_has_them_and_nothing_else_does(
    model: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    lines: list[Any] = []
    refusal = {"error": {"message": f"the header X-Team: {SECRET} is not allowed", "type": "invalid"}}
    with ScriptedServer([tools(call("echo", {"text": "a"})), text("done"), status(422, refusal)]) as server:
        agent = made(model, server.url, tmp_path, callbacks={"status": lines.append})
        assert agent.run_conversation("go").completed
        failed = agent.run_conversation("again")
        assert failed.failed
        session = agent.session_id
        agent.close()
    for request in server.requests:
        assert (request.headers["x-team"], request.headers["anthropic-beta"]) == (SECRET, "one-2026")
        assert request.headers["content-type"] == "application/json"
    for words in (["sessions", "export", session], ["sessions", "show", session], ["config", "show"]):
        main([*words, "--home", str(tmp_path)])
    main(["sessions", "export", session, "--raw", "--home", str(tmp_path)])
    shown = capsys.readouterr()
    told = f"{lines} {caplog.text} {shown.out} {shown.err} {failed} {agent.settings!r} {agent.settings}"
    assert SECRET not in told
    assert any(tmp_path.rglob("*")), "something was stored"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_fallback_and_a_side_model_do_not_get_them(tmp_path: Path) -> None:
    with ScriptedServer([status(401)]) as first, ScriptedServer([text("done"), text("A title")]) as second:
        other = {"model": "openai:gpt-4o", "base_url": second.url, "api_key": "k"}
        agent = made(
            MODELS[0], first.url, tmp_path, fallbacks=[other], auxiliary={"title": [other]},
            settings={"request": {"extra_headers": HEADERS, "extra_body": {"service_tier": "flex"}}},
        )  # fmt: skip
        assert agent.chat("go") == "done"
        agent.close()
    assert first.requests[0].headers["x-team"] == SECRET
    assert len(second.requests) == 2
    for request in second.requests:
        assert "x-team" not in request.headers
        assert "service_tier" not in request.body


def test_a_turn_that_is_resumed_has_those_of_its_agent(tmp_path: Path) -> None:
    with ScriptedServer([text("done")]) as server:
        agent = made(MODELS[0], server.url, tmp_path)
        turn = agent.start("go")

        async def cut_off() -> None:
            await turn.step_into()
            agent.store.let_go(turn.id)

        asyncio.run(cut_off())
        again = made(MODELS[0], server.url, tmp_path, session_id=agent.session_id)
        assert again.resume(turn.id).run().completed
        again.close()
        agent.close()
    assert [request.headers["x-team"] for request in server.requests] == [SECRET]


@pytest.mark.parametrize("name", [*sorted(OUR_HEADERS), "Authorization", "Content-Type", "X-API-Key"])
def test_those_of_the_engine_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(request={"extra_headers": {name: SECRET}})
    assert f"given: {name}; allowed: any but accept, " in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        f"X-Team: {SECRET}", [SECRET], {SECRET: 5}, {"a b": SECRET}, {"": SECRET}, {"X\r\nY": SECRET},
        {"X-Team": f"{SECRET}\r\nX-Other: a"}, {"X-Team": f" {SECRET}"}, {"X-Team": f"{SECRET}ä"}, {"X-Team": [SECRET]},
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_without_a_word_of_it(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"request.extra_headers .*allowed: ") as refused:
        Settings(request={"extra_headers": given})
    assert SECRET not in str(refused.value) or given == {SECRET: 5}


def test_they_may_stand_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "FSM_AGENT_REQUEST__EXTRA_HEADERS"
    monkeypatch.setenv(variable, json.dumps({"X-Team": SECRET}))
    with ScriptedServer([text("done")]) as server:
        agent = Agent("openai:gpt-4o", base_url=server.url, api_key="k", toolsets=[], home=tmp_path)
        agent.chat("go")
        agent.close()
    assert server.requests[0].headers["x-team"] == SECRET
    assert variable not in keyless_environment()
    assert "COPY" not in keyless_environment({"COPY": f"a {SECRET}"})
    monkeypatch.setenv(variable, f"X-Team: {SECRET}")
    with pytest.raises(ConfigError, match=variable) as refused:
        Settings()
    assert SECRET not in str(refused.value)
