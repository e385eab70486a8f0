"""A turn in the words of OpenAI's wires: what the SDK of the wire makes of the events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response
from pydantic import TypeAdapter

from fsm_agent import Agent
from fsm_agent.composition.model_caller import FROM_THE_START
from fsm_agent.conversation.result import ExitReason, TurnResult
from fsm_agent.dispatch.follow import Place, ServedEvent, event_at
from fsm_agent.runtime.events import (
    EventValues,
    InterimText,
    ReasoningText,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
)
from fsm_agent.serve.openai.chat import ChatTranslator, CompletionHead, finish_of
from fsm_agent.serve.openai.responses import STATUSES, ResponseHead, ResponseTranslator, error_of
from fsm_agent.testing import ScriptedModel, text

TURN, SESSION = "s-1-t1", "s-1"
TYPED = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


def at(place: str, values: EventValues, turn: str = TURN) -> ServedEvent:
    hop, _, rest = place.rpartition(":")
    one = event_at(Place.read(rest), turn, values, 0.0)
    return one._replace(id=place) if hop else one


def moved(place: str, dest: str) -> ServedEvent:
    return at(place, Transition(TURN, "CallLLM", "tools", dest, {}))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> TurnResult:
    """A result, whose fields tests change."""
    with Agent(ScriptedModel([text("It is 3.")]), home=tmp_path_factory.mktemp("home"), toolsets=[]) as agent:
        return agent.run_conversation("1+2")


def heard(*events: ServedEvent, result: TurnResult, **head: Any) -> Response:
    """The response that the SDK puts together of a stream, which it checks."""
    translator = ResponseTranslator(ResponseHead(TURN, SESSION, 0.0, "agent", **head))
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    sent = [*translator.begin(), *(one for event in events for one in translator.hear(event))]
    sent += translator.end(result)
    assert [one.sequence_number for one in sent] == list(range(len(sent)))  # type: ignore[attr-defined]
    for one in sent:
        TypeAdapter(type(one)).validate_python(json.loads(one.to_json()))
        state.handle_event(one)
    return translator.response


def shown(response: Response) -> list[tuple[str, str]]:
    """(type or phase, text or name) of each item."""
    items: list[Any] = list(response.output)
    return [
        (one.phase, one.content[0].text) if one.type == "message" else (one.type, getattr(one, "name", ""))
        for one in items
    ]


ADDS = [
    at("2.0-5.1", StreamDelta("Let me ")), at("2.0-5.2", StreamDelta("add.")), moved("3.0", "ExecuteTools"),
    at("3.1-5.1", StreamDelta(None)), at("3.2-5.1", InterimText("Let me add.")),
    at("3.4-5.1", ToolStart("c1", "add", {"a": 1})),
    at("3.4-5.2", ToolComplete("c1", "add", {"a": 1}, "3", "ok")), at("5.0-5.1", StreamDelta("\n\nIt is ")),
    at("5.0-5.2", StreamDelta("3.")), at("6.0-5.1", StreamDelta(None)),
]  # fmt: skip
WHOLE = [("commentary", "Let me add.\n\n"), ("mcp_call", "add"), ("final_answer", "It is 3.")]


SILENT = [one for one in ADDS if not isinstance(one.event.values, StreamDelta)]
JOURNAL = [
    at("2.0-0.1", StreamDelta("Let me add.")), at("2.0-0.2", StreamDelta(None)), moved("3.0", "ExecuteTools"),
    at("3.3-0.1", ToolStart("c1", "add", {"a": 1})), at("3.3-0.2", ToolComplete("c1", "add", {"a": 1}, "3", "ok")),
    at("5.0-0.1", StreamDelta("It is 3.")), at("5.0-0.2", StreamDelta(None)),
]  # fmt: skip
ANSWER = [("final_answer", "It is 3.")]
TOLD: dict[str, tuple[list[ServedEvent], list[tuple[str, str]]]] = {
    "words beside calls and the answer are two messages": (ADDS, WHOLE),
    "the journal tells the same": (JOURNAL, WHOLE),
    "a worker that streams nothing is shown all the same": (SILENT, WHOLE),
    "text that a dead process told is dropped": (
        [*ADDS[:7], at("5.0-5.1", StreamDelta("\n\nIt is f")), at("5.0", Voided("5.0")),
         at("5.0-9.1", StreamDelta("It is 3."))], WHOLE),
    "and told again": ([*ADDS[:4], at("2.0", Voided("2.0")), *ADDS], WHOLE),
    "text that the journal has stays when the rest is void": (
        [at("2.0-0.1", StreamDelta("It ")), at("3.0-7.1", StreamDelta("was")), at("3.0", Voided("3.0")),
         at("3.0-8.1", StreamDelta("is 3."))], ANSWER),
    "a call that runs while its process dies is one call": (
        [*ADDS[:6], at("3.2", Voided("3.2")), *ADDS[5:]], WHOLE),
    "an attempt that broke off is not in the output": (
        [at("2.0-5.1", StreamDelta("It is fo")), at("2.0-5.2", StreamDelta(FROM_THE_START + "It is 3."))], ANSWER),
    "an answer that a check changed takes the place of what was streamed": (
        [at("2.0-5.1", StreamDelta("A secret."))], ANSWER),
    "a conversation that is handed over is one response": (
        [at("2.0-5.1", StreamDelta("I pass you on.")), at("1:2.0-6.1", StreamDelta("It is 3."), "s-1-t2")],
        [("commentary", "I pass you on.\n\n"), *ANSWER]),
}  # fmt: skip


@pytest.mark.parametrize("what", TOLD)
def test_what_a_response_shows_of_the_events_of_a_turn(answered: TurnResult, what: str) -> None:
    events, items = TOLD[what]
    response = heard(*events, result=answered)
    assert shown(response) == items
    assert response.output_text == "".join(said for kind, said in items if kind != "mcp_call")


def test_words_beside_calls_that_turn_out_to_be_the_answer_are_not_said_twice(answered: TurnResult) -> None:
    said = answered.model_copy(update={"final_response": "Let me add."})
    assert [one[0] for one in shown(heard(*ADDS[:7], result=said))] == ["final_answer", "mcp_call"]


def test_a_typed_answer_is_the_only_text(answered: TurnResult) -> None:
    typed = answered.model_copy(update={"final_response": '{"a": 1}'})
    assert shown(heard(*ADDS, result=typed, format=TYPED)) == [
        ("mcp_call", "add"),
        ("final_answer", '{"a": 1}'),
    ]


def test_reasoning_is_an_item_when_it_is_wanted(answered: TurnResult) -> None:
    told = [
        at("2.0-5.1", ReasoningText("Hm. ")),
        at("2.0-5.2", ReasoningText("Well.")),
        at("2.0-5.3", StreamDelta("It is 3.")),
    ]
    wanted = heard(*told, result=answered, thoughts=True)
    assert shown(wanted) == [("reasoning", ""), ("final_answer", "It is 3.")]
    assert wanted.output[0].summary[0].text == "Hm. Well."  # type: ignore[union-attr]
    assert shown(heard(*told, result=answered)) == [("final_answer", "It is 3.")]


@pytest.mark.parametrize("reason", list(ExitReason))
def test_every_end_of_a_turn_has_a_status_and_a_last_event(answered: TurnResult, reason: ExitReason) -> None:
    ended = answered.model_copy(update={"turn_exit_reason": reason, "error": "why"})
    translator = ResponseTranslator(ResponseHead(TURN, SESSION, 0.0, "agent"))
    *_, last = [*translator.begin(), *translator.end(ended)]
    status = STATUSES[reason.outcome]
    assert translator.response.status == status
    assert last.type == f"response.{'incomplete' if status == 'cancelled' else status}"  # type: ignore[attr-defined]
    assert (translator.response.error is not None) == (status == "failed")
    if status == "failed":
        assert error_of(ended).message == "why"
    assert finish_of(ended) in ("stop", "length", "content_filter")


def chunks(*events: ServedEvent, result: TurnResult, **options: Any) -> str:
    translator = ChatTranslator(CompletionHead(TURN, SESSION, 0, "agent", **options))
    sent: list[Any] = [*translator.begin(), *(one for event in events for one in translator.hear(event))]
    sent += translator.end(result)
    return "".join(one.choices[0].delta.content or "" for one in sent if one.choices)


def test_chunks_say_the_words_beside_calls_and_the_answer(answered: TurnResult) -> None:
    assert chunks(*ADDS, result=answered) == "Let me add.\n\nIt is 3."
    assert chunks(*SILENT, result=answered) == "Let me add.\n\nIt is 3."
    assert chunks(*ADDS, result=answered, typed=True) == "It is 3."


def test_chunks_say_that_a_text_begins_again_unless_the_journal_has_it(answered: TurnResult) -> None:
    void, again = at("2.0", Voided("2.0")), at("2.0-9.1", StreamDelta("It is 3."))
    told = chunks(at("2.0-5.1", StreamDelta("It is f")), void, again, result=answered)
    assert told == f"It is f{FROM_THE_START}It is 3."
    kept = chunks(at("2.0-5.1", StreamDelta("It is 3.")), at("3.0", Voided("3.0")), result=answered)
    assert kept == "It is 3."
