"""Compaction inside a turn; and a window smaller than believed, with few big rows: the turn ends well
whenever prompt, tools and newest request fit alone.

There the server counts tokens itself and refuses what is over its window, summaries included. What is known
of the window beforehand is too much or nothing, and the refusal names it or not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm_agent import tool
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.stored_sessions import rename
from fsm_agent.testing import (
    FakeClock,
    ScriptedServer,
    blank,
    call,
    overflow,
    repeat,
    silence,
    status,
    text,
    tools,
)
from fsm_agent.testing.server import Received
from tests.helpers.harness import PARAGRAPH, Played, play, table, talk
from tests.helpers.wire_rules import anthropic_violations, responses_faults


@tool(effect="unsafe")
def flood(n: int = 1) -> str:
    """Give a lot of text."""
    return f"{n} words and more words\n" * 4_000


@pytest.mark.behaviour("ERR-12", "BACK-06", "COMP-04", "COMP-38")
def test_68_an_overflow_is_compacted_and_the_iteration_is_not_charged_again() -> None:
    script = [overflow(8192), text("the summary"), text("done")]
    played = play(script, history=talk(14), context_window=8192)
    assert (played.summary, played.result.api_calls) == ("3 text_response completed: done", 1)
    assert played.waits == [2.0], "BACK-06"
    sent = played.server.bodies[2]["messages"]
    assert any("the summary" in str(row["content"]) for row in sent)
    assert sent[-1]["content"] == "go"
    (metrics,) = played.result.compressions
    assert metrics["trigger"] == "overflow"
    assert metrics["tokens_after"] < metrics["tokens_before"]
    assert metrics["model"] == "gpt-x"


@pytest.mark.behaviour("COMP-04b")
def test_69_an_overflow_forever_ends_after_three_compactions() -> None:
    def reply(request: Any) -> Any:
        asks_for_summary = "<conversation>" in str(request.body["messages"][0]["content"])
        return text("summary") if asks_for_summary else overflow(8192)

    played = play(repeat(reply), history=talk(14), context_window=8192)
    assert played.server.completions <= 7
    assert played.summary.endswith("overflow_uncompressible failed context_overflow")


@pytest.mark.behaviour("PREP-13", "COMP-01", "COMP-01b", "COMP-21b", "COMP-19", "COMP-35")
def test_74_a_conversation_that_is_too_large_is_compacted_before_the_first_call() -> None:
    words = "please do exactly this: 17 things, in order"
    options: dict[str, Any] = {"history": talk(40), "context_window": 8192}
    played = play([text("the summary"), text("done")], words, **options)
    assert played.summary == "2 text_response completed: done"
    assert [step.event for step in played.steps][:4] == ["ready", "oversized", "unsummarized", "compressed"]
    assert "tools" not in played.server.bodies[0]
    assert played.server.bodies[1]["messages"][-1]["content"] == words
    assert store_for(str(played.agent.home)).archived(played.agent.session_id), "the rows are put aside"
    assert played.result.parent_session_id is None
    off = play([text("ok")], settings={"compression": {"enabled": False}}, **options)
    assert not off.result.compressions


@pytest.mark.behaviour("COMP-03", "COMP-03b")
def test_75_a_huge_result_is_compacted_before_the_next_send() -> None:
    script = [tools(call("flood", {"n": n})) for n in range(3)]
    settings = {
        "tool": {"max_result_chars": 1_000_000, "turn_result_chars": 1_000_000, "preview_chars": 90_000}
    }
    script += [text("a summary"), text("done"), text("done")]
    played = play(script, tools=[flood], context_window=64_000, settings=settings)
    assert played.result.final_response in ("done", "a summary")
    assert played.result.compressions


@pytest.mark.behaviour("COMP-26")
def test_a_summary_that_fails_is_made_without_a_model_when_the_provider_insists() -> None:
    played = play([overflow(8192), status(500), text("done")], history=talk(14), context_window=8192)
    assert played.result.final_response == "done"
    assert played.result.compressions[0]["fallback_used"]
    assert any("made without a model" in line for line in played.heard.of("status"))


@pytest.mark.behaviour("COMP-10", "COMP-26")
def test_comp_26_a_wish_is_dropped_when_the_network_is_down_and_rests() -> None:
    with table([status(429), text("one"), text("two")], context_window=8192) as (agent, server, _clock, _):
        first = agent.run_conversation("go", conversation_history=talk(40))
        assert first.final_response == "one"
        assert not first.compressions
        assert agent.run_conversation("again").final_response == "two", "resting: no second summary call"
        assert server.completions == 3


@pytest.mark.behaviour("COMP-21c", "COMP-24", "FB-07d")
def test_the_auxiliary_model_writes_the_summary_and_the_main_one_when_it_fails() -> None:
    for side, main, model in (
        ([text("from the small one")], [text("done")], "small"),
        ([status(503)], [text("from the main one"), text("done")], "gpt-x"),
    ):
        with ScriptedServer(side) as second:
            small = {"model": "openai:small", "base_url": second.url, "api_key": "k", "context_window": 4096}
            with table(main, context_window=8192, auxiliary=small) as (agent, first, _, _):
                result = agent.run_conversation("go", conversation_history=talk(40))
        assert (result.final_response, result.compressions[0]["model"]) == ("done", model)
        assert result.attempts == first.completions + second.completions
        assert len(str(second.bodies[0]["messages"])) < 4096 * 4, "the small window is respected"


@pytest.mark.behaviour("FB-07")
def test_auxiliary_models_are_tried_in_their_order() -> None:
    with ScriptedServer([status(503)]) as first, ScriptedServer([text("from two")]) as second:
        chain = [
            {"model": f"openai:{n}", "base_url": s.url, "api_key": "k"}
            for n, s in (("one", first), ("two", second))
        ]
        with table([text("done")], context_window=8192, auxiliary=chain) as (agent, main, _, _):
            result = agent.run_conversation("go", conversation_history=talk(40))
    assert result.compressions[0]["model"] == "two"
    assert (main.completions, first.completions, second.completions) == (1, 1, 1)


@pytest.mark.behaviour("COMP-35", "COMP-35b")
def test_comp_35_rotation_continues_in_a_child_session() -> None:
    settings, script = {"compression": {"mode": "rotate"}}, [text("the summary"), text("done"), text("more")]
    with table(script, context_window=8192, settings=settings) as (agent, *_):
        parent = agent.session_id
        result = agent.run_conversation("go", conversation_history=talk(40))
        assert (result.parent_session_id, result.final_response) == (parent, "done")
        assert result.session_id == agent.session_id != parent
        store = store_for(str(agent.home))
        assert store.session(parent).end_reason == "compression"
        assert store.session(agent.session_id).title == "go #2"
        again = agent.run_conversation("and")
        assert again.session_id == result.session_id
        assert [row["content"] for row in again.messages[-2:]] == ["and", "more"]


async def test_a_successor_takes_the_title_that_its_session_was_given_during_the_turn() -> None:
    settings, script = {"compression": {"mode": "rotate"}}, [text("the summary"), text("done")]
    with table(script, context_window=8192, settings=settings) as (agent, *_):
        turn = agent.start("go", conversation_history=talk(40))
        await turn.step()
        store = store_for(str(agent.home))
        rename(store, agent.session_id, "another name")
        assert store.session((await turn.arun()).session_id).title == "another name #2"


@pytest.mark.behaviour("COMP-08")
def test_comp_08_compactions_that_make_no_room_stop() -> None:
    with table(repeat(text("ok")), context_window=20_000) as (agent, server, _, _):
        for _ in range(4):
            agent.run_conversation("go " + "z" * 75_000)
        calls = server.completions
        agent.run_conversation("go " + "z" * 75_000)
        assert server.completions == calls + 1, "no compaction is tried any more"


@pytest.mark.behaviour("COMP-05")
def test_comp_05_a_person_can_ask_for_a_compaction_with_a_focus() -> None:
    with table([text("ok"), text("about the database"), text("done")]) as (agent, server, _, _):
        agent.run_conversation("go", conversation_history=talk(20))
        figures = agent.compact("the database")
        assert figures is not None
        assert figures["messages_after"] < figures["messages_before"]
        assert "60 to 70 % of the summary to this: the database" in str(server.bodies[1]["messages"])
        agent.chat("and now?")
        assert "about the database" in str(server.bodies[2]["messages"])
        assert len(server.bodies[2]["messages"]) < 35


def test_a_session_with_nothing_to_compact_says_so() -> None:
    with table([text("ok")]) as (agent, _, _, _):
        agent.chat("hi")
        assert agent.compact() is None
        assert agent.context_used < 0.01


def test_a_compaction_that_only_prunes_is_seen_by_the_next_turn() -> None:
    rounds: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for n in range(8):
        calls = [{"id": f"c{n}", "function": {"name": "echo", "arguments": "{}"}}]
        rounds += [{"role": "assistant", "content": None, "tool_calls": calls}]
        rounds += [{"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + PARAGRAPH * 4}]
    rounds += [{"role": "assistant", "content": "done"}]
    with table([text("one"), text("two")]) as (agent, server, _, _):
        agent.run_conversation("go", conversation_history=rounds)
        assert agent.compact() is not None
        agent.chat("next")
        assert server.completions == 2, "no summary was needed"
        assert len(str(server.bodies[1])) < len(str(server.bodies[0])) * 0.7


@pytest.mark.parametrize("window", [6144, pytest.param(8192, marks=pytest.mark.slow)])
def test_a_long_turn_of_many_rounds_ends(window: int) -> None:
    def reply(request: Any) -> Any:
        if "tools" not in request.body:
            return text("a summary of it")
        done = sum(row["role"] == "tool" for row in request.body["messages"])
        return text("finished") if done > 40 else tools(call("flood", {"n": done}))

    settings = {"max_iterations": 30}
    played = play(repeat(reply), tools=[flood], context_window=window, settings=settings)
    assert played.exit in ("text_response", "max_iterations_summary")
    assert played.result.compressions


@pytest.mark.parametrize("nonsense", ["silent", "blank", "reasoning"])
def test_a_summary_model_that_answers_nonsense_or_never_costs_nothing_but_the_summary(nonsense: str) -> None:
    clock = FakeClock()
    reply = {
        "silent": silence("connect", hook=lambda: clock.advance(61)),
        "blank": blank(),
        "reasoning": text("<think>hm, what a long conversation</think>"),
    }[nonsense]
    settings = {"stale": {"stream": 60}}
    given = {"clock": clock, "settings": settings, "context_window": 8192}
    played = play([reply, text("done")], history=talk(40), **given)
    assert played.summary == "2 text_response completed: done"
    assert any("gave no summary" in line for line in played.heard.of("status"))
    assert played.result.messages[-2]["content"] == "go"


@pytest.mark.behaviour("PREP-13")
def test_schemas_of_tools_fill_the_window_too() -> None:
    long = tool(note="Use it with care. " * 2_000, name="long")(lambda: "x")
    fits = {"history": talk(20), "context_window": 16_384}
    assert not play([text("done")], tools=[], **fits).result.compressions
    assert play([text("the summary"), text("done")], tools=[long], **fits).result.compressions


WIRES = ("openai:gpt-x", "openai-responses:gpt-x", "anthropic:claude-sonnet-4-5")
KINDS = ("user", "assistant", "result", "arguments")
MOST_REQUESTS = 7
"""Of one call block that is refused three times: four requests of the turn, and a summary before each but the
first. One more is asked for when the conversation is over the threshold before the first."""
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
    """A server with a window of ``tokens`` tokens. ``named``: do its refusals give that number?
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
    over = [figures["trigger"] for figures in played.result.compressions[:1]] == ["threshold"]
    assert played.server.completions <= MOST_REQUESTS + over
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
    look = tool(effect="pure", name="look")(lambda: words(7, chars))
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


SIZES = st.integers(1, 60).map(lambda number: number**2 * 10)
"""Characters of a row: 10 to 36,000."""


FIXED: dict[str, int] = {}


def fixed(model: str) -> int:
    """Characters of a request with nothing said in it."""
    if model not in FIXED:
        FIXED[model] = len(json.dumps(play([text("done")], model=model).server.bodies[0], ensure_ascii=False))
    return FIXED[model]


@pytest.mark.slow
@given(
    said=st.lists(st.tuples(st.sampled_from(KINDS), SIZES), min_size=1, max_size=5),
    asked=st.sampled_from([2, 800, 6_000]), model=st.sampled_from(WIRES), named=st.booleans(),
    believed=st.sampled_from([None, 16_000, 200_000]), density=st.sampled_from([2.0, 4.0]),
    room=st.integers(0, 20_000),
)  # fmt: skip
@example(
    said=[("user", 250), ("result", 14_440), ("user", 6_760), ("user", 24_010), ("result", 5_760)],
    asked=800, model="openai:gpt-x", named=False, believed=16_000, density=2.0, room=0,
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_turn_ends_well_whenever_the_newest_request_fits_alone(
    said: list[tuple[str, int]],
    asked: int,
    model: str,
    named: bool,
    believed: int | None,
    density: float,
    room: int,
) -> None:
    kinds, sizes = zip(*said, strict=True)
    history, message = rows(kinds, sizes), words(99, asked)
    tokens = int((fixed(model) + len(message) + SPARE + room) / density)
    window = Window(tokens, named=named, density=density)
    played = turn(window, history, message, model=model, context_window=believed)
    assert (played.exit, played.result.final_response) == ("text_response", "done")
    assert message in last_sent(played)
