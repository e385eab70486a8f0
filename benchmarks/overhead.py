"""What the engine costs beside a bare loop: the same SDK, the same server, the same tool, the same number of
iterations.

    make bench                      # or: python benchmarks/overhead.py --iterations 10 200 --runs 5

The bare loop is what a user would write without an engine: ``create(stream=True)``, collect the deltas, run
the tool, append two rows, again. The server runs in a process of its own. Time is the client's processor time
(user + system), so that waiting for the server does not hide the difference; wall time is printed beside it.
The ratio is engine / bare loop, the median of the runs. "Flat" means: an iteration of a turn of 200 costs
about as much as one of a turn of 10."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.testing import Received, Reply, ScriptedServer, call, repeat, text, tools

RESULT = "a line of tool output with a little text in it\n" * 10


@tool(concurrency="parallel", effect="unsafe")
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {RESULT}"


def reply_to(request: Received) -> Reply:
    """A tool call until the wanted number of rounds is in the transcript; the number is the model's name."""
    rounds = int(request.body["model"])
    done = sum(row["role"] == "tool" for row in request.body["messages"])
    return text("done") if done >= rounds else tools(call("look", {"n": done}))


def serve(pipe: Connection) -> None:
    with ScriptedServer(repeat(reply_to)) as server:
        pipe.send(server.url)
        pipe.recv()


async def bare_loop(url: str, rounds: int) -> None:
    import openai

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    offered: Any = [
        {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": schema}}
    ]
    messages: list[Any] = [
        {"role": "system", "content": "You look at things."},
        {"role": "user", "content": "go"},
    ]
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        while True:
            stream = await client.chat.completions.create(
                model=str(rounds),
                messages=messages,
                tools=offered,
                stream=True,
                stream_options={"include_usage": True},
            )
            content, calls = "", {}
            async for chunk in stream:
                for choice in chunk.choices:
                    content += choice.delta.content or ""
                    for part in choice.delta.tool_calls or ():
                        entry = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                        entry["id"] = part.id or entry["id"]
                        if part.function is not None:
                            entry["name"] = part.function.name or entry["name"]
                            entry["arguments"] += part.function.arguments or ""
            if not calls:
                return
            rows = [
                {
                    "id": c["id"],
                    "type": "function",
                    "function": {"name": c["name"], "arguments": c["arguments"]},
                }
                for c in calls.values()
            ]
            messages.append({"role": "assistant", "content": content or None, "tool_calls": rows})
            for entry in calls.values():
                result = await look.handler(**json.loads(entry["arguments"]))
                messages.append({"role": "tool", "tool_call_id": entry["id"], "content": result})


async def engine(url: str, rounds: int) -> None:
    agent = Agent(
        f"openai:{rounds}",
        base_url=url,
        api_key="k",
        tools=[look],
        toolsets=[],
        settings={"max_iterations": rounds + 1},
        context_window=10_000_000,
    )
    result = await agent.arun("go")
    assert result.completed, result.error
    assert result.api_calls == rounds + 1
    await agent.aclose()


async def timed(loop: Callable[[str, int], Awaitable[None]], url: str, rounds: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    await loop(url, rounds)
    return (time.process_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds


async def compare(url: str, iterations: list[int], runs: int) -> list[dict[str, float]]:
    for loop in (bare_loop, engine):
        await loop(url, 3)
    rows = []
    for rounds in iterations:
        pairs = [(await timed(bare_loop, url, rounds), await timed(engine, url, rounds)) for _ in range(runs)]
        bare, ours = ([pair[side] for pair in pairs] for side in (0, 1))
        rows.append(
            {
                "iterations": rounds,
                "bare_cpu_ms": 1000 * statistics.median(cpu for cpu, _ in bare),
                "engine_cpu_ms": 1000 * statistics.median(cpu for cpu, _ in ours),
                "bare_wall_ms": 1000 * statistics.median(wall for _, wall in bare),
                "engine_wall_ms": 1000 * statistics.median(wall for _, wall in ours),
                "cpu_ratio": statistics.median(o[0] / b[0] for b, o in zip(bare, ours, strict=True)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, nargs="+", default=[10, 200])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    rows = asyncio.run(compare(ours.recv(), given.iterations, given.runs))
    ours.send("stop")
    process.join(10)
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print("per iteration, milliseconds, median of", given.runs, "runs\n")
    print(
        f"{'iterations':>10} {'bare cpu':>10} {'engine cpu':>11} {'cpu ratio':>10} {'bare wall':>10}"
        f" {'engine wall':>12}"
    )
    for row in rows:
        print(
            f"{row['iterations']:>10} {row['bare_cpu_ms']:>10.2f} {row['engine_cpu_ms']:>11.2f}"
            f" {row['cpu_ratio']:>10.2f} {row['bare_wall_ms']:>10.2f} {row['engine_wall_ms']:>12.2f}"
        )
    if len(rows) > 1:
        growth = rows[-1]["engine_cpu_ms"] / rows[0]["engine_cpu_ms"]
        print(
            f"\nan engine iteration in a turn of {rows[-1]['iterations']:.0f} costs {growth:.2f} × one in a"
            f" turn of {rows[0]['iterations']:.0f}"
        )


if __name__ == "__main__":
    main()
