"""Turns in every API mode: the turn does not know which wire it speaks, and may change it under way."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from fsm_agent import TurnResult
from fsm_agent.conversation.history import violations
from fsm_agent.testing import (
    ScriptedServer,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    drop,
    length,
    overflow,
    reasoning,
    repeat,
    silence,
    status,
    text,
    tools,
)
from fsm_agent.testing.wires import chat_rows, rows_key
from tests.helpers.harness import Interrupt, Played, Refreshable, play, reads, table, talk

MODELS = {
    "chat_completions": "openai:gpt-x",
    "codex_responses": "openai-responses:gpt-x",
    "anthropic_messages": "anthropic:gpt-x",
}
"""A provider for each mode. The others must do what the first does."""
WINDOW = 128_000
ECHO = tools(call("echo", {"text": "abc"}))


@dataclass(frozen=True)
class Scenario:
    """``script`` is what the provider answers, ``calls`` how often it is asked, ``end`` the reason the turn
    ends with."""

    script: Any
    calls: int
    end: str
    options: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def given(**options: Any) -> dict[str, Callable[[], Any]]:
    """Options of the agent or the turn; callables are called afresh for each turn."""
    return {
        name: value if callable(value) else functools.partial(lambda kept: kept, value)
        for name, value in options.items()
    }


SCENARIOS = {
    1: Scenario([text("hi")], 1, "text_response"),
    2: Scenario([ECHO, text("done")], 2, "text_response"),
    3: Scenario([tools(*(call("echo", {"text": t}) for t in "abc"), text="Three."), text("done")], 2,
                "text_response"),
    7: Scenario([tools(call("nope", {"a": 1})), ECHO, text("done")], 3, "text_response"),
    17: Scenario([cut_tool_call(), text("done")], 2, "text_response"),
    20: Scenario([length("part one "), text("part two.")], 2, "text_response"),
    24: Scenario([content_filter()], 1, "content_policy"),
    27: Scenario(repeat(blank()), 4, "empty_exhausted"),
    29: Scenario([ECHO, blank(), text("done")], 3, "text_response"),
    34: Scenario([reasoning("the answer is four"), text("four")], 2, "text_response"),
    38: Scenario(repeat(status(500)), 3, "api_retries_exhausted"),
    41: Scenario(repeat(status(429)), 3, "api_retries_exhausted"),
    48: Scenario([status(401), text("ok")], 2, "text_response", given(api_key=Refreshable)),
    53: Scenario([status(403)], 1, "non_retryable_error"),
    61: Scenario(repeat(drop()), 6, "api_retries_exhausted"),
    63: Scenario([cut("Hello wo"), text("rld")], 2, "text_response"),
    68: Scenario([overflow(8192), text("the summary"), text("done")], 3, "text_response",
                 given(history=talk(14), context_window=8192)),
    70: Scenario([overflow(8192)], 1, "overflow_uncompressible"),
    85: Scenario([ECHO, ECHO, ECHO, text("what I did")], 4, "max_iterations_summary",
                 given(settings={"max_iterations": 3})),
    92: Scenario([silence("Hello there")], 1, "interrupted_in_call", given(interrupted_after="Hello there")),
}  # fmt: skip
OWN = {"session_id", "turn_id", "task_id", "provider", "base_url"}
"""Fields of a result that name the turn or its provider."""


def play_in(mode: str, scenario: Scenario) -> Played:
    options = {"context_window": WINDOW, **{name: make() for name, make in scenario.options.items()}}
    options["settings"] = {"backoff": {"seed": 1}, **options.get("settings", {})}
    if words := options.pop("interrupted_after", None):
        interrupt = Interrupt()
        options |= {"before": interrupt.aim, "callbacks": {"speech_delta": reads(words, interrupt)}}
    return play(scenario.script, model=MODELS[mode], **options)


def told(played: Played) -> dict[str, Any]:
    """All that a user sees of a turn, without names, times, and what only the provider itself can read."""
    result = played.result.model_dump(mode="json", exclude=OWN)
    for name in ("states", "compressions"):
        result[name] = [
            {key: value for key, value in one.items() if key != "seconds"} for one in result[name]
        ]
    for row in result["messages"]:
        for name in ("blocks", "issuer"):
            row.pop(name, None)
        for made in row.get("tool_calls", ()):
            for name in ("call_id", "response_item_id"):
                made.pop(name, None)
    heard = played.heard
    return {
        "result": json.loads(_without_wording(json.dumps(result).replace(played.server.url, "URL"))),
        "shown": "".join(delta or "|" for delta in heard.of("stream_delta")),
        "thoughts": "".join(heard.of("reasoning")),
        "tools": sorted((values[1:] for values in heard.of("tool_complete")), key=repr),
        "named": heard.of("tool_gen"),
        "interim": heard.of("interim_assistant"),
        "waits": played.waits,
    }


TOO_LONG = re.compile(
    r"This model's maximum context length is 8192 tokens\. However, your messages resulted in 16384 tokens\. "
    r"Please reduce the length of the messages\.?|prompt is too long: 16384 tokens > 8192 maximum\.?"
)
NAMED = re.compile(r"API key of [\w-]+")


def _without_wording(dumped: str) -> str:
    """Each vendor has its own words for a prompt that is too long, and advice names the provider."""
    return NAMED.sub("API key of it", TOO_LONG.sub("(too long)", dumped))


@pytest.mark.behaviour("MODE-01b", "MODE-02", "MODE-02b", "MODE-02c")
@pytest.mark.parametrize("number", SCENARIOS)
def test_110_the_same_result_in_every_mode(number: int) -> None:
    scenario, tales = SCENARIOS[number], {}
    for mode in MODELS:
        played = play_in(mode, scenario)
        assert (played.server.completions, played.exit) == (scenario.calls, scenario.end)
        assert {request.path for request in played.server.requests} == {PATHS[mode]}
        tales[mode] = told(played)
    for mode, tale in tales.items():
        assert tale == tales["chat_completions"], mode


PATHS = dict(zip(MODELS, ("/v1/chat/completions", "/v1/responses", "/v1/messages"), strict=True))


@pytest.mark.behaviour("CALL-01")
@pytest.mark.parametrize("mode", MODELS)
def test_whole_replies_do_the_same(mode: str) -> None:
    def whole(request: Any) -> Any:
        return ECHO if len(chat_rows(request.body)) == 2 else text("done")

    refused = status(400, {"error": {"message": "Your organization must be verified to stream this model"}})
    with table([refused, whole, whole], model=MODELS[mode]) as (agent, server, _, _):
        result = agent.run_conversation("go")
        assert [body["stream"] for body in server.bodies] == [True, False, False]
    assert result.final_response == "done"
    assert [row["role"][0] for row in result.messages] == ["u", "a", "t", "a"]


# Changing the mode under way


@dataclass
class Both:
    """A primary of one mode and a fallback of another, both after their turns."""

    results: list[TurnResult]
    primary: ScriptedServer
    fallback: ScriptedServer


def change(first: str, second: str) -> Both:
    """A turn that goes over in its middle, and the next one, which is back."""
    thought = tools(call("echo", {"text": "abc"}), text="Let me see.", reasoning="hm")
    with ScriptedServer([tools(call("echo", {"text": "x"}), reasoning="so"), text("here")]) as fallback:
        entry = {"model": MODELS[second], "base_url": fallback.url, "api_key": "k2"}
        script = [thought, status(400), text("back")]
        with table(script, model=MODELS[first], fallbacks=[entry]) as (agent, primary, _, _):
            results = [agent.run_conversation("go"), agent.run_conversation("and now?")]
    assert not primary.overrun
    assert not fallback.overrun
    return Both(results, primary, fallback)


@pytest.mark.behaviour("MODE-02d")
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(MODELS, 2)))
def test_a_fallback_may_speak_another_wire_and_the_next_turn_is_back(first: str, second: str) -> None:
    both = change(first, second)
    assert [result.final_response for result in both.results] == ["here", "back"]
    assert [result.fallback_activated for result in both.results] == [True, False]
    assert [row["role"][0] for row in both.results[0].messages] == ["u", "a", "t", "a", "t", "a"]
    assert {request.path for request in both.primary.requests} == {PATHS[first]}
    assert {request.path for request in both.fallback.requests} == {PATHS[second]}
    for body in (*both.primary.bodies, *both.fallback.bodies):
        assert not violations(chat_rows(body))
    assert roles(both.fallback.bodies[0]) == "s u a t"
    assert roles(both.fallback.bodies[1]) == "s u a t a t"
    assert roles(both.primary.bodies[2]) == "s u a t a t a u"
    ids = [call["id"] for row in chat_rows(both.primary.bodies[2]) for call in row.get("tool_calls", ())]
    assert len(set(ids)) == 2
    assert private(both.primary.bodies[1]) == REPLAYED[first]
    assert private(both.fallback.bodies[0]) == 0, "what one provider thought is not told to another"
    assert private(both.fallback.bodies[1]) == REPLAYED[second]


REPLAYED = {"chat_completions": 0, "codex_responses": 1, "anthropic_messages": 1}
"""Reasoning of a tool round that goes back to the model that produced it."""


def private(body: Mapping[str, Any]) -> int:
    """How many thoughts are in a request."""
    keys = ("encrypted_content", "signature", "reasoning_content")
    return sum(json.dumps(body).count(f'"{key}": "') for key in keys)


def roles(body: Mapping[str, Any]) -> str:
    return " ".join(row["role"][0] for row in chat_rows(body))


@pytest.mark.behaviour("PREP-02", "PREP-02b")
@pytest.mark.parametrize("mode", MODELS)
def test_inv_11_each_request_begins_with_the_one_before(mode: str) -> None:
    """Byte for byte, over several rounds and turns, for a provider without cache marks."""
    rounds = [
        tools(call("echo", {"text": f"é{n}"}), call("put", {"key": "k"}), text=f"round {n}", reasoning="hm")
        for n in range(4)
    ]
    script = [*rounds, text("one"), ECHO, text("two"), text("three")]
    with table(script, model="local:gpt-x", api_mode=mode) as (agent, server, _, _):
        for message in ("first", "second", "third"):
            assert agent.run_conversation(message).completed
        requests = list(server.requests)
    for earlier, next_one in itertools.pairwise(requests):
        written, end = earlier.raw, end_of_rows(earlier.raw, earlier.body)
        assert next_one.raw.startswith(written[: end - 1]), "the list is longer and all before it is the same"


def end_of_rows(raw: bytes, body: Mapping[str, Any]) -> int:
    """Where the list that grows ends in a body."""
    key = rows_key(body)
    listed = json.dumps(body[key], ensure_ascii=False, separators=(",", ":")).encode()
    start = raw.index(b'"%s":' % key.encode()) + len(key) + 3
    assert raw[start : start + len(listed)] == listed
    return start + len(listed)
