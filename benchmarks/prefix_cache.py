"""How much of a long turn's prompts a provider's prefix cache would serve: a simulation.

    python benchmarks/prefix_cache.py [--json]

One turn of 60 iterations on a window so small that it is compacted twice. Each request is compared with all
earlier ones: the longest prefix it shares with any of them would come from the cache. The first run is the
engine's own (the system prompt keeps its bytes); the second rebuilds the prompt at each compaction (with the
current time, for example), which loses the cache. Sizes are in bytes, not tokens; the simulated cache forgets
nothing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools

ROUNDS = 60
PAGE = "a line of what was found, with a number and a path in it: src/module.py\n" * 56
PROMPT = "You look after a large repository. " * 1_100
"""About 10,000 tokens, as much as instructions, project files and tools of an agent usually take."""


@tool(effect="unsafe")
def look(n: int) -> str:
    """Look at a page."""
    return f"page {n}\n{PAGE}"


def play(rebuild: bool) -> dict[str, Any]:
    """The turn, and the share of its prompts that a prefix cache would serve."""
    bodies: list[bytes] = []
    rounds = 0

    def reply(body: dict[str, Any]) -> Any:
        nonlocal rounds
        if "tools" not in body:
            return text("a summary of what was found so far")
        rounds += 1
        return text("done") if rounds >= ROUNDS else tools(call("look", {"n": rounds}))

    model = ScriptedModel(repeat(reply))
    agent = Agent(
        model, tools=[look], toolsets=[], system_prompt=PROMPT, clock=FakeClock(), context_window=50_000,
        settings={"max_iterations": ROUNDS + 5, "guardrail": {"hard_stop": False}},
    )  # fmt: skip
    result = agent.run_conversation("look at everything")
    assert result.completed, result.error
    rebuilt = 0
    for request in model.sent:
        if request.purpose == "turn":
            body = messages_of(request.body)
            rebuilt += bool(bodies) and len(body) < len(bodies[-1])
            stamp = f"(rebuilt {rebuilt} times) ".encode() if rebuild else b""
            bodies.append(body.replace(b"You look after", stamp + b"You look after", 1))
    served = sum(
        max((common(body, before) for before in bodies[:number]), default=0)
        for number, body in enumerate(bodies)
    )
    total = sum(map(len, bodies))
    return {
        "requests": len(bodies),
        "compactions": len(result.compressions),
        "bytes": total,
        "cached_share": served / total,
    }


def messages_of(body: bytes) -> bytes:
    return body[body.index(b'"messages":') :]


def common(one: bytes, other: bytes) -> int:
    """How many bytes two requests begin with in common, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = {"prompt kept": play(rebuild=False), "prompt rebuilt": play(rebuild=True)}
    if given.json:
        print(json.dumps(measured, indent=2))
        return
    for name, row in measured.items():
        print(
            f"{name:<15} {row['requests']} requests, {row['compactions']} compactions, {row['bytes']:,}"
            f" bytes: {row['cached_share']:.1%} from the cache"
        )


if __name__ == "__main__":
    main()
