"""The door of AG-UI: the events of runs, by the protocol's models and its rules of order."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import pytest

pytest.importorskip("ag_ui")

from ag_ui.core import AgentCapabilities

from fsm_agent import tool
from fsm_agent.serve.keys import KeyRing
from fsm_agent.sessions.store import Store
from fsm_agent.testing import call, refusal, repeat, text, tools
from tests.dispatch.scene import Held
from tests.helpers.waiting import until_so
from tests.serve.agui_rules import checked, said, shown, state_of
from tests.serve.conftest import ANN, SETTINGS, MakeService, WebClient

SUSPENDS = SETTINGS | {"approval": {"unanswered": "suspend"}}


@tool(effect="pure")
def look(key: str) -> str:
    """Look."""
    return f"saw {key}"


@tool(effect="unsafe", approval="ask")
def wipe(path: str) -> str:
    """Wipe."""
    return f"wiped {path}"


def user(content: Any, name: str = "u1") -> dict[str, Any]:
    return {"id": name, "role": "user", "content": content}


async def run(
    client: httpx2.AsyncClient,
    *messages: dict[str, Any],
    thread: str = "th-1",
    run_id: str = "run-1",
    **more: Any,
) -> list[dict[str, Any]]:
    body = {"threadId": thread, "runId": run_id, "messages": list(messages), **more}
    answer = await client.post("/agui", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return checked(answer.text.splitlines())


async def test_a_message_is_answered_with_steps_state_and_a_tool(
    serving: MakeService, web: WebClient
) -> None:
    script = tools(call("look", {"key": "a"}, "c1"), text="let me look"), text("it **is** there")
    async with serving(*script, tools=[look]) as service, web(service) as client:
        events = await run(client, user("where is a?"))
    assert said(shown(events, [user("where is a?")])) == [
        "user: where is a?", "assistant: let me look", 'call: look {"key": "a"}', "tool: saw a", "assistant: it **is** there",
    ]  # fmt: skip
    steps = [one["stepName"] for one in events if one["type"] == "STEP_STARTED"]
    assert steps == [
        "Prepare", "BuildMessages", "CallLLM", "ExecuteTools", "BuildMessages", "CallLLM", "Finalize",
    ]  # fmt: skip
    state = state_of(events)
    assert (state["state"], state["status"], state["turn"]) == ("Finalize", "ended", "run-1")
    assert (state["moves"], state["counters"]["iterations"]) == (6, 2)
    assert (events[0]["protocolVersion"], events[-1]["outcome"]) == ("1.0", {"type": "success"})
    assert events[-1]["result"]["text"] == "it **is** there"


def wiping(body: dict[str, Any]) -> Any:
    """A call that is asked about, then words."""
    if body["messages"][-1]["role"] == "tool":
        return text("wiped it")
    return tools(call("wipe", {"path": "/x"}, "c1"), text="I wipe it")


WIPES = (repeat(wiping),)


async def test_an_approval_is_an_interrupt_that_another_server_resumes(
    serving: MakeService, web: WebClient
) -> None:
    async with serving(*WIPES, tools=[wipe], settings=SUSPENDS) as service, web(service) as client:
        first = await run(client, user("wipe x"))
    (asked,) = first[-1]["outcome"]["interrupts"]
    assert (asked["reason"], asked["toolCallId"]) == ("tool_call", "c1")
    assert "wipe wants to run" in asked["message"]
    assert [one["type"] for one in first[-3:]] == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    held = shown(first, [user("wipe x")])
    assert said(held) == ["user: wipe x", "assistant: I wipe it", 'call: wipe {"path": "/x"}']

    async with serving(*WIPES, tools=[wipe], settings=SUSPENDS) as service, web(service) as client:
        answers = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
        second = await run(client, *held, run_id="run-2", resume=answers)
        whole = said(shown(second, held))
        assert whole == [*said(held), "tool: wiped /x", "assistant: wiped it"]
        assert "TOOL_CALL_START" not in {one["type"] for one in second}
        assert (second[-1]["outcome"], second[-1]["runId"]) == ({"type": "success"}, "run-2")
        # the same request again shows the same once
        again = await run(client, *held, run_id="run-2", resume=answers)
        assert said(shown(again, held)) == whole


async def test_what_a_person_denies_does_not_run(serving: MakeService, web: WebClient) -> None:
    async with serving(*WIPES, tools=[wipe], settings=SUSPENDS) as service, web(service) as client:
        for number, entry in enumerate(
            ({"status": "resolved", "payload": {"approved": False}}, {"status": "cancelled"})
        ):
            thread = f"th-{number}"
            first = await run(client, user("wipe x"), thread=thread, run_id=f"a-{number}")
            (asked,) = first[-1]["outcome"]["interrupts"]
            events = await run(
                client, *shown(first, [user("wipe x")]), thread=thread, run_id=f"b-{number}",
                resume=[{"interruptId": asked["id"], **entry}],
            )  # fmt: skip
            (result,) = [one for one in events if one["type"] == "TOOL_CALL_RESULT"]
            assert result["metadata"] == {"status": "denied"}
            assert "wiped" not in result["content"]


async def test_input_that_answers_wrongly_is_refused_and_changes_nothing(
    serving: MakeService, web: WebClient
) -> None:
    async with serving(*WIPES, tools=[wipe], settings=SUSPENDS) as service, web(service) as client:
        first = await run(client, user("wipe x"))
        (asked,) = first[-1]["outcome"]["interrupts"]
        held = shown(first, [user("wipe x")])

        async def refused(code: str, *messages: dict[str, Any], **more: Any) -> str:
            body = {"threadId": "th-1", "runId": "run-9", "messages": list(messages), **more}
            answer = await client.post("/agui", json=body)
            assert (answer.json()["type"], answer.json()["code"]) == ("RUN_ERROR", code), answer.text
            return str(answer.json()["message"])

        def entry(name: str = asked["id"], **more: Any) -> list[dict[str, Any]]:
            return [{"interruptId": name, "status": "resolved", **more}]

        assert asked["id"] in await refused("interrupts_open", *held, user("and now?", "u2"))
        await refused("bad_request", *held, resume=entry(payload={"approved": "yes please"}))
        await refused("bad_request", *held, resume=entry(payload={"approved": True, "editedArgs": {}}))
        await refused("bad_request", *held, resume=entry(payload=None))
        await refused("not_found", *held, resume=entry("p-nothing", payload=True))
        await refused("bad_request", *held, resume=[{"interruptId": asked["id"], "status": "maybe"}])
        # a run without anything new tells what is waited for
        joined = await run(client, *held, run_id="run-8")
        assert joined[-1]["outcome"]["interrupts"] == [asked]
        assert said(shown(joined, held)) == said(held)


async def test_a_conversation_goes_on_and_is_joined(serving: MakeService, web: WebClient) -> None:
    async with serving(repeat(text("yes")), tools=[look]) as service, web(service) as client:
        first = await run(client, user("one"), run_id="r1")
        held = shown(first, [user("one")])
        second = await run(client, *held, user("two", "u2"), run_id="r2")
        assert "MESSAGES_SNAPSHOT" not in {one["type"] for one in first + second}
        whole = ["user: one", "assistant: yes", "user: two", "assistant: yes"]
        assert said(shown(second, [*held, user("two", "u2")])) == whole
        # a client that has nothing, one that lost the middle, and one that sends a run again
        assert said(shown(await run(client, run_id="r3"))) == whole
        assert said(shown(await run(client, user("two", "u2"), run_id="r2"))) == whole
        third = await run(client, user("three"), run_id="r4")
        assert said(shown(third, [user("three")])) == [*whole, "user: three", "assistant: yes"]
        assert len(service.load(ANN, "th-1")["turns"]) == 3


async def test_messages_that_the_session_has_not_are_loaded(serving: MakeService, web: WebClient) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Any:
        bodies.append(body)
        return text("fine")

    calls = [{"id": "k1", "type": "function", "function": {"name": "look", "arguments": '{"key": "q"}'}}]
    before = [
        {"id": "s", "role": "system", "content": "Be brief."},
        user("where is q?", "a"),
        {"id": "b", "role": "assistant", "toolCalls": calls},
        {"id": "c", "role": "tool", "toolCallId": "k1", "content": "saw q"},
        {"id": "d", "role": "assistant", "content": "there"},
    ]
    async with serving(repeat(answer), tools=[look]) as service, web(service) as client:
        context = [{"description": "the page", "value": "settings"}]
        events = await run(client, *before, user([{"type": "text", "text": "thanks"}], "e"), context=context)
        assert events[-1]["outcome"] == {"type": "success"}
        rows = [row for row in bodies[0]["messages"] if row["role"] != "system"]
        assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant", "user"]
        assert rows[2]["content"] == "saw q"
        assert "Be brief." in str(bodies[0])
        assert "settings" in str(bodies[0])
        assert [row["role"] for row in service.load(ANN, "th-1")["messages"]] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip


async def test_thoughts_are_told_to_those_who_ask(serving: MakeService, web: WebClient) -> None:
    async with serving(text("done", reasoning="let me think")) as service, web(service) as client:
        quiet = await run(client, user("hi"), thread="a", run_id="r1")
        told = await run(client, user("hi"), thread="b", run_id="r2", forwardedProps={"reasoning": True})
    assert not any(one["type"].startswith("REASONING") for one in quiet)
    pieces = [one["delta"] for one in told if one["type"] == "REASONING_MESSAGE_CONTENT"]
    assert "".join(pieces).strip() == "let me think"


async def test_a_turn_that_fails_is_the_protocols_error(serving: MakeService, web: WebClient) -> None:
    async with serving(repeat(refusal("no"))) as service, web(service) as client:
        events = await run(client, user("hi"))
    assert events[-1]["type"] == "RUN_ERROR"
    assert events[-1]["code"]
    assert events[-1]["message"]
    assert "Traceback" not in events[-1]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "threadId"), ({"threadId": "t", "runId": "r", "messages": 3}, 400, "messages"),
        ({"threadId": "t", "runId": "r", "messages": []}, 400, "no such thread"),
        ({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "poet", "content": ""}]}, 400, "messages"),
        ({"threadId": "../t", "runId": "r", "messages": [user("hi")]}, 400, "no id of a session"),
        ({"threadId": "t", "runId": "r r", "messages": [user("hi")]}, 400, "no id of a turn"),
        ({"threadId": "t", "runId": "r", "messages": [user(" ")]}, 400, "empty"),
        (
         {"threadId": "t", "runId": "r", "messages": [user("hi")], "tools": [{"name": "pick", "description": ""}]},
         400, "tools of the client are not supported: pick"),
        ({"threadId": "t", "runId": "r", "messages": [user("hi")], "resume": [{"interruptId": "p-1", "status": "resolved"}]}, 404, "nothing of this id"),
    ],
)  # fmt: skip
async def test_input_that_cannot_be_used_is_the_protocols_error(
    serving: MakeService, web: WebClient, body: dict[str, Any], status: int, words: str
) -> None:
    async with serving(text("no")) as service, web(service) as client:
        answer = await client.post("/agui", json=body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["message"]
        assert answer.json()["type"] == "RUN_ERROR"
        assert service.sessions(ANN) == []


async def test_a_delegated_task_is_a_subagent(serving: MakeService, web: WebClient) -> None:
    script = tools(call("delegate_task", {"goal": "find it"}, "d1")), text("found"), text("all done")
    async with serving(*script, toolsets=["delegate"]) as service, web(service) as client:
        events = await run(client, user("go"))
    (begun,) = [one for one in events if one["type"] == "SUBAGENT_STARTED"]
    assert (begun["name"], begun["description"], begun["parentToolCallId"]) == ("task", "find it", "d1")
    assert [one["type"] for one in events if one["type"].startswith("SUBAGENT")][-1] == "SUBAGENT_FINISHED"


async def test_the_page_and_what_it_needs_are_served(serving: MakeService, web: WebClient) -> None:
    async with serving(text("hi")) as service, web(service, key="") as stranger, web(service) as client:
        page = await stranger.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for part in re.findall(r'(?:href|src)="(/page/[^"]+)"', page.text):
            found = await stranger.get(part)
            assert found.status_code == 200, part
            assert (
                await stranger.get(part, headers={"if-none-match": found.headers["etag"]})
            ).status_code == 304
        assert (await stranger.get("/page/%2e%2e/agui.py")).status_code == 404
        assert (await stranger.get("/agui/about")).status_code == 401
        about = (await client.get("/agui/about")).json()
        assert "<svg" in about["map"]
        assert "CallLLM" in about["states"]
        assert AgentCapabilities.model_validate(about["capabilities"]).human_in_the_loop.interrupts
        blocks = (await client.post("/agui/markdown", json={"text": "*a* <b>"})).json()["blocks"]
        assert blocks[0]["parts"][0] == {"tag": "em", "parts": [{"text": "a"}]}


async def test_an_approval_needs_the_scope_and_threads_belong_to_keys(
    serving: MakeService, web: WebClient, store: Store
) -> None:
    keys = {
        name: (await KeyRing(store).add(name, scopes))[1]
        for name, scopes in (("ann", ["run"]), ("bob", ["run", "approve"]))
    }
    async with (
        serving(*WIPES, tools=[wipe], settings=SUSPENDS) as service,
        web(service, key=keys["ann"]) as ann,
        web(service, key=keys["bob"]) as bob,
    ):
        first = await run(ann, user("wipe x"))
        (asked,) = first[-1]["outcome"]["interrupts"]
        resume = [{"interruptId": asked["id"], "status": "resolved", "payload": True}]
        body = {"threadId": "th-1", "runId": "r2", "messages": [], "resume": resume}
        refused = await ann.post("/agui", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        for stranger in (body, {**body, "resume": [], "messages": [user("mine?")]}):
            hidden = await bob.post("/agui", json=stranger)
            assert (hidden.status_code, hidden.json()["code"]) == (404, "not_found")
        # it still waits
        assert (await run(ann, run_id="r3"))[-1]["outcome"]["interrupts"] == [asked]


async def test_another_message_while_a_turn_runs_is_refused(serving: MakeService, web: WebClient) -> None:
    held = Held()
    script = tools(call("put", {"key": "x"}, "c1")), text("done")
    async with serving(*script, tools=[held.tool]) as service, web(service) as client:
        turn = await service.start(ANN, "go", "th-1", turn_id="run-1")
        await until_so(lambda: bool(held.begun))
        body = {"threadId": "th-1", "runId": "run-2", "messages": [user("go"), user("me too", "u2")]}
        refused = await client.post("/agui", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        joined = asyncio.create_task(run(client, run_id="run-3"))
        again = asyncio.create_task(run(client, user("go"), run_id="run-1"))
        held.go.set()
        await service.result(ANN, turn)
        for events in (await joined, await again):
            assert said(shown(events)) == [
                "user: go", 'call: put {"key": "x"}', "tool: put x", "assistant: done",
            ]  # fmt: skip
            assert state_of(events)["moves"] == 6
