"""The agent of the servers that clients of OpenAI's wires are tried with: what it answers depends on what was
said last. ``DISPATCH_WORLD``: a folder; ``hold`` returns when there is a file ``go`` in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fsm_agent import Agent, tool
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.helpers.waiting import until

SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}
WORLD = Path(os.environ.get("DISPATCH_WORLD", "."))


class City(BaseModel):
    """What a typed answer is."""

    name: str
    people: int


OSLO = City(name="Oslo", people=700_000)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="ask")
def pay(invoice: int) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


@tool(effect="pure")
def hold() -> str:
    """Wait for a sign."""
    (WORLD / "held").touch()
    until(lambda: (WORLD / "go").exists(), "the sign")
    return "held"


def answer(body: dict[str, Any]) -> Any:
    """A call of a tool and then words, JSON, or how many messages of the user there are."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    asked = max(place for place, row in enumerate(rows) if row["role"] == "user")
    said, used = str(rows[asked]["content"]), any(row["role"] == "tool" for row in rows[asked:])
    if "1+2" in said:
        return text("It is 3.") if used else tools(call("add", {"a": 1, "b": 2}), text="Let me add.")
    if "Pay 7" in said:
        return text("It is paid.") if used else tools(call("pay", {"invoice": 7}), text="I pay.")
    if "Hold" in said:
        return text("It is done.") if used else tools(call("hold", {}), text="I wait.")
    if "city" in said:
        return text(OSLO.model_dump_json())
    return text(f"message {sum(row['role'] == 'user' for row in rows)}")


def make_agent() -> Agent[Any, Any]:
    """The agent of one turn."""
    return Agent(
        ScriptedModel(repeat(answer)), tools=[add, pay, hold], toolsets=[], settings=SETTINGS,
        system_prompt="Test.",
    )  # fmt: skip
