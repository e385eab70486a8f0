"""Replies that are cut, blank, refused, incomplete, or only reasoning; and the one plain line that a person
reads about each recovery."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.conversation.messages import ToolCall
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing import (
    Reply,
    ScriptedModel,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    json_reply,
    length,
    no_finish,
    overflow,
    reasoning,
    refusal,
    repeat,
    status,
    text,
    tools,
)
from tests.helpers.harness import Played, play, table, talk
from tests.helpers.wire_rules import exchange

WISH = tools(call("put", {"key": "a"}), text="I will store it.")
ENDS: dict[str, tuple[Any, str]] = {
    "24 a filter": ([content_filter()], "1 content_policy failed content_policy"),
    "24 a refusal": ([refusal("I cannot help with that")], "1 content_policy failed content_policy"),
    "a note beside real text": ([content_filter("here it is")], "1 text_response completed: here it is"),
    "blank once": ([blank(), text("ok")], "2 text_response completed: ok"),
    "text beside real tools": ([WISH, blank(), text("ok")], "3 text_response completed: ok"),
    "35 reasoning forever": (repeat(reasoning("hm")), "6 empty_exhausted failed empty_reply"),
    "63 cut after text": ([cut("Hello wo"), text("rld")], "2 text_response completed: Hello world"),
    "no finish reason": ([no_finish("Hello wo"), text("rld")], "2 text_response completed: Hello world"),
    "an open scratchpad": (repeat(text("<scratchpad>thinking")), "3 scratchpad_incomplete partial"),
}


@pytest.mark.behaviour("EMPTY-02", "EMPTY-04")
@pytest.mark.parametrize("what", ENDS)
def test_how_a_reply_that_is_no_answer_ends(what: str) -> None:
    script, summary = ENDS[what]
    played = play(script)
    assert played.summary == summary
    if played.outcome == "completed":
        shown = "".join(delta for delta in played.heard.of("stream_delta") if delta)
        assert shown.endswith(played.result.final_response or ""), "nothing is shown twice"


@pytest.mark.behaviour("RESP-05")
def test_20_a_cut_answer_is_continued_and_stored_as_one() -> None:
    played = play([length("part one "), text("part two.")])
    assert (played.summary, played.roles) == ("2 text_response completed: part one part two.", "u a")
    assert played.result.messages[1]["content"] == "part one part two."
    again = played.server.bodies[1]["messages"]
    assert (again[-2], again[-1]["role"]) == ({"role": "assistant", "content": "part one"}, "user")


@pytest.mark.behaviour("RESP-05", "RESP-08")
def test_21_cut_forever_names_the_true_number_and_the_caps_grow() -> None:
    played = play(repeat(length("abc ")))
    assert (played.summary, played.result.final_response) == ("4 length_exhausted partial", "abc " * 4)
    assert "after 3 continuations" in (played.result.error or "")
    caps = [body.get("max_completion_tokens") for body in played.server.bodies]
    assert caps == [None, 8192, 16384, 32768]


def test_d46_fragments_end_where_a_tool_round_starts() -> None:
    played = play([length("abc"), tools(call("echo", {})), text("done.")])
    assert (played.result.final_response, played.result.messages[1]["content"]) == ("done.", "abc")


def test_23_reasoning_that_ate_the_output_is_not_retried() -> None:
    played = play([length("<think>abc")])
    assert played.summary == "1 thinking_budget_exhausted partial"
    assert "max_output_tokens" in (played.result.final_response or "")


@pytest.mark.behaviour("EMPTY-07")
def test_27_blank_forever() -> None:
    played = play(repeat(blank()))
    assert played.summary == "4 empty_exhausted failed empty_reply"
    assert "empty replies" in (played.result.final_response or "")
    assert played.roles == "u a"
    assert not played.result.messages[1]["wire"]


@pytest.mark.behaviour("EMPTY-03")
def test_29_a_nudge_after_tools_leaves_no_trace() -> None:
    played = play([tools(call("echo", {"text": "a"})), blank(), text("done")])
    assert (played.server.completions, played.roles) == (3, "u a t a")
    nudged = played.server.bodies[2]["messages"]
    assert [row["role"] for row in nudged[-2:]] == ["assistant", "user"]
    assert "tool results above" in nudged[-1]["content"]


def test_d11_a_blank_first_reply_of_a_new_turn_is_not_told_that_it_ran_tools() -> None:
    history = [row.to_dict() for row in exchange(ToolCall("c1", "echo", "{}"))]
    played = play([blank(), text("ok")], history=history)
    assert [step.event for step in played.steps if step.source == "EmptyRecovery"] == ["nothing"]


@pytest.mark.behaviour("EMPTY-02")
def test_32_text_beside_housekeeping_is_the_answer_when_nothing_follows() -> None:
    plan = call("todo", {"todos": [{"id": "a", "content": "rest", "status": "completed"}]})
    played = play([tools(plan, text="All is done: 42."), blank()], tools=[], toolsets=["todo"])
    assert played.summary == "2 prior_content_used completed: All is done: 42."
    assert played.result.response_previewed


@pytest.mark.behaviour("FIN-16", "USE-02")
def test_d04_usage_of_every_reply_is_counted() -> None:
    played = play([blank(), reasoning("b"), length("a "), text("c")])
    assert (played.server.completions, played.result.total_tokens) == (4, 4 * 15)


@pytest.mark.behaviour("RESP-14")
def test_announcements_are_told_to_act_when_switched_on() -> None:
    on = {"continuation": {"acks_enabled": True}}
    played = play([text("Let me check the files first."), tools(call("echo", {})), text("done")], settings=on)
    assert (played.result.final_response, played.roles) == ("done", "u a t a")
    announced = [text("Let me check the files first.")]
    assert play(announced).result.final_response == "Let me check the files first."
    off = play(announced, model="openai-responses:gpt-x", settings={"continuation": {"acks_enabled": False}})
    assert off.result.final_response == "Let me check the files first."
    script = [*announced, tools(call("echo", {})), text("done")]
    assert play(script, model="openai-responses:gpt-x").result.final_response == "done"


def test_blank_then_an_error_then_text() -> None:
    played = play([tools(call("echo", {})), blank(), status(500), text("ok")])
    assert played.result.final_response == "ok"
    last_two = [body["messages"][-1]["content"] for body in played.server.bodies[2:]]
    assert last_two[0] == last_two[1], "a retry sends the nudge again"


ACKS = {"continuation": {"acks_enabled": True}}
ANNOUNCEMENT = "I'll look at the files now."


def with_fallback(script: list[Any], *backups: Any, **options: Any) -> tuple[Played, list[ScriptedModel]]:
    ports = [ScriptedModel([backup]) for backup in backups]
    options["fallbacks"] = [{"model": port} for port in ports]
    with table(script, **options) as (agent, server, clock, heard):
        turn = agent.start("go")
        return Played(turn.run(), server, agent, clock, heard, turn.steps), ports


def test_a_fallback_continues_a_partial_answer() -> None:
    played, (port,) = with_fallback([length("part one "), status(429)], text("part two"))
    assert played.result.final_response == "part one part two"
    assert port.requests[0]["messages"][-2]["content"] == "part one"


@pytest.mark.parametrize(
    ("script", "settings", "answer", "roles"),
    [
        ([text(ANNOUNCEMENT), tools(call("echo")), text("Found it.")], {}, "Found it.", "u a t a"),
        ([length("I'll look at "), text(ANNOUNCEMENT), text("Found it.")], {}, "Found it.", "u a"),
        ([text(ANNOUNCEMENT)] * 3, {}, ANNOUNCEMENT, "u a"),
    ],
    ids=["before a call", "in two pieces", "all there is"],
)
def test_an_announcement_is_the_answer_only_when_nothing_follows(
    script: Any, settings: Any, answer: str, roles: str
) -> None:
    played = play(script, settings=ACKS | settings)
    assert (played.exit, played.result.final_response, played.roles) == ("text_response", answer, roles)


def test_an_announcement_is_not_the_answer_of_a_turn_that_ran_tools_since() -> None:
    settings = {**ACKS, "max_iterations": 2, "budget": {"grace_call": False}}
    played = play([text(ANNOUNCEMENT), tools(call("echo"))], settings=settings)
    assert played.exit == "budget_exhausted"
    assert ANNOUNCEMENT not in str(played.result.final_response)


@pytest.mark.parametrize("budget", [None, 10])
def test_a_chain_that_names_one_model_twice_uses_it_once(budget: int | None) -> None:
    port, shared = ScriptedModel([blank()] * 3), None if budget is None else IterationBudget(budget)
    options = {"fallbacks": [{"model": port}, {"model": port}], "settings": {"empty": {"retries": 0}}}
    with table([blank()], budget=shared, **options) as (agent, _, _, _):
        result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("empty_exhausted", 2)
    assert shared is None or shared.used == 2


def test_what_an_overflow_taught_of_the_window_survives_a_change_of_keys() -> None:
    history = [{"role": role, "content": f"{n} " * 400} for n in range(8) for role in ("user", "assistant")]
    too_long = status(400, {"error": {"message": "Input is too long for requested model."}})
    wider = [{"model": ScriptedModel([text("ok")] * 9), "context_window": 5_000}]
    script = [overflow(3_000), status(402), *[too_long] * 9]

    def reply(request: Any) -> Any:
        return script.pop(0) if "tools" in request.body else text("a summary")

    options = {"api_key": ["k1", "k2"], "context_window": 100_000, "fallbacks": wider}
    with table(repeat(reply), **options) as (agent, *_):
        turn = agent.start("go", conversation_history=history)
        turn.run()
        events = [step.event for step in turn.steps if step.source == "ClassifyError"]
    assert events[:3] == ["overflow", "bad_key", "outgrown"]


RESPONSES = {"model": "openai-responses:gpt-5"}


def said(words: str, phase: str | None = None) -> dict[str, Any]:
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": phase}
    return {**message, "content": [{"type": "output_text", "text": words, "annotations": []}]}


def response(*output: dict[str, Any]) -> Reply:
    return json_reply({"status": "completed", "model": "gpt-5", "output": list(output)})


def played(script: Any) -> Played:
    return play(script, **RESPONSES)


def inputs(one: Played, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = one.server.bodies[number]["input"]
    return rows


@pytest.mark.behaviour("RESP-11")
def test_an_incomplete_reply_is_kept_and_an_answer_asked_for() -> None:
    one = played([Reply(text="Looking at it.", finish="incomplete"), text("It is 4.")])
    assert (one.result.final_response, one.exit, one.roles) == ("It is 4.", "text_response", "u a")
    kept, nudge = inputs(one, 1)[-2:]
    assert (kept["role"], kept["content"]) == ("assistant", "Looking at it.")
    assert "incomplete" in nudge["content"]
    assert "".join(delta for delta in one.heard.of("stream_delta") if delta) == "Looking at it.\n\nIt is 4."

    one = played([Reply(finish="incomplete"), text("It is 4.")])
    (nudge,) = inputs(one, 1)
    assert nudge["role"] == "user", "with nothing to keep there is only the nudge"
    assert "incomplete" in nudge["content"]


def test_incomplete_forever_is_a_partial_result_with_the_last_text() -> None:
    one = played([Reply(text="Some of it.", finish="incomplete"), *[Reply(finish="incomplete")] * 3])
    assert (one.summary, one.result.final_response) == ("4 responses_incomplete partial", "Some of it.")


@pytest.mark.behaviour("FMT-09")
def test_narration_is_never_the_answer() -> None:
    answer = response(said("Still looking.", "commentary"), said("Four."))
    one = played([response(said("I look into it.", "commentary")), answer])
    assert (one.server.completions, one.result.final_response) == (2, "Four.")
    assert one.result.messages[-1]["content"] == "Four."


def test_narration_beside_calls_is_reported_and_its_phase_goes_back() -> None:
    function = {"type": "function_call", "call_id": "c", "name": "echo", "arguments": "{}"}
    one = played([response(said("I look into it.", "commentary"), function), text("Four.")])
    assert one.heard.of("interim_assistant") == ["I look into it."]
    sent = {"type": "message", "role": "assistant", "content": "I look into it.", "phase": "commentary"}
    assert inputs(one, 1)[1] == sent


@pytest.mark.behaviour("FMT-10")
def test_a_call_that_was_leaked_as_text_is_neither_run_nor_shown_as_an_answer() -> None:
    one = played([text('to=functions.echo {"text": "x"}'), tools(call("echo", {"text": "x"})), text("Done.")])
    assert (one.server.completions, one.result.final_response, one.roles) == (3, "Done.", "u a t a")
    assert "to=functions" not in str(inputs(one, 1))


def test_rejected_encrypted_reasoning_is_left_out_of_the_wire_only() -> None:
    error = {"message": "The encrypted content could not be verified.", "code": "invalid_encrypted_content"}
    refused = status(400, {"error": error})
    one = played([tools(call("echo", {}), reasoning="a"), refused, text("Four.")])
    assert "reasoning" in [item["type"] for item in inputs(one, 1)]
    assert "reasoning" not in [item["type"] for item in inputs(one, 2)]
    assert one.result.messages[1]["blocks"][0]["encrypted_content"] == "sealed-1"


HALF_JSON = tools(call("echo", '{"text": nope]}'))
REFUSED = {"error": {"message": "max_tokens is too large. This model supports at most 4096 output tokens"}}
RAISE = "raise the output cap: max_output_tokens"
BATCH = tools(call("echo", {"text": "a"}), call("echo", {"text": "b"}), call("put", {"key": "k"}))
IN_A_ROW = tools(call("put", {"key": "a"}), call("put", {"key": "b"}))
SETTINGS: dict[str, dict[str, Any]] = {
    "a cut reply": {"max_output_tokens": 500},
    "the last iteration": {"max_iterations": 1},
    "arguments that are not JSON": {"invalid_json_retries": 1},
    "an output cap that is too large": {"max_output_tokens": 99_999},
}
TODO, ONE_CALL = tools(call("todo", {}), text="All is done."), tools(call("echo", {"text": "a"}))
UNKNOWN = tools(call("nothing_like_it", {}))
SAID: dict[str, tuple[list[Any], str]] = {
    "a batch": ([BATCH, text("ok")], "3 tool calls, up to 2 at the same time"),
    "a batch in a row": ([IN_A_ROW, text("ok")], "2 tool calls, one after the other"),
    "a cut reply": ([length("half"), text(" rest")],
        f"the reply was cut off: continued (1 of 3) with 1,000 tokens; {RAISE}, now 500"),
    "a cut call": ([cut_tool_call(), text("ok")],
        f"a tool call was cut off and not run: asked again (1 of 4) with 8,192 tokens; {RAISE}"),
    "a reply that broke off": ([cut("half"), text(" rest")], "the reply was cut off: continued (1 of 3)"),
    "a blank reply": ([blank(), text("ok")], "an empty reply: asked again (1 of 3)"),
    "text before a blank": ([TODO, blank()],
        "an empty reply: the text beside the last tool calls is the answer"),
    "text that was streamed before a blank": (
        [length("half"), blank()],
        f"the reply was cut off: continued (1 of 3) with 8,192 tokens; {RAISE}\n"
        "an empty reply: the text that was shown before is the answer",
    ),
    "the last iteration": (
        [ONE_CALL, text("so far")],
        "the limit of 1 iterations is reached: a summary is asked for; raise max_iterations for longer tasks\n"
        "the summary came: the task may be unfinished, another message continues it",
    ),
    "arguments that are not JSON": (
        [HALF_JSON, HALF_JSON, text("ok")],
        "the arguments of a call are not JSON: asked again (1 of 1)\n"
        "the arguments of a call are still no JSON: the model reads why",
    ),
    "an unknown tool": ([UNKNOWN, text("ok")],
        "the model's calls cannot be run: asked again with the reasons (1 of 2)"),
    "an output cap that is too large": ([status(400, REFUSED), text("ok")],
        "sent again with at most 4,032 output tokens; lower max_output_tokens to be spared this"),
}  # fmt: skip


def recoveries(played: Played) -> list[str]:
    """The lines, without those of attempts and waits."""
    lines = played.heard.of("status")
    assert not any("\n" in line for line in lines)
    return [line for line in lines if "failed after" not in line and not line.startswith("waiting")]


@pytest.mark.behaviour("FIN-02", "ERR-29", "RESP-08b", "EMPTY-01", "EMPTY-01b", "EMPTY-02b", "EXEC-17b")
@pytest.mark.parametrize("what", SAID)
def test_each_recovery_has_one_plain_line(what: str) -> None:
    script, lines = SAID[what]
    assert recoveries(play(script, settings=SETTINGS.get(what, {}))) == lines.split("\n")


@pytest.mark.behaviour("COMP-38b")
def test_a_compaction_says_what_it_gained() -> None:
    played = play([text("a summary"), text("done")], history=talk(60), context_window=16_384)
    begun, gained = recoveries(played)
    (metrics,) = played.result.compressions
    assert begun.startswith("the window fills up: ")
    assert gained == (
        f"compacted: {metrics['messages_before']} → {metrics['messages_after']} messages, about"
        f" {metrics['tokens_before']:,} → {metrics['tokens_after']:,} tokens"
    )


@pytest.mark.behaviour("COMP-38b")
def test_a_compaction_that_gains_nothing_says_so() -> None:
    played = play([overflow(8192)], history=[], context_window=8192)
    assert recoveries(played)[0] == "compacting gained nothing: what is left must stay as it is"


@pytest.mark.behaviour("COMP-08b")
def test_two_compactions_without_gain_announce_a_pause() -> None:
    with table(repeat(overflow(8192)), context_window=8192) as (agent, _server, _clock, heard):
        for _ in range(3):
            agent.run_conversation("go")
    off = [line for line in heard.of("status") if line.startswith("automatic compaction is off")]
    assert off == [
        "automatic compaction is off: the last 2 compactions did not make room; off until a reply shows that there"
        " is some, or compact by hand (/compact), or begin a new session"
    ]
