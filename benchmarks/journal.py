"""What writing everything down costs: processor time of a move beside one that is kept in memory, and how
much the file grows with a turn.

    python benchmarks/journal.py [--quick] [--json FILE]
    python benchmarks/journal.py --throughput [--database URL]

With ``--throughput`` it is moves a second by the clock on the wall, at 1, 50 and 200 turns at once: in a
file, and in an empty database of PostgreSQL that is named.

The model answers at once from memory and the tool is pure, so what is left is the engine and its journal.
Processor time is user and system time of all threads, including the writer's; the best of several runs
counts. Machines differ, and so does one machine over time. So each time is also scaled to a core that writes
1 MB with ``json.dumps`` in 5 ms, and this core's own time for that is printed, too. Growth is the size of the
file after many turns, less that after few, the index of the search included."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.engine import agent_of, in_memory
from fsm_agent.sessions.store import Store

REFERENCE = 5.0
"""Milliseconds for ``json.dumps`` of 1 MB on the core that times are given for."""
FEW, MANY = 5, 55
"""Rounds of tools; what a move costs is their difference."""


def calibration() -> float:
    """Milliseconds that ``json.dumps`` of 1 MB takes here, the best of five."""
    rows = [{"role": "user", "content": "word " * 10, "number": number} for number in range(11_000)]
    size = len(json.dumps(rows)) / 1e6

    def once() -> float:
        began = time.process_time()
        json.dumps(rows)
        return 1000 * (time.process_time() - began) / size

    return min(once() for _ in range(5))


async def spent(turns: int, rounds: int, durability: Any) -> tuple[float, int, int]:
    """(seconds of processor time, moves, commits) of ``turns`` concurrent turns; ``None``: in memory."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home), durability or "normal")
        made = [agent_of(store, rounds, number).start("go") for number in range(turns)]
        steps = [in_memory(turn) for turn in made]

        async def to_the_end(step: Callable[[], Awaitable[Any]]) -> int:
            moves = 0
            while await step() is not None:
                moves += 1
            return moves

        began = time.process_time()
        if durability is None:
            moves = sum(await asyncio.gather(*map(to_the_end, steps)))
        else:
            moves = sum(len(result.states) - 1 for result in await asyncio.gather(*(t.arun() for t in made)))
        seconds = time.process_time() - began
        return seconds, moves, store.database.commits


async def a_move(turns: int, durability: Any) -> tuple[float, float]:
    """(microseconds of processor time, commits) of a move in the middle of a turn."""
    many, few = await spent(turns, MANY, durability), await spent(turns, FEW, durability)
    moves = many[1] - few[1]
    return 1e6 * (many[0] - few[0]) / moves, (many[2] - few[2]) / moves


async def growth(rounds: int, turns: int) -> float:
    """Bytes that the file grows by with a turn, all in one session."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home), "normal")
        agent = agent_of(store, rounds)
        model: Any = agent._services.backends.current.port

        async def size_after(count: int) -> int:
            for _ in range(count):
                model.number = 0
                await agent.arun("hello there")
            store.database.write(lambda c: None)
            with store.database.reading() as c:
                return int(c.execute("PRAGMA page_count").fetchone()[0]) * 4096

        before = await size_after(turns // 4)
        return (await size_after(turns) - before) / turns


async def figures(quick: bool) -> dict[str, float]:
    """All of them by name."""
    repetitions = 2 if quick else 5
    times: dict[str, list[float]] = {}
    found: dict[str, float] = {}
    for _ in range(repetitions):
        scale = REFERENCE / calibration()
        for turns in (1, 50):
            for where in (None, "full"):
                spent_here, commits = await a_move(turns, where)
                name = f"a move {'on disk' if where else 'in memory'}, {turns} at once"
                times.setdefault(f"{name}, µs here", []).append(spent_here)
                times.setdefault(f"{name}, µs", []).append(spent_here * scale)
                if where:
                    found[f"commits a move, {turns} at once"] = commits
        times.setdefault("json.dumps of 1 MB, ms here", []).append(REFERENCE / scale)
    found |= {name: min(values) for name, values in times.items()}
    for turns in (1, 50):
        on_disk, in_mind = (
            found[f"a move {where}, {turns} at once, µs"] for where in ("on disk", "in memory")
        )
        found[f"a move on disk over memory, {turns} at once, µs"] = on_disk - in_mind
    count = 100 if quick else 1_000
    found["a turn of one line, bytes"] = await growth(0, count)
    found["a turn of ten rounds of tools, bytes"] = await growth(10, count // 5)
    return found


async def moves_a_second(turns: int, rounds: int, home: str, url: str | None, first: int) -> float:
    """Moves per second of ``turns`` concurrent turns, in a file in ``home`` or in a database."""
    store = Store(Path(home), database_url=url)
    made = [agent_of(store, rounds, first + number).start("go") for number in range(turns)]
    store.database.write(lambda c: None)
    began = time.perf_counter()
    moves = sum(len(result.states) - 1 for result in await asyncio.gather(*(one.arun() for one in made)))
    seconds = time.perf_counter() - began
    store.close()
    return moves / seconds


def throughput(url: str | None) -> None:
    """Print moves a second, the best of three runs of each."""
    for turns, rounds in ((1, 40), (50, 8), (200, 3)):
        for where in (None, url) if url else (None,):
            best = 0.0
            for run in range(3):
                first = 1_000 * (turns + run)
                with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
                    best = max(best, asyncio.run(moves_a_second(turns, rounds, home, where, first)))
            print(f"{turns:4} at once, {'PostgreSQL' if where else 'a file':10} {best:8,.0f} moves a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, rougher figures")
    parser.add_argument("--json", metavar="FILE", help="write them as one object, too")
    parser.add_argument("--throughput", action="store_true", help="moves a second instead")
    parser.add_argument("--database", metavar="URL", help="of PostgreSQL, for --throughput")
    given = parser.parse_args()
    if given.throughput:
        throughput(given.database)
        return
    found = asyncio.run(figures(given.quick))
    for name, value in sorted(found.items()):
        print(f"{name:50} {value:>10,.2f}")
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
