"""The agent as an MCP server, asked by the official SDK's client in this process, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import ElicitResult, TextContent, TextResourceContents, jsonrpc_message_adapter

from fsm_agent import Agent, ImagePart, tool
from fsm_agent.dispatch.service import SessionService
from fsm_agent.serve.called_tools import choose_tools, with_called_tools
from fsm_agent.serve.mcp import TASKS, AgentServer
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.toolsets.memory import SkillShelf
from tests.helpers.waiting import until_so
from tests.serve.conftest import SETTINGS

ERAS = ("legacy", "auto")
"""The handshake of 2025, and the protocol of July 2026."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAID: list[int] = []


@tool(effect="pure", approval="never")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="ask")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    PAID.append(invoice)
    return f"paid {invoice}"


@tool
def picture() -> Any:
    """A picture."""
    return [{"type": "text", "text": "a pixel"}, ImagePart(f"data:image/png;base64,{PIXEL}")]


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError("no disk")


@tool(effect="pure")
async def wait(path: str) -> str:
    """Wait for a file."""
    while not Path(path).exists():
        await asyncio.sleep(0)
    return "it is there"


OWN = [add, pay, picture, fail, wait]


@asynccontextmanager
async def served(store: Store, *script: Any, chosen: list[str] | None = None) -> AsyncIterator[AgentServer]:
    """An agent with these replies and ``OWN`` tools, and its server."""
    names = [one.spec.name for one in OWN] if chosen is None else chosen

    model = ScriptedModel(script)

    def make(order: Any = None) -> Agent[Any, Any]:
        return Agent(model, toolsets=["clarify"], tools=OWN, settings=SETTINGS, home=store.home)

    async with SessionService(with_called_tools(make, names), store, name="tester") as service:
        with make() as agent:
            found = choose_tools(agent, names)
        yield AgentServer(service, found)


class Wire:
    """A client that sends what it likes: the SDK's has no tasks. ``told``: the notifications."""

    def __init__(self, to_server: Any, from_server: Any) -> None:
        self._to, self._from, self._number = to_server, from_server, 0
        self.told: list[dict[str, Any]] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result; raises ``MCPError``."""
        self._number += 1
        raw = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._to.send(SessionMessage(jsonrpc_message_adapter.validate_python(raw, by_name=False)))
        while True:
            answer = (await self._from.receive()).message.model_dump(by_alias=True, mode="json")
            if answer.get("id") != self._number:
                self.told.append(answer["params"])
            elif "error" in answer:
                raise MCPError(answer["error"]["code"], answer["error"]["message"])
            else:
                return dict(answer["result"])


@asynccontextmanager
async def wired(server: AgentServer) -> AsyncIterator[Wire]:
    to_server, incoming = anyio.create_memory_object_stream[Any](10)
    outgoing, from_server = anyio.create_memory_object_stream[Any](1_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, incoming, outgoing, server.create_initialization_options())
        wire = Wire(to_server, from_server)
        hello = {"capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
        assert "tasks" in (await wire.ask("initialize", protocolVersion=TASKS, **hello))["capabilities"]
        yield wire
        tasks.cancel_scope.cancel()
    for stream in (to_server, incoming, outgoing, from_server):
        stream.close()


class Person:
    """Answers forms with these values, and keeps what was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = [*answers]
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        answer = self._answers.pop(0)
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=answer)


def words(result: Any) -> str:
    return "".join(one.text for one in result.content if isinstance(one, TextContent))


@pytest.mark.parametrize("era", ERAS)
async def test_the_agent_answers_and_continues_its_session(store: Store, era: str) -> None:
    moves: list[str | None] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        moves.append(message)

    script = [tools(call("add", {"a": 2, "b": 3})), text("It is 5."), text("Still 5.")]
    async with served(store, *script, chosen=[]) as server, Client(server, mode=era) as client:
        listed = (await client.list_tools()).tools
        assert [one.name for one in listed] == ["ask"]
        told = await client.call_tool("ask", {"message": "2 + 3?"}, progress_callback=heard)
        assert (told.is_error, words(told)) == (False, "It is 5.")
        assert told.structured_content is not None
        again = {"message": "And again?", "session": told.structured_content["session"]}
        second = await client.call_tool("ask", again)
        assert second.structured_content is not None
        assert second.structured_content["session"] == told.structured_content["session"]
        assert second.structured_content["turn"] != told.structured_content["turn"]
    assert moves[0] == "Prepare → BuildMessages"
    assert "runs add" in moves
    assert (moves[-1] or "").endswith("→ Finalize")


@pytest.mark.parametrize("era", ERAS)
async def test_sessions_are_resources(store: Store, era: str) -> None:
    async with served(store, text("It is 5."), chosen=[]) as server, Client(server, mode=era) as client:
        assert (await client.list_resources()).resources == []
        await client.call_tool("ask", {"message": "2 + 3?"})
        [first] = (await client.list_resources()).resources
        assert first.title == "2 + 3?"
        [template] = (await client.list_resource_templates()).resource_templates
        assert str(first.uri) == template.uri_template.replace("{session}", first.name)
        [read] = (await client.read_resource(str(first.uri))).contents
        assert isinstance(read, TextResourceContents)
        told = json.loads(read.text)
        assert [row["content"] for row in told["messages"]] == ["2 + 3?", "It is 5."]
        for wrong in ("session://s-none", "session://", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="no such"):
                await client.read_resource(wrong)


@pytest.mark.parametrize("era", ERAS)
async def test_chosen_tools_are_called_under_the_agents_rules(store: Store, era: str) -> None:
    PAID.clear()
    person = Person({"decision": "once"}, {"decision": "deny"}, None, {"decision": "yes, always"})
    async with (
        served(store) as server,
        Client(server, mode=era, elicitation_callback=person.elicit) as client,
    ):
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert [*listed] == ["ask", "add", "pay", "picture", "fail", "wait"]
        assert listed["add"].input_schema["required"] == ["a", "b"]
        assert listed["add"].annotations is not None
        assert listed["add"].annotations.read_only_hint
        assert words(await client.call_tool("add", {"a": 2, "b": 3})) == "5"
        assert not person.asked
        pixel = await client.call_tool("picture", {})
        assert [one.type for one in pixel.content] == ["text", "image"]
        assert (await client.call_tool("fail", {})).is_error
        wrong = await client.call_tool("add", {"a": "two"})
        assert wrong.is_error
        assert "b" in words(wrong)
        # what needs an approval is asked of the client; anything but a clear yes is a no
        assert words(await client.call_tool("pay", {"invoice": 7})) == "paid 7"
        assert "pay wants to run" in person.asked[0]
        assert "invoice = 7" in person.asked[0]
        for _ in range(3):
            refused = await client.call_tool("pay", {"invoice": 8})
            assert refused.is_error
            assert "denied" in words(refused).lower()
        assert len(person.asked) == 4
    assert PAID == [7]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_be_asked_is_refused_with_the_reason(store: Store, era: str) -> None:
    PAID.clear()
    script = [tools(call("pay", {"invoice": 9})), text("Paid.")]
    async with served(store, *script) as server, Client(server, mode=era) as client:
        refused = await client.call_tool("pay", {"invoice": 8})
        assert refused.is_error
        assert words(refused) == (
            "Refused: approval of pay is needed, and this client cannot be asked (it has no elicitation)."
        )
        waits = await client.call_tool("ask", {"message": "Pay 9."})
        assert waits.is_error
        assert "waits for approval of pay (p-" in words(waits)
        ended = "SELECT outcome FROM turns WHERE id LIKE 'tool-%' AND ended IS NOT NULL"
        await until_so(lambda: store.database.select(ended) == [("completed",)], "the end of it")
    assert not PAID


@pytest.mark.parametrize("era", ERAS)
async def test_questions_of_the_agent_are_asked_of_the_client(store: Store, era: str) -> None:
    script = [tools(call("clarify", {"question": "Which invoice?"})), text("Thank you.")]
    person = Person({"answer": "number 7"})
    async with (
        served(store, *script) as server,
        Client(server, mode=era, elicitation_callback=person.elicit) as client,
    ):
        assert words(await client.call_tool("ask", {"message": "Pay."})) == "Thank you."
    assert person.asked == ["Which invoice?"]


async def test_what_cannot_be_done_is_the_protocols_own_error(store: Store) -> None:
    async with served(store, text("hi")) as server, Client(server) as client:
        with pytest.raises(MCPError, match="Unknown tool: nothing"):
            await client.call_tool("nothing", {})
        for arguments, why in (
            ({}, "'message' is a required property"),
            ({"message": ""}, "message: "),
            ({"message": 3}, "message: 3 is not of type 'string'"),
            ({"message": "hi", "authority": "root"}, "'authority' was unexpected"),
            ({"message": "hi", "session": "no such/session"}, "no id of a session"),
            ({"message": "x" * 8_000_001}, "the message is too long"),
        ):
            refused = await client.call_tool("ask", arguments)
            assert refused.is_error, arguments
            assert why in words(refused)
        assert words(await client.call_tool("ask", {"message": "Still there?"})) == "hi"


async def test_a_turn_is_a_task_with_progress_and_can_be_canceled(store: Store) -> None:
    there = store.home / "there"
    call = {"name": "wait", "arguments": {"path": str(there)}, "task": {}, "_meta": {"progressToken": "p1"}}
    async with served(store) as server, wired(server) as wire:
        task = (await wire.ask("tools/call", **call))["task"]
        assert (task["status"], task["ttl"]) == ("working", None)
        other = (await wire.ask("tools/call", **call))["task"]["taskId"]
        assert (await wire.ask("tasks/cancel", taskId=other))["status"] == "cancelled"
        there.touch()
        result = await wire.ask("tasks/result", taskId=task["taskId"])
        assert result["content"][0]["text"] == "it is there"
        assert result["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}
        assert (await wire.ask("tasks/get", taskId=task["taskId"]))["status"] == "completed"
        await wire.ask("tasks/result", taskId=other)
        assert (await wire.ask("tasks/get", taskId=other))["status"] == "cancelled"
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            with pytest.raises(MCPError, match="no such turn"):
                await wire.ask(method, taskId="another")
        with pytest.raises(MCPError, match="the task has ended: completed"):
            await wire.ask("tasks/cancel", taskId=task["taskId"])
        with pytest.raises(MCPError, match="Unknown tool"):
            await wire.ask("tools/call", name="nothing", task={})
    assert "runs wait" in [one.get("message") for one in wire.told]


async def test_a_call_that_the_client_gives_up_ends_its_turn(store: Store) -> None:
    call = {"path": str(store.home / "never")}
    async with served(store) as server, Client(server, mode="legacy") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call_tool("wait", call)
        ended = "SELECT outcome FROM turns WHERE ended IS NOT NULL"
        await until_so(lambda: store.database.select(ended) == [("interrupted",)], "its end")


@pytest.mark.parametrize("era", ERAS)
async def test_the_skills_of_the_agent_are_prompts(store: Store, tmp_path: Path, era: Any) -> None:
    folder = store.home / "skills" / "invoices"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: invoices\ndescription: How invoices are paid\n---\nPay on Fridays.\n"
    )

    def make() -> Agent[Any, Any]:
        return Agent(ScriptedModel([]), toolsets=["skills"], home=store.home, settings=SETTINGS)

    async with SessionService(make, store, name="tester") as service:
        server = AgentServer(service, {}, SkillShelf(store.home, tmp_path))
        async with Client(server, mode=era) as client:
            [prompt] = (await client.list_prompts()).prompts
            assert (prompt.name, prompt.description) == ("invoices", "How invoices are paid")
            [said] = (await client.get_prompt("invoices", {"task": "Pay invoice 5."})).messages
            assert isinstance(said.content, TextContent)
            assert said.role == "user"
            assert "Pay on Fridays." in said.content.text
            assert said.content.text.endswith("\n\nPay invoice 5.")
            with pytest.raises(MCPError, match=r"No skill is called 'taxes'\. There are: invoices"):
                await client.get_prompt("taxes")
            with pytest.raises(MCPError, match="a skill has no argument 'when'; allowed: task"):
                await client.get_prompt("invoices", {"when": "now"})
    async with served(store, chosen=[]) as plain, Client(plain, mode=era) as client:
        with pytest.raises(MCPError):
            await client.list_prompts()
