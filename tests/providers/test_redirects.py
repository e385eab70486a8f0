"""No request to a model follows a redirect: real servers point elsewhere, and count all that they receive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.result import TurnResult
from fsm_agent.providers.failures import failure_from, redirect_failure
from fsm_agent.providers.profiles import local_models
from fsm_agent.testing import FakeClock
from fsm_agent_states.logic.detect import detect
from tests.helpers.ports import CHAT, KEY, WIRES, Wire
from tests.helpers.signpost import Signpost

every_wire = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
same_or_other = pytest.mark.parametrize("same", [True, False], ids=["the same origin", "another origin"])
MODES = {"chat": "chat_completions", "messages": "anthropic_messages", "responses": "codex_responses"}
ASKED = "http://llm.example.org/v1/chat/completions"
NEW = "https://new.example.org"
NOWHERE = "points to no web address; redirects are not followed: set base_url to the API's address"


@pytest.mark.parametrize(("wire", "status", "same"), [
    *((wire, 307, same) for wire in WIRES for same in (True, False)),
    *((CHAT, status, same) for status in (301, 302, 303, 308) for same in (True, False)),
])  # fmt: skip
def test_one_call_is_one_request_wherever_it_is_sent(wire: Wire, status: int, same: bool) -> None:
    with Signpost() as other:
        place = "{here}" if same else other.url()
        with Signpost(f"{place}/moved{wire.path}?token=abc", status) as first:
            failures = [
                asyncio.run(wire.call(first.url("/v1"), KEY, stream=stream)) for stream in (True, False)
            ]
    assert [(request.method, request.path) for request in first.requests] == [("POST", wire.path)] * 2
    assert other.requests == []
    shown = (first if same else other).url(f"/moved{wire.path}")
    for failure in failures:
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.status, failure.code) == ("http", status, "redirect")
        assert failure.sent
        assert f" points to {shown}; redirects are not followed" in failure.message
        assert "token" not in failure.message


def turn(wire: Wire, first: Signpost, **options: Any) -> TurnResult:
    options |= {"base_url": first.url("/v1"), "api_key": KEY, "api_mode": MODES[wire.name]}
    with Agent("openai:gpt-x", toolsets=[], clock=FakeClock(), **options) as agent:
        return agent.run_conversation("a secret plan")


@every_wire
@same_or_other
def test_a_turn_sends_what_it_counts_and_only_where_it_was_told_to(wire: Wire, same: bool) -> None:
    with Signpost() as other, Signpost(f"{'{here}' if same else other.url()}{wire.path}", 307) as first:
        result = turn(wire, first, settings={"max_attempts_per_turn": 2})
    assert len(first.requests) == result.attempts == 1
    assert "a secret plan" in first.requests[0].body.decode()
    assert other.requests == []
    assert (result.turn_exit_reason, result.failure_class) == ("non_retryable_error", "format_error")
    base = (first if same else other).url("" if wire.name == "messages" else "/v1")
    assert f"redirects are not followed: set base_url to {base} if" in str(result.final_response)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        (f"{NEW}/v1/chat/completions", f"points to {NEW}/v1/chat/completions; redirects are not followed: "),
        (f"{NEW}/v1/chat/completions", f": set base_url to {NEW}/v1 if that is right"),
        ("/v2/chat/completions", ": set base_url to http://llm.example.org/v2 if that is right"),
        ("//new.example.org:8443/api/", "points to http://new.example.org:8443/api/; "),
        (f"{NEW}/login", ": set base_url to the API's address"),
        ("https://me:hunter2hunter2@new.example.org/a?key=hunter2hunter2#hunter2", f"points to {NEW}/a;"),
        (f"{NEW}/own-secret-of-mine/x", f"points to {NEW}/***/x;"),
        (f"{NEW}/{'a' * 5_000}", "a…; redirects are not followed: set base_url to the API's address"),
        ("https://[2001:db8::1]:8443/v1/responses", "set base_url to https://[2001:db8::1]:8443/v1 if"),
        ("http://[::1", NOWHERE), ("ftp://new.example.org/", NOWHERE), ("", NOWHERE), (None, NOWHERE),
    ],
)  # fmt: skip
def test_the_place_is_named_without_secrets(location: str | None, shown: str) -> None:
    failure = redirect_failure(307, ASKED, location, secrets=("own-secret-of-mine",))
    assert failure.message.startswith("HTTP 307 Temporary Redirect points to ")
    assert shown in failure.message
    assert len(failure.message) <= 500
    assert "\n" not in failure.message
    assert "hunter2" not in failure.message + failure.detail


@pytest.mark.parametrize("words", ["context_length_exceeded", "unauthorized", "thinking/signature"])
def test_words_of_the_address_are_not_taken_for_an_error(words: str) -> None:
    assert detect(redirect_failure(302, ASKED, f"{NEW}/{words}")).name == "format_error"


def test_a_place_that_no_client_can_read_is_still_a_redirect() -> None:
    with Signpost("http://[::1", 307) as first:
        failure = asyncio.run(CHAT.call(first.url("/v1"), KEY))
    assert isinstance(failure, Failure)
    assert (failure.status, failure.code, len(first.requests)) == (307, "redirect", 1)


def test_an_exception_with_a_status_alone_is_enough() -> None:
    class Moved(Exception):
        status_code = 302

    failure = failure_from(Moved("look elsewhere"), 0.0)
    assert (failure.code, failure.exception) == ("redirect", "Moved")


def test_the_search_for_a_local_server_goes_nowhere_else() -> None:
    with Signpost() as other, Signpost(other.url("/v1/models"), 307) as first:
        assert local_models(first.url("/v1")) == ()
    assert [request.path for request in first.requests] == ["/v1/models"]
    assert other.requests == []
