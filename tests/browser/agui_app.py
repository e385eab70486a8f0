"""The agent that the page of the server talks to in tests: a tool, an approval, a question, a slow answer."""

from __future__ import annotations

import time
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools

SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}


@tool(effect="pure")
def look_up(city: str) -> str:
    """Look up the weather."""
    return f"In {city} it is 12 degrees."


@tool(effect="unsafe", approval="ask")
def send_mail(to: str, body: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@tool(effect="pure")
def wait(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "waited"


def answer(body: dict[str, Any]) -> Any:
    """What is asked decides: a mail, a question, something long, or the weather."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    asked = max(place for place, row in enumerate(rows) if row["role"] == "user")
    said, done = rows[asked]["content"], sum(row["role"] == "tool" for row in rows[asked:])
    if "mail" in said:
        mail = {"to": "ann@example.org", "body": "The weather is fine.\nSee you soon."}
        return text(f"The mail: {rows[-1]['content']}") if done else tools(call("send_mail", mail, "m1"))
    if "choose" in said:
        asks = {"question": "Which one?", "choices": ["tea", "coffee"]}
        return text(f"You chose: {rows[-1]['content']}") if done else tools(call("clarify", asks, "q1"))
    if "long" in said:
        if not done:
            return tools(call("wait", {"seconds": 3}, "w1"), text="It takes a while.")
        return text(" ".join(f"word{number}" for number in range(40)))
    if not done:
        return tools(call("look_up", {"city": "Oslo"}, "l1"), text="Let me look.")
    return text("It is **12 degrees** in Oslo.\n\n- take a coat\n- <b>no</b> [link](https://example.org)")


def make_agent() -> Agent[None, str]:
    """The agent of one turn."""
    return Agent(
        ScriptedModel(repeat(answer)),
        tools=[look_up, send_mail, wait],
        toolsets=["clarify"],
        settings=SETTINGS,
    )
