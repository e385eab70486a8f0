"""A home full of recorded turns of many kinds, made by a seed: answers, rounds of tools, refused and broken
requests, truncated and empty replies, interrupts, compactions, limits, denied calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import (
    FakeClock,
    ScriptedModel,
    bad_json,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    drop,
    length,
    overflow,
    reasoning,
    refusal,
    status,
    text,
    tools,
)

WORDS = [
    "the", "river", "is", "high", "today", "and", "the", "bridge", "at", "the", "mill", "is", "closed",
    "until", "the", "water", "falls", "again",
]  # fmt: skip
SETTINGS = {"max_iterations": 8, "backoff": {"seed": 1}, "prompt": {"context_files": False}}


@tool(effect="pure", concurrency="parallel")
def measure(place: str) -> str:
    """The height of the river."""
    return f"{place}: {len(place)} feet"


@tool(effect="unsafe")
def close(bridge: str) -> str:
    """Close a bridge."""
    if bridge == "mill":
        raise RuntimeError("the gate is stuck")
    return f"{bridge} is closed"


def record(
    home: Path, turns: int, seed: int, settings: Mapping[str, Any] | None = None, *, each: int = 2
) -> list[str]:
    """Record ``turns``, ``each`` in one session, and return their ids. The first turns of the sessions of
    two homes that were recorded by one seed meet the same replies, whatever the settings."""
    made: list[str] = []
    while len(made) < turns:
        chance = random.Random(f"{seed} {len(made)}")
        asks = random.Random(f"{seed} {len(made)} approvals")
        history = _history(chance) if chance.random() < 0.2 else None
        agent = Agent(
            ScriptedModel([_reply(chance) for _ in range(60)]), tools=[measure, close], toolsets=["todo"],
            home=home, clock=FakeClock(), context_window=16_000 if history else 200_000,
            settings={**SETTINGS, **(settings or {})},
            callbacks={"approval": _answers(asks)} if chance.random() < 0.3 else None,
        )  # fmt: skip
        for _ in range(each):
            result = agent.run_conversation(_words(chance, 3, 30), conversation_history=history)
            made.append(result.turn_id)
            history = None
        agent.close()
    return made[:turns]


def _answers(chance: random.Random) -> Callable[[Any], bool]:
    return lambda request: chance.random() < 0.7


def _words(chance: random.Random, least: int, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))


def _history(chance: random.Random) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": _words(chance, 100, 300)}
        for _ in range(20)
        for role in ("user", "assistant")
    ]


def _reply(chance: random.Random) -> Any:
    place, bridge, words = chance.choice(WORDS), chance.choice(("mill", "north")), _words(chance, 2, 5)
    calls = (
        lambda: call("measure", {"place": place}),
        lambda: call("close", {"bridge": bridge}),
        lambda: call("todo", {"todos": [{"content": words, "status": "pending", "id": "1"}]}),
    )
    kinds = (
        (8, lambda: text(_words(chance, 5, 80))),
        (8, lambda: tools(*(make() for make in chance.sample(calls, chance.randint(1, 3))))),
        (1, lambda: tools(call("unknown", {}))),
        (1, blank), (1, lambda: length(_words(chance, 5, 20))),
        (1, lambda: cut_tool_call("measure", '{"place": "mi')),
        (1, lambda: bad_json("measure", '{"place": }')),
        (1, lambda: status(chance.choice((429, 500, 503, 401, 400)))), (1, drop),
        (1, lambda: cut(_words(chance, 2, 9))), (1, lambda: reasoning(_words(chance, 3, 9))),
        (0.3, lambda: overflow(12_000)), (0.3, lambda: content_filter(_words(chance, 1, 4))),
        (0.3, lambda: refusal("no")),
    )  # fmt: skip
    (made,) = chance.choices([make for _, make in kinds], [weight for weight, _ in kinds])
    return made()
