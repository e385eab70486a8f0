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


def test_words_beside_calls_and_the_answer_are_two_messages(answered: TurnResult) -> None:
    assert shown(heard(*ADDS, result=answered)) == WHOLE


def test_the_journal_tells_the_same_response(answered: TurnResult) -> None:
    journal = [
        at("2.0-0.1", StreamDelta("Let me add.")), at("2.0-0.2", StreamDelta(None)),
        moved("3.0", "ExecuteTools"), at("3.3-0.1", ToolStart("c1", "add", {"a": 1})),
        at("3.3-0.2", ToolComplete("c1", "add", {"a": 1}, "3", "ok")), at("5.0-0.1", StreamDelta("It is 3.")),
        at("5.0-0.2", StreamDelta(None)),
    ]  # fmt: skip
    assert shown(heard(*journal, result=answered)) == WHOLE


def test_a_worker_that_streams_nothing_is_shown_all_the_same(answered: TurnResult) -> None:
    assert (
        shown(heard(*(one for one in ADDS if not isinstance(one.event.values, StreamDelta)), result=answered))
        == WHOLE
    )


def test_text_that_a_dead_process_told_is_dropped_and_told_again(answered: TurnResult) -> None:
    told = [*ADDS[:7], at("5.0-5.1", StreamDelta("\n\nIt is f")), at("5.0", Voided("5.0"))]
    assert shown(heard(*told, at("5.0-9.1", StreamDelta("It is 3.")), result=answered)) == WHOLE
    retold = [*ADDS[:4], at("2.0", Voided("2.0")), *ADDS]
    assert shown(heard(*retold, result=answered)) == WHOLE


def test_text_that_the_journal_has_stays_when_the_rest_is_void(answered: TurnResult) -> None:
    told = [at("2.0-0.1", StreamDelta("It ")), at("3.0-7.1", StreamDelta("was")), at("3.0", Voided("3.0"))]
    response = heard(*told, at("3.0-8.1", StreamDelta("is 3.")), result=answered)
    assert shown(response) == [("final_answer", "It is 3.")]


def test_a_call_that_runs_while_its_process_dies_is_one_call(answered: TurnResult) -> None:
    told = [*ADDS[:6], at("3.2", Voided("3.2")), *ADDS[5:]]
    assert shown(heard(*told, result=answered)) == WHOLE


def test_an_attempt_that_broke_off_is_not_in_the_output(answered: TurnResult) -> None:
    told = [at("2.0-5.1", StreamDelta("It is fo")), at("2.0-5.2", StreamDelta(FROM_THE_START + "It is 3."))]
    response = heard(*told, result=answered)
    assert shown(response) == [("final_answer", "It is 3.")]
    assert response.output_text == "It is 3."


def test_an_answer_that_a_check_changed_takes_the_place_of_what_was_streamed(answered: TurnResult) -> None:
    response = heard(at("2.0-5.1", StreamDelta("A secret.")), result=answered)
    assert shown(response) == [("final_answer", "It is 3.")]


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


def test_a_conversation_that_is_handed_over_is_one_response(answered: TurnResult) -> None:
    told = [at("2.0-5.1", StreamDelta("I pass you on.")), at("1:2.0-6.1", StreamDelta("It is 3."), "s-1-t2")]
    assert shown(heard(*told, result=answered)) == [
        ("commentary", "I pass you on.\n\n"),
        ("final_answer", "It is 3."),
    ]


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
    silent = [one for one in ADDS if not isinstance(one.event.values, StreamDelta)]
    assert chunks(*silent, result=answered) == "Let me add.\n\nIt is 3."
    assert chunks(*ADDS, result=answered, typed=True) == "It is 3."


def test_chunks_say_that_a_text_begins_again(answered: TurnResult) -> None:
    told = [
        at("2.0-5.1", StreamDelta("It is f")),
        at("2.0", Voided("2.0")),
        at("2.0-9.1", StreamDelta("It is 3.")),
    ]
    assert chunks(*told, result=answered) == f"It is f{FROM_THE_START}It is 3."


def test_chunks_of_a_text_that_the_journal_has_do_not_begin_again(answered: TurnResult) -> None:
    told = [at("2.0-5.1", StreamDelta("It is 3.")), at("3.0", Voided("3.0"))]
    assert chunks(*told, result=answered) == "It is 3."
