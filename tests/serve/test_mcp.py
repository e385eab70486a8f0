"""The agent as an MCP server, asked by the official SDK's client in this process, in both eras of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import ElicitResult, TextContent

from fsm_agent import Agent, ImagePart, tool
from fsm_agent.serve.called_tools import choose_tools, with_called_tools
from fsm_agent.serve.mcp import AgentServer
from fsm_agent.serve.service import SessionService
from fsm_agent.sessions.store import Store
from fsm_agent.testing import ScriptedModel, call, text, tools
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


OWN = [add, pay, picture, fail]


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
async def test_chosen_tools_are_called_under_the_agents_rules(store: Store, era: str) -> None:
    PAID.clear()
    person = Person({"decision": "once"}, {"decision": "deny"}, None, {"decision": "yes, always"})
    async with (
        served(store) as server,
        Client(server, mode=era, elicitation_callback=person.elicit) as client,
    ):
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert [*listed] == ["ask", "add", "pay", "picture", "fail"]
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


@pytest.mark.parametrize("era", ERAS)
async def test_what_cannot_be_done_is_the_protocols_own_error(store: Store, era: str) -> None:
    async with served(store, text("hi")) as server, Client(server, mode=era) as client:
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
