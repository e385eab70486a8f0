"""What is for its maker only, in whole turns: it goes back to the model that made it, and to no other."""

from __future__ import annotations

import json

from fsm_agent import Agent
from fsm_agent.testing import FakeClock, Reply, ScriptedServer, call, repeat, status, text, tools
from tests.helpers.harness import echo

SIGNED = {"google": {"thought_signature": "signed-4711"}}
THOUGHT = "what only its maker may read"


def test_a_thought_signature_goes_back_with_its_call_and_in_the_next_turn() -> None:
    made = {
        "id": "c",
        "type": "function",
        "function": {"name": "echo", "arguments": "{}"},
        "extra_content": SIGNED,
    }
    message = {"role": "assistant", "content": None, "tool_calls": [made]}
    first = Reply(shape="verbatim", body={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    with ScriptedServer([first, text("done"), text("again")]) as server:
        agent = Agent("gemini:gemini-3-pro", base_url=server.url, api_key="k", tools=[echo], toolsets=[])
        assert agent.chat("go") == "done"
        assert agent.chat("and now?") == "again"
        agent.close()
        sent = [
            row["tool_calls"] for body in server.bodies for row in body["messages"] if "tool_calls" in row
        ]
    assert [calls[0]["extra_content"] for calls in sent] == [SIGNED, SIGNED]


def test_a_fallback_does_not_get_the_thoughts_of_the_primary() -> None:
    primary = [tools(call("echo", {}), reasoning=THOUGHT), repeat(status(401))]
    with ScriptedServer(primary) as claude, ScriptedServer([text("done")]) as deepseek:
        agent = Agent(
            "anthropic:claude-sonnet-4-5", base_url=claude.url, api_key="k", tools=[echo], toolsets=[],
            clock=FakeClock(),
            fallbacks=[{"model": "deepseek:deepseek-reasoner", "base_url": deepseek.url, "api_key": "k"}],
        )  # fmt: skip
        result = agent.run_conversation("go")
        agent.close()
    assert result.final_response == "done"
    assert result.messages[1]["reasoning"] == THOUGHT
    assert THOUGHT in json.dumps(claude.bodies[1])
    assert THOUGHT not in json.dumps(deepseek.bodies)
