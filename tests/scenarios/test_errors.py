"""Errors of providers and networks."""

from __future__ import annotations

import re
from email.utils import formatdate
from typing import Annotated, Any

import pytest
from pydantic import Field

from fsm_agent import Agent, tool
from fsm_agent.testing import (
    FakeClock,
    ScriptedModel,
    ScriptedServer,
    call,
    cut,
    drop,
    empty_sse,
    json_reply,
    malformed_chunk,
    overflow,
    repeat,
    silence,
    status,
    text,
    tools,
)
from fsm_agent_states.table import TURN
from tests.helpers.deaf_proxy import BEHIND, deaf_proxy
from tests.helpers.harness import Refreshable, play, reads, table
from tests.helpers.turn_driver import error
from tests.helpers.web_replies import WebReplies


@pytest.mark.behaviour("BACK-04", "ERR-09", "TR-01", "BACK-02", "ERR-24", "ERR-09c")
def test_38_500_forever() -> None:
    played = play(repeat(status(500)))
    assert played.summary == "3 api_retries_exhausted failed server_error"
    first, second = played.waits
    assert 2 <= first <= 3
    assert 4 <= second <= 6
    at = played.server.url.removeprefix("http://").removesuffix("/v1")
    told = [line for line in played.heard.of("status") if "failed after" in line]
    told = [re.sub(r"\d\.\d s", "0 s", line) for line in told]
    assert told == [
        f"attempt {n} of 3 failed after 0 s at {at}: server error: scripted status 500" for n in "123"
    ]


NO_MODEL = error("The model `gpt-x` does not exist", "model_not_found")
UNSUPPORTED = error(
    "Unsupported parameter: 'max_tokens' is not supported with this model.", "unsupported_parameter"
)
CAP = error("max_tokens is too large for this model: exceeds what it can do")
CUT_OFF = error(
    "input length and `max_tokens` exceed context limit: 199900 + 4000 > 200000, decrease input length"
)
ENDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "41 429 forever": (repeat(status(429)), {}, "3 api_retries_exhausted failed rate_limit"),
    "53 403 is not retried": ([status(403)], {"api_key": ["k1", "k2"]}, "1 non_retryable_error failed auth"),
    "54 no such model": ([status(404, NO_MODEL)], {}, "1 non_retryable_error failed model_not_found"),
    "56 400": ([status(400)], {}, "1 non_retryable_error failed format_error"),
    "56 422": ([status(422)], {}, "1 non_retryable_error failed format_error"),
    "58 unsupported": ([status(400, UNSUPPORTED)], {}, "1 non_retryable_error failed format_error"),
    "70 nothing to compact": ([overflow()], {}, "1 overflow_uncompressible failed context_overflow"),
    "73 compaction is off": ([overflow()], {"settings": {"compression": {"enabled": False}}},
        "1 compression_disabled failed context_overflow"),
    "no number": ([status(400, CAP)], {"settings": {"max_output_tokens": 100_000}},
                  "1 output_cap failed output_cap"),
    "a cap that leaves no room": ([status(400, CUT_OFF)], {},
        "1 overflow_uncompressible failed context_overflow"),
    "54 a bare 404": ([status(404, "Not Found")], {}, "1 non_retryable_error failed no_such_path"),
    "a refresh that is refused": ([status(401)], {"api_key": Refreshable(works=False)},
        "1 non_retryable_error failed auth"),
    "replies that are none": (repeat(json_reply({"choices": []})), {},
        "3 api_retries_exhausted failed invalid_response|no choices"),
    "aggregator": (repeat(drop()), {"model": "openrouter:some/model"},
                   "3 api_retries_exhausted failed timeout"),
}  # fmt: skip


@pytest.mark.behaviour("ERR-09", "CRED-04b", "ERR-19b", "ERR-20", "TR-01b")
@pytest.mark.parametrize("what", ENDS)
def test_what_ends_a_turn_and_after_how_many_requests(what: str) -> None:
    """Behind an aggregator no connection is rebuilt."""
    script, options, ends = ENDS[what]
    summary, _, words = ends.partition("|")
    played = play(script, **options)
    assert (played.summary, "rebuild" in rungs(played)) == (summary, False)
    assert words in (played.result.error or "")
    assert "/v1?" not in (played.result.final_response or ""), "the address has it"


@pytest.mark.behaviour("BACK-05", "ERR-25")
def test_d34_retry_after_is_honored_and_a_long_wait_says_what_it_waits_for() -> None:
    for code in (429, 503, 529):
        assert play([status(code, headers={"Retry-After": "7"}), text("ok")]).waits == [7.0]
    clock = FakeClock()
    date = formatdate(clock.now() + 90, usegmt=True)
    played = play([status(503, headers={"Retry-After": date}), text("ok")], clock=clock)
    assert sum(played.waits) == pytest.approx(90, abs=1)
    assert play([status(429, headers={"Retry-After": "0"}), text("ok")]).waits == []
    assert sum(play([status(429, headers={"Retry-After": "9999"}), text("ok")]).waits) == 600
    told = play([status(429, headers={"Retry-After": "90"}), text("ok")]).heard.of("status")
    assert "waiting 90 s: rate limit, attempt 2 of 3" in told
    assert any("still waiting" in line for line in told)


SPENT = status(429, error("You have reached your usage limit. Try again at 5 pm."))


@pytest.mark.behaviour("CRED-02", "ERR-06")
@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ([status(429), status(429), text("ok")], "k1 k1 k2"), ([status(402), text("ok")], "k1 k2"),
        ([SPENT, status(500), text("ok")], "k1 k2 k2"), (repeat(status(401)), "k1 k2 k3"),
    ],
    ids=["50 a limit by the minute is waited for once", "billing", "a limit of usage is not", "d54"],
)  # fmt: skip
def test_which_keys_are_asked(script: Any, asked: str) -> None:
    played = play(script, api_key=["k1", "k2", "k3"])
    assert played.keys == asked.split()
    if asked == "k1 k2 k2":
        assert len(played.waits) == 1
        assert "rate limit: the next key is used" in played.heard.of("status")


@pytest.mark.behaviour("CRED-04")
def test_48_a_401_refreshes_the_credential_once() -> None:
    source = Refreshable()
    played = play([status(401), text("ok")], api_key=source)
    assert (played.server.completions, source.refreshed) == (2, 1)
    assert (played.keys, played.waits) == (["old", "new-1"], [])


class Broken:
    """A source of keys that cannot be read."""

    def get(self) -> str:
        raise OSError("the vault is sealed")

    def refresh(self) -> bool:
        return False


def test_an_unreadable_key_and_a_failed_recovery_are_reported() -> None:
    played = play([status(401)], api_key=Broken())
    assert played.summary == "1 non_retryable_error failed auth"
    assert any("the vault is sealed" in line for line in played.heard.of("status"))
    result = Agent(ScriptedModel([status(401)]), api_key=["k1", Broken()], toolsets=[]).run_conversation("go")
    assert (result.turn_exit_reason, result.failure_class) == ("non_retryable_error", "auth")


@pytest.mark.behaviour("ERR-07")
def test_401_forever_refreshes_at_most_twice() -> None:
    source = Refreshable()
    played = play(repeat(status(401)), api_key=source)
    assert (played.server.completions, source.refreshed) == (3, 2)


@pytest.mark.behaviour("CRED-05")
def test_50_the_limited_key_rests_for_an_hour() -> None:
    script = [status(429), status(429), text("one"), text("two"), text("three")]
    with table(script, api_key=["k1", "k2"]) as (agent, server, clock, _):
        agent.chat("a")
        agent.chat("b")
        clock.advance(3601)
        agent.chat("c")
        keys = [request.headers["authorization"][-2:] for request in server.requests]
    assert keys == ["k1", "k1", "k2", "k2", "k1"]


def test_an_address_without_its_version_is_asked_once_and_the_hint_names_it() -> None:
    with WebReplies((404, "text/plain", b"404 page not found")) as server:
        result = Agent("openai:m", base_url=server.root, api_key="k", toolsets=[]).run_conversation("hi")
    assert (len(server.asked), result.failure_class) == (1, "no_such_path")
    advice = f"Check base_url: {server.root} has no chat completions API. Does the address lack /v1?"
    assert (result.final_response or "").endswith(advice)


def test_d06_a_dead_stream_costs_at_most_the_cap() -> None:
    played = play(repeat(empty_sse()))
    assert (played.outcome, played.result.attempts) == ("failed", played.server.completions)
    assert played.server.completions <= 9
    assert play(repeat(cut(""))).server.completions <= 12


@pytest.mark.behaviour("ERR-09", "ERR-22", "ERR-22b", "TR-01", "TR-02")
def test_61_dropped_connections() -> None:
    played = play(repeat(drop()))
    assert played.summary == "6 api_retries_exhausted failed timeout"
    assert "rebuild" in rungs(played)
    assert played.waits[2] == 6.0, "TR-02: min(3 + 3, 8) seconds after the rebuild"


def rungs(played: Any) -> list[str]:
    return [TURN.row(step.row).rung.split("/")[0] for step in played.steps]


def dies_after_its_headers(clock: FakeClock, replies: int) -> dict[str, Any]:
    """After the headers of the first ``replies`` replies, more time passes than a stream may be silent."""
    left = iter(range(replies))

    def thinking(on: bool) -> None:
        if not on and next(left, None) is not None:
            clock.advance(61)

    return {"settings": {"stale": {"stream": 60}}, "callbacks": {"thinking": thinking}}


@pytest.mark.behaviour("STR-01", "STR-01b", "ERR-09")
def test_66_a_silent_stream_is_killed_and_tried_again() -> None:
    clock = FakeClock()
    played = play([silence("headers"), text("ok")], clock=clock, **dies_after_its_headers(clock, 1))
    assert played.result.final_response == "ok"
    played = play(repeat(silence("headers")), clock=clock, **dies_after_its_headers(clock, 3))
    assert played.summary == "3 api_retries_exhausted failed stale"


@pytest.mark.slow
def test_66_a_request_that_is_killed_before_it_left_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with deaf_proxy(lambda: clock.advance(61), monkeypatch):
        options: dict[str, Any] = {"toolsets": [], "clock": clock, "settings": {"stale": {"stream": 60}}}
        with Agent("openai:m", base_url=BEHIND, api_key="k", **options) as agent:
            result = agent.run_conversation("go")
    found = (result.turn_exit_reason, result.failure_class, result.attempts)
    assert found == ("api_retries_exhausted", "stale", 0)


@pytest.mark.behaviour("STR-01b")
def test_66_silence_after_text_keeps_the_text() -> None:
    clock = FakeClock()
    heard = {"speech_delta": reads("Hello ", lambda: clock.advance(61))}
    options = {"callbacks": heard, "settings": {"stale": {"stream": 60}}}
    played = play([silence("Hello "), text("world")], clock=clock, **options)
    assert played.result.final_response == "Hello world"


@pytest.mark.slow
def test_66_the_breaker_opens_after_five_silent_requests() -> None:
    clock = FakeClock()
    options = dies_after_its_headers(clock, 5)
    with table(repeat(silence("headers")), clock=clock, **options) as (agent, server, *_):
        results = [agent.run_conversation("go") for _ in range(2)]
        assert server.completions == 5
        assert results[1].failure_class == "stale_breaker"


@pytest.mark.behaviour("ERR-08")
def test_81_rejected_reasoning_is_left_out_of_the_wire_only() -> None:
    message = "messages.1.content.0: Invalid `signature` in `thinking` block"
    thought = {"type": "reasoning.text", "text": "hm", "signature": "s"}
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "blocks": [thought]}]
    script = [status(400, error(message)), text("ok")]
    played = play(script, history=history, model="openrouter:some/model", api_key="k")
    assert played.server.completions == 2
    assert "reasoning_details" in played.server.bodies[0]["messages"][2]
    assert "reasoning_details" not in played.server.bodies[1]["messages"][2]
    assert played.result.messages[1]["blocks"][0]["signature"] == "s"


def test_82_a_grammar_error_strips_patterns_without_a_wait() -> None:
    @tool
    def find(word: Annotated[str, Field(pattern="^a+$")]) -> str:
        return word

    played = play([status(400, error("error parsing grammar: bad pattern")), text("ok")], tools=[find])
    assert played.server.completions == 2
    schemas = [
        body["tools"][0]["function"]["parameters"]["properties"]["word"] for body in played.server.bodies
    ]
    assert "pattern" in schemas[0]
    assert "pattern" not in schemas[1]
    assert played.waits == []


def test_an_output_cap_that_is_too_large_is_lowered() -> None:
    message = "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."
    played = play([status(400, error(message)), text("ok")], settings={"max_output_tokens": 100_000})
    assert played.server.bodies[1]["max_completion_tokens"] == 16384 - 64


@pytest.mark.behaviour("CALL-20", "BACK-03")
def test_a_malformed_chunk_and_an_error_in_a_200_are_failures_like_others() -> None:
    assert play([malformed_chunk(), text("ok")]).result.final_response == "ok"
    body = {"error": {"message": "something broke", "code": 500}}
    played = play([json_reply(body), text("ok")])
    assert played.result.final_response == "ok"
    assert 5 <= played.waits[0] <= 7.5, "BACK-03: a slower backoff for invalid replies"


@pytest.mark.behaviour("ERR-09b")
def test_every_attempt_is_a_record_and_an_event_of_the_same_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fsm_agent.composition.model_caller")
    played = play([status(503), text("ok")])
    events = [data for name, data in played.heard.of("event") if name == "model:attempt"]
    records = [record for record in caplog.records if record.name == "fsm_agent.composition.model_caller"]
    assert [record.levelname for record in records] == ["WARNING", "INFO"]
    for record, event in zip(records, events, strict=True):
        assert {name: getattr(record, name) for name in event} == event
        assert event["turn_id"] == played.result.turn_id
    failed, came = events
    assert (failed["outcome"], failed["failure_class"], failed["status"]) == ("failure", "overloaded", 503)
    assert (came["outcome"], came["attempt"], came["most"]) == ("reply", 2, 3)


SECRET = "Zx81-very-private-0123456789"


@pytest.mark.behaviour("ERR-09b")
def test_no_secret_is_in_a_record_of_an_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """In the address, in a header that is repeated, and in the body of the refusal."""
    caplog.set_level("INFO")
    refusal = status(401, error(f"bad key {SECRET} for X-Api-Key: {SECRET}"), headers={"X-Echo": SECRET})
    with ScriptedServer(repeat(refusal)) as server:
        address = server.url.replace("http://", f"http://user:{SECRET}@") + f"?key={SECRET}"
        heard: list[Any] = []
        callbacks = {name: lambda *values: heard.append(values) for name in ("status", "event")}
        with Agent("local:m", base_url=address, api_key=SECRET, toolsets=[], callbacks=callbacks) as agent:
            agent.run_conversation("go")
    ours = [record for record in caplog.records if record.name.startswith("fsm_agent")]
    said = repr([vars(record) | {"line": record.getMessage()} for record in ours]) + repr(heard)
    assert "failed after" in said
    assert SECRET not in said


def test_a_dead_address_is_reported_with_the_number_of_attempts() -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"callbacks": {"status": lines.append}, "clock": FakeClock()}
    with Agent("local:m", base_url="http://127.0.0.1:9/v1", toolsets=[], **options) as agent:
        result = agent.run_conversation("go")
    failed = [line for line in lines if "failed after" in line]
    assert failed
    assert all("127.0.0.1:9: the connection failed: " in line for line in failed)
    assert (result.attempts, result.tried) == (0, 6)
    assert (result.final_response or "").startswith("Nothing answers at http://127.0.0.1:9/v1 (6 tries)")
    assert "Is the server running?" in (result.final_response or "")


@pytest.mark.behaviour("LOOP-03", "LOOP-04")
def test_errors_between_tool_rounds_are_recovered_in_place() -> None:
    a, b = (tools(call("echo", {"text": text})) for text in "ab")
    script = [a, status(500), b, drop(), text("ok")]
    played = play(script)
    assert (played.roles, played.result.api_calls) == ("u a t a t a", 3)


def test_an_address_that_answers_with_a_web_page_is_named_with_what_to_do() -> None:
    page = "<!doctype html><html><title>Welcome to nginx!</title></html>"
    played = play([status(404, page)])
    text_ = played.result.final_response or ""
    assert "HTML page: Welcome to nginx" in text_
    assert f"Check that {played.server.url} speaks chat completions" in text_


@pytest.mark.behaviour("CALL-15")
def test_text_that_is_told_again_begins_with_a_mark() -> None:
    """The connection breaks inside a call, behind a text that was shown."""
    broken = cut("Let me look.", call("echo", {"text": "x" * 400}))
    played = play([broken, broken, tools(call("echo", {}), text="Let me look."), text("done")])
    shown = "".join(delta or "|" for delta in played.heard.of("stream_delta"))
    again = "\n\n[The reply broke off and begins again.]\n\n"
    assert shown == f"Let me look.{again}Let me look.{again}Let me look.|\n\ndone|"
    assert [row.get("content") for row in played.result.messages[1::2]] == ["Let me look.", "done"]
    whole = play([cut("Hello "), text("world")])
    assert again not in "".join(filter(None, whole.heard.of("stream_delta"))), "nothing is streamed twice"


@pytest.mark.behaviour("PREP-01", "BACK-04b")
def test_each_turn_has_retries_of_its_own_and_how_many_is_a_setting() -> None:
    with table([status(500), status(500), text("one"), status(500), status(500), text("two")]) as (agent, *_):
        assert [agent.chat("go"), agent.chat("go")] == ["one", "two"]
    for tries in (1, 5):
        assert play(repeat(status(500)), settings={"api_max_retries": tries}).server.completions == tries
