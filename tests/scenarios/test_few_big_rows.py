"""A window smaller than believed, and few big rows: the turn ends well whenever prompt, tools and newest
request fit alone.

The server counts tokens itself and refuses what is over its window, summaries included. What is known of the
window beforehand is too much or nothing, and the refusal names it or not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent import tool
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.testing import ScriptedServer, call, overflow, repeat, status, text, tools
from fsm_agent.testing.server import Received
from tests.helpers.harness import Played, play, table
from tests.helpers.wire_rules import anthropic_violations, responses_faults

WIRES = ("openai:gpt-x", "openai-responses:gpt-x", "anthropic:claude-sonnet-4-5")
KINDS = ("user", "assistant", "result", "arguments")
MOST_REQUESTS = 7
"""Of one call block that is refused three times: four requests of the turn, and a summary before each but the
first."""
SPARE = 3_000
"""Characters that a request may have beyond prompt, tools and the user's words: a short summary in its
frame."""


def words(number: int, chars: int) -> str:
    return (f"fact {number} of an earlier conversation; " * (chars // 30 + 1))[: chars - 1] + "."


def rows(kinds: Sequence[str], chars: Sequence[int]) -> list[dict[str, Any]]:
    """An earlier conversation, of one big row for each kind."""
    history: list[dict[str, Any]] = []
    for number, (kind, size) in enumerate(zip(kinds, chars, strict=True)):
        said = words(number, size)
        if kind in ("user", "assistant"):
            history.append({"role": kind, "content": said})
            continue
        given, result = ({"value": said}, "stored") if kind == "arguments" else ({"value": "x"}, said)
        function = {"name": "put", "arguments": json.dumps({"key": "k", **given})}
        history.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{number}", "function": function}]}
        )
        history.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return history


class Window:
    """A server with a window of so many tokens. ``named``: do its refusals say how many they are?
    ``density``: characters a token. ``script``: what it answers to what fits, else "done"; ``summary``: what
    it writes when it is asked for one."""

    def __init__(
        self,
        tokens: int,
        *,
        named: bool = True,
        density: float = 4,
        script: Sequence[Reply] = (),
        summary: int = 600,
    ) -> None:
        self.tokens, self.named, self.density = tokens, named, density
        self.script, self.summary = list(script), summary
        self.refused = 0

    def __call__(self, request: Received) -> Reply:
        sent = json.dumps(request.body, ensure_ascii=False)
        used = int(len(sent) / self.density)
        if used > self.tokens:
            self.refused += 1
            error = {"message": "the prompt is too long for this model", "code": "context_length_exceeded"}
            return overflow(self.tokens, used) if self.named else status(400, {"error": error})
        if "<conversation>" in sent:
            return text(words(0, self.summary))
        return self.script.pop(0) if self.script else text("done")


def turn(window: Window, history: list[dict[str, Any]], message: str = "go", **options: Any) -> Played:
    """A turn on that server; what holds of each is checked here and by ``play``."""
    played = play(repeat(window), message, history=history, **options)
    assert played.server.completions <= MOST_REQUESTS
    for body in played.server.bodies:
        if "input" in body:
            assert responses_faults(body["input"]) == []
        if "max_tokens" in body and "system" in body:
            assert anthropic_violations(body["messages"]) == []
    return played


def last_sent(played: Played) -> str:
    return json.dumps(played.server.bodies[-1], ensure_ascii=False)


EVERY = list(itertools.product((2, 3, 4, 5), KINDS, WIRES))
FAST = [one for one in EVERY if one[0] == 2 and (one[1] == "arguments" or one[2] == WIRES[0])]
"""Each kind on one wire, and the hardest on all."""


@pytest.mark.parametrize(
    ("number", "kind", "model"),
    [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in EVERY if one not in FAST)],
)
def test_few_big_rows_are_compacted_before_the_turn_gives_up(number: int, kind: str, model: str) -> None:
    window = Window(6_000)
    played = turn(window, rows([kind] * number, [20_000] * number), context_window=32_000, model=model)
    assert window.refused == 1, "what the refusal names is enough to go by"
    assert (played.exit, played.result.final_response) == ("text_response", "done")
    assert [figures["trigger"] for figures in played.result.compressions] == ["overflow"]
    assert '"go"' in last_sent(played)


@pytest.mark.parametrize("believed", [None, 200_000])
@pytest.mark.parametrize(
    "number", [2, 5, *(pytest.param(number, marks=pytest.mark.slow) for number in (3, 4))]
)
def test_a_refusal_that_names_no_window_is_met_step_by_step(number: int, believed: int | None) -> None:
    kinds = (["user", "assistant"] * 3)[:number]
    window = Window(4_000, named=False)
    played = turn(window, rows(kinds, [60_000] * number), context_window=believed)
    assert (played.exit, played.result.final_response) == ("text_response", "done")
    assert window.refused <= 3


def test_text_that_is_denser_than_thought_is_met_step_by_step() -> None:
    window = Window(9_000, named=True, density=1)
    played = turn(window, rows(["user", "assistant"], [9_000, 9_000]), context_window=32_000)
    assert played.exit == "text_response"


@pytest.mark.parametrize(("chars", "model"), [(30_000, WIRES[0]), *((60_000, model) for model in WIRES)])
def test_the_result_of_the_tool_just_called_is_cut_and_is_whole_in_a_file(chars: int, model: str) -> None:
    @tool(effect="pure")
    def look() -> str:
        return words(7, chars)

    window = Window(6_000, script=[tools(call("look")), text("seen")])
    limits = {"tool": {"max_result_chars": 1_000_000, "turn_result_chars": 1_000_000}}
    played = turn(window, [], tools=[look], settings=limits, model=model)
    assert (played.exit, played.result.final_response) == ("text_response", "seen")
    assert window.refused == 1
    sent = last_sent(played)
    assert sent.count("fact 7") > 50, "as much of it as there is room for"
    path = sent.split("the whole is in ")[1].split(".txt")[0] + ".txt"
    assert Path(path).read_text() == words(7, chars)
    stored = [row for row in played.result.messages if row["role"] == "tool"]
    assert stored[0]["content"] == words(7, chars), "the transcript keeps it whole"


def test_the_arguments_of_the_call_just_made_are_cut_to_arguments_that_are_valid() -> None:
    many = {str(number): "x" * 40 for number in range(600)}
    window = Window(6_000, script=[tools(call("put", {"key": "k", "value": json.dumps(many)}))])
    played = turn(window, [])
    assert played.exit == "text_response"
    (made,) = (row["tool_calls"][0] for row in played.server.bodies[-1]["messages"] if row.get("tool_calls"))
    assert len(made["function"]["arguments"]) < 8_000
    assert json.loads(made["function"]["arguments"])


def test_many_results_of_one_reply_go_into_the_summary_when_they_do_not_fit_cut() -> None:
    @tool(effect="pure", concurrency="parallel")
    def look(n: int) -> str:
        return words(n, 3_000)

    calls = [call("look", {"n": number}) for number in range(24)]
    window = Window(4_500, script=[tools(*calls), text("seen")], density=4)
    played = turn(window, [], tools=[look])
    assert (played.exit, played.result.final_response) == ("text_response", "seen")


def test_a_summary_longer_than_asked_for_is_shortened() -> None:
    window = Window(5_000, summary=60_000)
    played = turn(window, rows(["user", "assistant"], [20_000, 3_000]), context_window=32_000)
    assert (played.exit, window.refused) == ("text_response", 1)


def test_a_request_that_cannot_fit_ends_the_turn_and_leaves_the_conversation_as_it_was() -> None:
    window = Window(4_000)
    history = rows(["user", "assistant"], [3_000, 3_000])
    played = turn(window, history, words(9, 40_000), context_window=32_000)
    assert played.exit == "overflow_uncompressible"
    assert played.server.completions == 1, "the refusal counted the tokens: nothing was worth paying for"
    assert played.result.messages[: len(history)] == history


def test_a_wider_model_is_gone_to_before_the_conversation_is_cut_to_the_bone() -> None:
    window, wide = Window(6_000), ScriptedServer([text("here")])
    with wide:
        entry = {"model": "openai:wide", "base_url": wide.url, "api_key": "k", "context_window": 64_000}
        history = rows(["user", "assistant"], [20_000, 20_000])
        with table(repeat(window), context_window=32_000, fallbacks=[entry]) as (agent, _, _, _):
            result = agent.run_conversation("go", conversation_history=history)
    assert (result.final_response, result.compressions) == ("here", [])
    assert len(str(wide.bodies[0])) > 40_000


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], str]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    sizes = [draw(st.integers(1, 60)) ** 2 * 10 for _ in kinds]
    return rows(kinds, sizes), words(99, draw(st.sampled_from([2, 800, 6_000])))


FIXED: dict[str, int] = {}


def fixed(model: str) -> int:
    """Characters of a request with nothing said in it."""
    if model not in FIXED:
        FIXED[model] = len(json.dumps(play([text("done")], model=model).server.bodies[0], ensure_ascii=False))
    return FIXED[model]


@pytest.mark.slow
@given(
    conversation=conversations(),
    model=st.sampled_from(WIRES),
    named=st.booleans(),
    believed=st.sampled_from([None, 16_000, 200_000]),
    density=st.sampled_from([2.0, 4.0]),
    room=st.integers(0, 20_000),
)
@settings(max_examples=40, deadline=None)
def test_a_turn_ends_well_whenever_the_newest_request_fits_alone(
    conversation: tuple[list[dict[str, Any]], str],
    model: str,
    named: bool,
    believed: int | None,
    density: float,
    room: int,
) -> None:
    history, message = conversation
    tokens = int((fixed(model) + len(message) + SPARE + room) / density)
    window = Window(tokens, named=named, density=density)
    played = turn(window, history, message, model=model, context_window=believed)
    assert (played.exit, played.result.final_response) == ("text_response", "done")
    assert message in last_sent(played)
