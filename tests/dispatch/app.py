"""The app of the workers in tests: a model that uses an unsafe tool once, and a world that counts in files what was
really done. ``DISPATCH_WORLD``: the folder for that; ``DISPATCH_SLOW``: the most seconds that a tool takes, or
exactly how many when it is negative."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from fsm_agent import Agent, RunContext, tool
from fsm_agent.dispatch.dispatcher import Order
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools

WORLD = Path(os.environ.get("DISPATCH_WORLD", "."))
SLOW = float(os.environ.get("DISPATCH_SLOW", "0.3"))
SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}


def line(name: str, **record: Any) -> None:
    """One whole line, safe at once."""
    handle = os.open(WORLD / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, json.dumps({**record, "pid": os.getpid(), "at": time.time()}).encode() + b"\n")
    os.fsync(handle)
    os.close(handle)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


@tool(effect="unsafe")
def put(ctx: RunContext[None], key: str) -> str:
    """Do what cannot be undone."""
    line("puts", key=key, turn=ctx.turn_id, call=ctx.call_id)
    time.sleep(-SLOW if SLOW < 0 else random.uniform(0, SLOW))
    line("done", key=key, turn=ctx.turn_id)
    return f"put {key}"


@tool(effect="pure")
def look(key: str) -> str:
    """Look at something."""
    time.sleep(random.uniform(0, min(abs(SLOW), 0.5)))
    return f"saw {key}"


def answer(body: dict[str, Any]) -> Any:
    """Two calls of tools, then words; what was asked last is the key."""
    rows = [row for row in body["messages"] if row["role"] != "system"]
    asked = max(place for place, row in enumerate(rows) if row["role"] == "user")
    said = rows[asked]["content"]
    key = said if isinstance(said, str) else said[0]["text"]
    done = sum(row["role"] == "tool" for row in rows[asked:])
    if done == 0:
        return tools(call("look", {"key": key}, f"look-{key}"))
    if done == 1:
        return tools(call("put", {"key": key}, f"put-{key}"))
    return text(f"answer to {key}")


def make_agent(order: Order) -> Agent[None, str]:
    """The agent of one turn."""
    model = ScriptedModel(repeat(answer))
    return Agent(model, tools=[put, look], toolsets=[], system_prompt="You are a test.", settings=SETTINGS)
