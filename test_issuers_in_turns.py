"""What is for its maker only, in whole turns: it goes back to the model that made it, and to no other."""

from __future__ import annotations

import json

from fsm_agent import Agent
from fsm_agent.testing import FakeClock, Reply, ScriptedServer, call, repeat, status, text, tools
from tests.helpers.harness import table

THOUGHT = "what only its maker may read"


def test_a_thought_signature_goes_back_with_its_call_and_in_the_next_turn() -> None:
    function = {"name": "echo", "arguments": "{}"}
    made = {"id": "c", "type": "function", "function": function, "extra_content": google("signed-4711")}
    message = {"role": "assistant", "content": None, "tool_calls": [made]}
    first = Reply(shape="verbatim", body={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    with table([first, text("done"), text("again")], model="gemini:gemini-3-pro") as (agent, server, *_):
        assert agent.chat("go") == "done"
        assert agent.chat("and now?") == "again"
        sent = [
            row["tool_calls"] for body in server.bodies for row in body["messages"] if "tool_calls" in row
        ]
    assert [calls[0]["extra_content"] for calls in sent] == [google("signed-4711")] * 2


def test_a_fallback_does_not_get_the_thoughts_of_the_primary() -> None:
    primary = [tools(call("echo", {}), reasoning=THOUGHT), repeat(status(401))]
    with ScriptedServer([text("done")]) as deepseek:
        fallback = {"model": "deepseek:deepseek-reasoner", "base_url": deepseek.url, "api_key": "k"}
        with table(primary, model="anthropic:claude-sonnet-4-5", fallbacks=[fallback]) as (agent, claude, *_):
            result = agent.run_conversation("go")
    assert result.final_response == "done"
    assert result.messages[1]["reasoning"] == THOUGHT
    assert THOUGHT in json.dumps(claude.bodies[1])
    assert THOUGHT not in json.dumps(deepseek.bodies)
