"""Options of a request, a tool that the provider runs, a custom header, and two keys.

A server in this process plays the provider: it refuses the first key, and prints what it was asked.
"""

from fsm_agent import Agent
from fsm_agent.testing import ScriptedServer, status, text

OPTIONS = {
    "reasoning_effort": "low",
    "max_output_tokens": 500,
    "request": {
        "hosted_tools": {"web_search": {"search_context_size": "low"}},
        "extra_headers": {"X-Team": "a-secret-of-the-team"},
        "parallel_tool_calls": False,
    },
}

with ScriptedServer([status(401), text("It is 2,962 m high.")]) as provider:
    agent = Agent(
        "openai-responses:gpt-5-mini",
        base_url=provider.url,
        api_key=["sk-the-first-of-two-keys", "sk-the-second-of-two-keys"],  # or "keyring:openai/me"
        settings=OPTIONS,
    )
    print(agent.chat("How high is the Zugspitze?"))
    agent.close()

asked = provider.requests[-1]
print("key:", asked.headers["authorization"], "team:", asked.headers["x-team"])
print("its own tools:", [tool for tool in asked.body["tools"] if tool["type"] != "function"])
print("shown of the settings:", agent.settings.request.extra_headers)
