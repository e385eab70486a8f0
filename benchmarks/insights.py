"""What a report over many turns costs: ``fsm-agent insights`` on 10,000 turns of twelve moves and five tool
calls each.

python benchmarks/insights.py --turns 10000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from fsm_agent import Agent, tool
from fsm_agent.cli.insights import RECOVERIES
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.insights import insights
from fsm_agent.testing import ScriptedModel, call, text, tools

COPIED = {
    "turns": "id", "transitions": "turn", "effects": "turn", "usage": "turn",
}  # fmt: skip


@tool(effect="pure")
def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: " + "a line of tool output with a little text in it\n" * 40


async def one_turn(home: str) -> None:
    script = [*(tools(call("look", {"n": n})) for n in range(5)), text("done")]
    agent = Agent(ScriptedModel(script), home=home, tools=[look], toolsets=[])
    await agent.arun("go")
    await agent.aclose()


def multiply(store: Store, count: int) -> None:
    """Copies of the turn, over the last thirty days."""

    def write(c: SqlConnection) -> None:
        first = c.execute("SELECT id FROM turns").fetchone()[0]
        for table, key in COPIED.items():
            names = [
                row[1]
                for row in c.execute(f"PRAGMA table_info({table})")
                if not (table == "usage" and row[1] == "id")
            ]
            values = ", ".join(
                "? || n" if name == key else "began - n * ?" if name == "began" else name for name in names
            )
            given = tuple(
                {key: first, "began": 30 * 86_400 / count}[name] for name in names if name in (key, "began")
            )
            c.execute(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <"
                f" {count - 1}) INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table},"
                f" numbers WHERE {key} = '{first}'",
                given,
            )

    store.database.write(write)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a report over many turns costs.")
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(one_turn(home))
        store = store_for(home)
        multiply(store, options.turns)
        spent = []
        for _ in range(options.runs):
            began = time.perf_counter()
            found = insights(store, 31, RECOVERIES)
            spent.append(time.perf_counter() - began)
        size = Path(home, "sessions.db").stat().st_size / 1e6
        calls = sum(one.calls for one in found.tools)
        print(
            f"{found.overview.turns:,} turns, {found.overview.moves:,} moves, {calls:,} tool calls,"
            f" {size:.0f} MB"
        )
        print(f"  insights: {sorted(spent)[len(spent) // 2]:.2f} s (first {spent[0]:.2f} s)")
        store.close()


if __name__ == "__main__":
    main()
