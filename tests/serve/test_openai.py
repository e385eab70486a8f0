"""The door of OpenAI's wires, asked by the official SDK in this process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import reduce
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types.responses import Response

from fsm_agent import Agent, tool
from fsm_agent.dispatch.service import SessionService
from fsm_agent.serve.keys import KeyRing
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.sessions.store.retention import remove
from fsm_agent.testing import ScriptedModel, call, silence, status, text, tools
from tests.serve.conftest import SETTINGS, TOKEN, WebClient
from tests.serve.openai_app import OSLO, City, add, pay

MODEL = "agent"
Talking = Callable[..., AbstractAsyncContextManager[AsyncOpenAI]]


CITY = OSLO.model_dump_json()


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


ADDS = (tools(call("add", {"a": 1, "b": 2}), text="Let me add."), text("It is 3."))
PAYS = (tools(call("pay", {"invoice": 7}), text="I pay."), text("It is paid."))


@pytest.fixture
def talking(store: Store, web: WebClient) -> Talking:
    """An SDK client of a service whose turns share one script: ``async with talking(text("hi")) as client``."""

    @asynccontextmanager
    async def made(*script: Any, key: str = TOKEN, **options: Any) -> AsyncIterator[AsyncOpenAI]:
        model = ScriptedModel(script)

        def make_agent() -> Agent[Any, Any]:
            given = {"toolsets": [], "settings": SETTINGS, "system_prompt": "You are a test.", **options}
            return Agent(model, tools=[add, fail, pay], **given)

        async with (
            SessionService(make_agent, store) as service,
            web(service, key=key) as http,
            AsyncOpenAI(
                api_key=key, base_url="http://127.0.0.1:8000/v1", http_client=http, max_retries=0
            ) as client,
        ):
            yield client

    return made


def user(words: str) -> list[Any]:
    return [{"role": "user", "content": words}]


def answered(request: str, approve: bool = True) -> Any:
    return [{"type": "mcp_approval_response", "approval_request_id": request, "approve": approve}]


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


# Responses


async def test_a_response_is_the_answer_of_a_turn(talking: Talking) -> None:
    async with talking(text("hello there")) as client:
        response = await client.responses.create(model=MODEL, input="hi", metadata={"ticket": "7"})
        again = await client.responses.retrieve(response.id)
    assert (response.output_text, response.status, response.model) == ("hello there", "completed", MODEL)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 5)
    assert response.output[0].phase == "final_answer"  # type: ignore[union-attr]
    assert response.metadata == {"ticket": "7"}
    assert again.to_dict() == response.to_dict()


async def test_what_the_wire_cannot_say_is_in_headers_and_one_field(talking: Talking) -> None:
    async with talking(*ADDS) as client:
        raw = await client.responses.with_raw_response.create(
            model=MODEL, input="1+2", temperature=0.3, store=False
        )
    response = raw.parse()
    facts = response.fsm_agent  # type: ignore[attr-defined]
    assert response.id == f"resp_{facts['turn']}"
    assert (facts["exit_reason"], facts["outcome"], facts["api_calls"]) == ("text_response", "completed", 2)
    assert [one["state"] for one in facts["states"]].count("CallLLM") == 2
    said = {
        name.removeprefix("x-fsm-agent-"): value for name, value in raw.headers.items() if "fsm-agent" in name
    }
    assert said == {
        "turn": facts["turn"], "session": facts["session"], "outcome": "completed",
        "exit-reason": "text_response", "ignored": "store, temperature",
    }  # fmt: skip


async def test_tools_of_the_server_are_shown_as_calls_that_are_not_the_clients(talking: Talking) -> None:
    script = tools(call("add", {"a": 1, "b": 2}), call("fail"), text="Let me add."), text("It is 3.")
    async with talking(*script) as client:
        response = await client.responses.create(model=MODEL, input="1+2")
    comment, added, failed, answer = response.output
    assert (comment.phase, answer.phase) == ("commentary", "final_answer")  # type: ignore[union-attr]
    assert response.output_text == "Let me add.\n\nIt is 3."
    assert (added.type, added.name, added.status, added.output) == ("mcp_call", "add", "completed", "3")  # type: ignore[union-attr]
    assert json.loads(added.arguments) == {"a": 1, "b": 2}  # type: ignore[union-attr]
    assert (failed.type, failed.status, failed.output) == ("mcp_call", "failed", None)  # type: ignore[union-attr]
    assert "no luck" in str(failed.error)  # type: ignore[union-attr]


async def test_a_stream_has_the_events_of_the_wire_and_comes_to_the_whole_response(talking: Talking) -> None:
    async with talking(*ADDS) as client:
        async with client.responses.stream(model=MODEL, input="1+2") as stream:
            told = [event async for event in stream]
            final = await stream.get_final_response()
        whole = await client.responses.retrieve(final.id)
    assert [event.sequence_number for event in told] == list(range(len(told)))
    once = [event.type for at, event in enumerate(told) if at == 0 or told[at - 1].type != event.type]
    message = [
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
    ]  # fmt: skip
    tool_call = [
        "response.output_item.added", "response.mcp_call.in_progress", "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done", "response.mcp_call.completed", "response.output_item.done",
    ]  # fmt: skip
    assert once == [
        "response.created", "response.in_progress", *message, *tool_call, *message, "response.completed",
    ]  # fmt: skip
    assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == final.output_text
    assert final.output_text == "Let me add.\n\nIt is 3."
    assert [item.to_dict() for item in whole.output] == [
        {name: value for name, value in item.to_dict().items() if name != "parsed"} for item in whole.output
    ]
    assert whole.output_text == final.output_text


async def test_events_of_the_engine_are_sent_to_a_client_that_asks_for_them(talking: Talking) -> None:
    async with talking(*ADDS, *ADDS) as client:
        asked = {"x-fsm-agent-events": "all"}
        stream = await client.responses.create(model=MODEL, input="1+2", stream=True, extra_headers=asked)
        told: list[Any] = [event async for event in stream]
        chat = await client.chat.completions.create(
            model=MODEL, messages=user("1+2"), stream=True, extra_headers=asked
        )
        chunks = [chunk async for chunk in chat]
    moves = [e.data["dest"] for e in told if e.type == "fsm_agent.transition"]
    assert moves[-1] == "Finalize"
    assert [e.sequence_number for e in told] == list(range(len(told)))
    assert all(chunk.choices or chunk.model_extra for chunk in chunks)
    assert "fsm_agent.transition" in [
        (chunk.model_extra or {}).get("fsm_agent", {}).get("type") for chunk in chunks
    ]


async def test_reasoning_is_shown_when_it_is_wanted(talking: Talking) -> None:
    script = tools(call("add", {"a": 1, "b": 2}), reasoning="I think."), text("It is 3.")
    async with talking(*script, *script) as client:
        quiet = await client.responses.create(model=MODEL, input="1+2")
        wanted = await client.responses.create(model=MODEL, input="1+2", reasoning={"summary": "auto"})
    assert kinds(quiet) == ["mcp_call", "message"]
    assert kinds(wanted) == ["reasoning", "mcp_call", "message"]
    assert wanted.output[0].summary[0].text == "I think."  # type: ignore[union-attr]


async def test_a_typed_answer_is_parsed_and_shown_once_it_fits(talking: Talking) -> None:
    async with talking(text('{"name": "Oslo"}'), text(CITY), text(CITY)) as client:
        async with client.responses.stream(model=MODEL, input="?", text_format=City) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            streamed = await stream.get_final_response()
        whole = await client.responses.parse(model=MODEL, input="?", text_format=City)
    assert json.loads("".join(deltas)) == json.loads(CITY)
    assert streamed.output_parsed == whole.output_parsed == OSLO
    assert streamed.text is not None
    assert streamed.text.format is not None
    assert streamed.text.format.type == "json_schema"


async def test_a_previous_response_is_the_session_that_goes_on(talking: Talking) -> None:
    async with talking(text("hello"), text("Ann"), text("again"), text("other")) as client:
        first = await client.responses.create(model=MODEL, input="I am Ann.")
        second = await client.responses.create(model=MODEL, input="Who am I?", previous_response_id=first.id)
        forked = await client.responses.create(model=MODEL, input="Who?", previous_response_id=first.id)
        newest = await client.responses.create(model=MODEL, input="And?", previous_response_id=second.id)
    sessions = [one.fsm_agent["session"] for one in (first, second, forked, newest)]  # type: ignore[attr-defined]
    assert sessions[0] == sessions[1] == sessions[3] != sessions[2]
    assert second.previous_response_id == first.id


async def test_a_session_that_was_compacted_goes_on(talking: Talking, store: Store) -> None:
    words = "words " * 2_000
    long: Any = [{"role": role, "content": words} for role in ("user", "assistant") * 8]
    async with talking(text("hello"), text("a summary"), text("Ann"), context_window=65_536) as client:
        first = await client.responses.create(
            model=MODEL, input=[*long, {"role": "user", "content": "I am Ann."}]
        )
        session = first.fsm_agent["session"]  # type: ignore[attr-defined]
        other = Agent(
            ScriptedModel([text("a summary")]), toolsets=[], store=store, home=store.home,
            settings={**SETTINGS, "compression": {"mode": "rotate"}},
            session_id=session, context_window=65_536,
        )  # fmt: skip
        assert await other.acompact() is not None
        await other.aclose()
        second = await client.responses.create(model=MODEL, input="Who am I?", previous_response_id=first.id)
    assert store.newest(session).id == second.fsm_agent["session"] != session  # type: ignore[attr-defined]


async def test_what_the_doors_keep_goes_with_the_session(talking: Talking, store: Store) -> None:
    def kept() -> set[tuple[str, str]]:
        with closing(sqlite3.connect(store.home / "sessions.db")) as file:
            return set(file.execute("SELECT extension, key FROM kept_values"))

    async with talking(text("one"), text("two")) as client:
        first = await client.responses.create(model=MODEL, input="hi")
        own = kept()
        await KeptValues(store, "notes").put(first.id.removeprefix("resp_"), "of an extension")
        second = await client.responses.create(model=MODEL, input="hello")
        assert len(own) == 2
        assert len(kept()) == 5
        session = store.database.select("SELECT session FROM turns ORDER BY began LIMIT 1")[0][0]
        await asyncio.to_thread(remove, store, [session], 0)
        assert not kept() & own
        assert len(kept()) == 3, "the other session's, and what an extension keeps, stay"
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)
        assert (await client.responses.retrieve(second.id)).output_text == "two"


async def test_items_of_earlier_responses_are_the_history(talking: Talking, store: Store) -> None:
    async with talking(*ADDS, text("Three.")) as client:
        first = await client.responses.create(model=MODEL, input="1+2")
        items = [{"role": "user", "content": "1+2"}, *(item.to_dict() for item in first.output)]
        items.append({"role": "user", "content": [{"type": "input_text", "text": "In words?"}]})
        second = await client.responses.create(model=MODEL, input=items, instructions="Be short.")
    rows = store.newest(second.fsm_agent["session"]).rows  # type: ignore[attr-defined]
    assert [row.role for row in rows] == [
        "user", "assistant", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert rows[3].text == "3"


async def test_an_approval_is_answered_by_the_words_of_the_wire(talking: Talking) -> None:
    async with talking(*PAYS) as client:
        waits = await client.responses.create(model=MODEL, input="Pay 7.")
        asked = waits.output[-1]
        assert (waits.status, asked.type, asked.name) == ("incomplete", "mcp_approval_request", "pay")  # type: ignore[union-attr]
        assert json.loads(asked.arguments) == {"invoice": 7}  # type: ignore[union-attr]
        assert [one["id"] for one in waits.fsm_agent["pending"]] == [asked.id]  # type: ignore[attr-defined]
        again = await client.responses.retrieve(waits.id)
        assert again.to_dict() == waits.to_dict()
        with pytest.raises(openai.BadRequestError, match=f"waits for {asked.id}"):
            await client.responses.create(model=MODEL, input="Well?", previous_response_id=waits.id)
        done = await client.responses.create(
            model=MODEL, input=answered(asked.id), previous_response_id=waits.id
        )
    assert (done.id, done.status) == (waits.id, "completed")
    assert kinds(done) == ["message", "mcp_approval_request", "mcp_call", "message"]
    assert done.output[2].output == "paid 7"  # type: ignore[union-attr]
    assert done.output_text == "I pay.\n\nIt is paid."


async def test_a_suspended_response_is_continued_in_a_stream(talking: Talking) -> None:
    async with talking(*PAYS) as client:
        stream = await client.responses.create(model=MODEL, input="Pay 7.", stream=True)
        told = [event async for event in stream]
        waits = told[-1].response  # type: ignore[union-attr]
        assert told[-1].type == "response.incomplete"
        answer = answered(waits.output[-1].id, approve=False)
        async with client.responses.stream(model=MODEL, input=answer, previous_response_id=waits.id) as rest:
            final = await rest.get_final_response()
    assert kinds(final) == ["message", "mcp_approval_request", "message"]


async def test_a_response_that_was_given_up_for_another_message_is_canceled(talking: Talking) -> None:
    async with talking(PAYS[0], text("Something else.")) as client:
        waits = await client.responses.create(model=MODEL, input="Pay 7.")
        other = await client.chat.completions.create(
            model=MODEL, messages=user("Something else?"),
            extra_headers={"x-fsm-agent-session": waits.fsm_agent["session"]},  # type: ignore[attr-defined]
        )  # fmt: skip
        assert other.choices[0].message.content == "Something else."
        given_up = await client.responses.retrieve(waits.id)
    assert (given_up.status, given_up.output_text) == ("cancelled", "I pay.\n\n")
    assert given_up.fsm_agent["outcome"] == "given_up"  # type: ignore[attr-defined]


async def test_a_response_runs_in_the_background_and_is_canceled(talking: Talking) -> None:
    running = asyncio.Event()
    async with talking(silence(on_request=lambda _: running.set())) as client:
        begun = await client.responses.create(model=MODEL, input="hi", background=True)
        assert begun.status == "in_progress"
        await running.wait()
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        canceled = await client.responses.cancel(begun.id)
    assert canceled.status == "cancelled"


async def test_a_client_that_comes_back_gets_each_event_once(talking: Talking) -> None:
    async with talking(*ADDS) as client:
        stream = await client.responses.create(model=MODEL, input="1+2", stream=True)
        told = [event async for event in stream]
        name = told[0].response.id  # type: ignore[union-attr]
        for last in (0, 5, len(told) - 2):
            rest = await client.responses.retrieve(name, stream=True, starting_after=last)
            assert [event.to_dict() async for event in rest] == [
                event.to_dict() for event in told[last + 1 :]
            ]


async def test_a_turn_that_failed_is_a_failed_response(talking: Talking) -> None:
    async with talking(status(401, "no key")) as client:
        response = await client.responses.create(model=MODEL, input="hi")
        assert (response.status, response.error.code) == ("failed", "server_error")


async def test_a_request_that_is_sent_again_with_its_idempotency_key_begins_nothing(talking: Talking) -> None:
    again = {"idempotency-key": "order 7"}
    async with talking(text("hello"), text("hello again")) as client:
        first = await client.responses.create(model=MODEL, input="hi", extra_headers=again)
        second = await client.responses.create(model=MODEL, input="hi", extra_headers=again)
    assert first.to_dict() == second.to_dict()


# Chat completions


async def test_a_completion_is_the_answer_of_a_turn(talking: Talking) -> None:
    async with talking(*ADDS) as client:
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=user("1+2"))
    completion = raw.parse()
    assert completion.choices[0].message.content == "It is 3."
    assert completion.choices[0].message.tool_calls is None
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 30
    assert completion.id == f"chatcmpl-{raw.headers['x-fsm-agent-turn']}"
    assert raw.headers["x-fsm-agent-exit-reason"] == "text_response"


async def test_a_stream_of_chunks_says_all_words_and_the_usage(talking: Talking) -> None:
    async with talking(*ADDS) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=user("1+2"), stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == "Let me add.\n\nIt is 3."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].fsm_agent["exit_reason"] == "text_response"  # type: ignore[attr-defined]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30


async def test_messages_are_the_history(talking: Talking, store: Store) -> None:
    messages: Any = [
        {"role": "system", "content": "Be short."}, {"role": "user", "content": "I am Ann."},
        {"role": "assistant", "content": "Hello Ann."}, {"role": "user", "content": "Who am I?"},
    ]  # fmt: skip
    async with talking(text("Ann."), text("Still Ann.")) as client:
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        session = raw.headers["x-fsm-agent-session"]
        await client.chat.completions.create(
            model=MODEL, messages=user("And now?"),
            extra_headers={"x-fsm-agent-session": session},
        )  # fmt: skip
    said = [row.text for row in store.newest(session).rows]
    assert said == ["I am Ann.", "Hello Ann.", "Who am I?", "Ann.", "And now?", "Still Ann."]


async def test_a_typed_completion_is_parsed(talking: Talking) -> None:
    async with talking(text(CITY), text("no JSON"), text(CITY)) as client:
        whole = await client.chat.completions.parse(model=MODEL, messages=user("?"), response_format=City)
        async with client.chat.completions.stream(
            model=MODEL, messages=user("?"), response_format=City
        ) as stream:
            streamed = await stream.get_final_completion()
    assert whole.choices[0].message.parsed == streamed.choices[0].message.parsed
    assert whole.choices[0].message.parsed == OSLO


async def test_a_completion_that_waits_says_so_in_words(talking: Talking) -> None:
    async with talking(*PAYS) as client:
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=user("Pay 7."))
        waits = raw.parse()
        turn, pending = raw.headers["x-fsm-agent-turn"], waits.fsm_agent["pending"][0]["id"]  # type: ignore[attr-defined]
        assert waits.choices[0].finish_reason == "length"
        assert waits.choices[0].message.content == f"[The turn waits for approval of pay ({pending}).]"
        assert raw.headers["x-fsm-agent-outcome"] == "suspended"
        answer = answered(pending)
        done = await client.responses.create(model=MODEL, input=answer, previous_response_id=f"resp_{turn}")
    assert done.output_text.endswith("It is paid.")


async def test_a_completion_of_a_turn_that_failed_is_an_error_that_is_not_retried(talking: Talking) -> None:
    messages: Any = user("hi")
    async with talking(status(401, "no key"), status(401, "no key")) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model=MODEL, messages=messages)
        assert failed.value.response.headers["x-should-retry"] == "false"
        assert failed.value.response.headers["x-fsm-agent-outcome"] == "failed"
        stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in stream]


# Models, and what is refused


async def test_the_models_are_the_agent(talking: Talking) -> None:
    async with talking() as client:
        assert [one.id async for one in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "fsm_agent"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-9")


MESSAGES = user("hi")
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
DEEP = reduce(lambda inner, _: {"type": "array", "items": inner}, range(180), {"type": "string"})
REFUSED = [
    ("responses", {"input": "hi", "model": "gpt-9"}, 404, "model_not_found", "allowed: agent"),
    ("responses", {"model": MODEL}, 400, "invalid_type", "input is neither"),
    ("responses", {"model": MODEL, "input": [{"role": "assistant", "content": "x"}]}, 400, "missing_message", "no message"),
    ("responses", {"model": MODEL, "input": [{"type": "item_reference", "id": "x"}]}, 400, "invalid_value", "item_reference"),
    ("responses", {"model": MODEL, "input": "hi", "tools": [FUNCTION]}, 400, "unsupported_parameter", "its own tools"),
    ("responses", {"model": MODEL, "input": "hi", "previous_response_id": "resp_no"}, 404, "not_found", "no such turn"),
    ("responses", {"model": MODEL, "input": "hi", "previous_response_id": "no"}, 404, "not_found", "no such response"),
    ("responses", {"model": MODEL, "input": "hi", "wat": 1}, 400, "unknown_parameter", "'wat'"),
    ("responses", {"model": MODEL, "input": "hi", "stream": "yes"}, 400, "invalid_type", "true or false"),
    ("responses",
     {"model": MODEL, "input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 3}}}},
     400, "invalid_json_schema", "not a JSON schema"),
    ("responses",
     {"model": MODEL, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}]},
     400, "invalid_value", "image"),
    ("chat/completions", {"model": MODEL, "messages": []}, 400, "invalid_type", "not a list of messages"),
    ("chat/completions", {"model": MODEL, "messages": [{"role": "assistant", "tool_calls": 3}, *MESSAGES]}, 400, "bad_request", "a list of calls"),
    ("chat/completions", {"model": MODEL, "messages": [{"role": "assistant", "tool_calls": [{}]}, *MESSAGES]}, 400, "bad_request", "not a tool call"),
    ("chat/completions", {"model": MODEL, "messages": MESSAGES, "n": 2}, 400, "unsupported_parameter", "allowed: 1"),
    ("chat/completions", {"model": MODEL, "messages": MESSAGES, "n": True}, 400, "unsupported_parameter", "allowed: 1"),
    ("chat/completions", {"model": MODEL, "messages": MESSAGES, "stream_options": {"include_usage": "no"}},
     400, "invalid_type", "include_usage is not true or false"),
    ("responses",
     {"model": MODEL, "input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}},
     400, "invalid_json_schema", "nested too deeply"),
    ("chat/completions", {"model": MODEL, "messages": MESSAGES, "stop": ["x"]}, 400, "unsupported_parameter", "stop"),
    ("chat/completions", {"model": MODEL, "messages": [{"role": "wizard"}]}, 400, "invalid_value", "allowed: system"),
    ("chat/completions", {"model": MODEL, "messages": MESSAGES, "tools": [FUNCTION]}, 400, "unsupported_parameter", "its own tools"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "code", "word", "said"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_used_is_refused_in_the_words_of_the_wire(
    talking: Talking, path: str, body: Any, code: int, word: str, said: str
) -> None:
    async with talking() as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.post(f"/{path}", body=body, cast_to=object)
    error: Any = refused.value.body
    assert (refused.value.status_code, error["code"], error["type"]) == (code, word, "invalid_request_error")
    assert said in error["message"]
    assert "Traceback" not in refused.value.response.text
    assert len(error["message"]) < 400


async def test_instructions_that_are_too_large_begin_nothing(talking: Talking, store: Store) -> None:
    async with talking(text("hello")) as client:
        with pytest.raises(openai.BadRequestError, match=r"instructions and text\.format are too large"):
            await client.responses.create(model=MODEL, input="hi", instructions="x" * 1_000_001)
    assert store.database.select("SELECT id FROM queued") == []


async def test_a_session_may_have_128_characters(talking: Talking) -> None:
    async def said(session: str, words: str) -> str:
        made = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": words}],
            extra_headers={"x-fsm-agent-session": session},
        )  # fmt: skip
        return str(made.choices[0].message.content)

    async with talking(text("hello"), text("again")) as client:
        assert [await said("s" * 128, words) for words in ("hi", "and?")] == ["hello", "again"]
        with pytest.raises(openai.BadRequestError, match=r"s{40}'…, 129 characters; allowed: up to 128"):
            await said("s" * 129, "hi")


async def test_a_session_that_is_none_is_named_in_the_refusal(talking: Talking) -> None:
    async with talking(text("hello")) as client:
        with pytest.raises(openai.BadRequestError, match="no id of a session: 'a b'"):
            await client.chat.completions.create(
                model=MODEL, messages=user("hi"),
                extra_headers={"x-fsm-agent-session": "a b"},
            )  # fmt: skip


async def test_a_body_that_is_no_json_or_is_huge_is_refused(talking: Talking) -> None:
    async with talking() as client:
        for content, code in (
            (b'{"model": ', 400),
            (b"[1]", 400),
            (b"[" * 200_000, 400),
            (rb'{"model": "agent", "input": "hi", "instructions": "\ud800"}', 400),
            (rb'{"model": "agent", "input": "hi", "\ud800": 1}', 400),
            (b'{"model": "agent", "input": "hi", "top_p": NaN}', 400),
            (b'{"model": "agent", "input": "hi", "temperature": -1e999}', 400),
            (b"x" * 17_000_000, 413),
        ):
            with pytest.raises(openai.APIStatusError) as refused:
                await client.post(
                    "/responses", content=content, cast_to=object,
                    options={"headers": {"content-type": "application/json"}},
                )  # fmt: skip
            assert (refused.value.status_code, refused.value.body["type"]) == (code, "invalid_request_error")


async def test_a_wrong_key_a_missing_scope_and_another_key_are_refused(
    talking: Talking, store: Store
) -> None:
    keys = KeyRing(store)
    _, reads = await keys.add("reads", ["read"])
    _, runs = await keys.add("runs", ["run"])
    async with talking(*PAYS) as client:
        mine = await client.responses.create(model=MODEL, input="Pay 7.")
    async with talking(key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model=MODEL, input="hi")
    async with talking(key=reads) as client:
        with pytest.raises(openai.PermissionDeniedError, match="scope run"):
            await client.responses.create(model=MODEL, input="hi")
    async with talking(*PAYS, key=runs) as client:
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(mine.id)
        waits = await client.responses.create(model=MODEL, input="Pay 7.")
        answer = answered(waits.output[-1].id)
        with pytest.raises(openai.PermissionDeniedError, match="scope approve"):
            await client.responses.create(model=MODEL, input=answer, previous_response_id=waits.id)
        assert (await client.responses.retrieve(waits.id)).status == "incomplete"
