"""Many turns at once in one process, each of a few calls of a model that takes its time.

    python benchmarks/many_turns.py [--turns 200 1000] [--calls 6] [--delay 0.05] [--json FILE]

Each turn is of an agent of its own, in a session of its own, of one home: five rounds of one tool, then an
answer, streamed over HTTP on loopback. Beside it a bare loop over the official SDK, with one client for all
of them, that keeps nothing. The server runs in a process of its own and waits before each reply; each figure
is of a fresh process.

wall, cpu   seconds, of all turns together; processor time is the client's alone, of all its threads
peak        MB that the process had at most
more        MB more than the same process had with one turn
threads     most at the same time
failed      turns that did not end with the answer
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.sessions.store import Store

ANSWER = "done"
PEAK = 1024 * (1024 if sys.platform == "darwin" else 1)
"""What ``ru_maxrss`` counts in one MB."""


@tool(concurrency="parallel", effect="pure")
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: a line of tool output with a little text in it"


# The server


def events(made: int, calls: int) -> bytes:
    """Stream the reply to a request that already holds ``made`` tool results."""
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    function = {"name": "look", "arguments": json.dumps({"n": made})}
    asks = {"tool_calls": [{"index": 0, "id": f"call_{made}", "type": "function", "function": function}]}
    delta, finish = ({"content": ANSWER}, "stop") if made + 1 >= calls else (asks, "tool_calls")
    chunks = [
        {**base, "choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
    ]
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode()


def serve(pipe: Connection, calls: int, delay: float) -> None:
    replies = [events(made, calls) for made in range(calls)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                body = await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
                await asyncio.sleep(delay)
                writer.write(replies[min(body.count(b'"tool_call_id"'), calls - 1)])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        await server.serve_forever()

    asyncio.run(run())


# The clients


async def turns(url: str, count: int, calls: int) -> int:
    """How many turns failed."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))

        async def one() -> bool:
            agent = Agent(
                "local:any",
                base_url=url,
                tools=[look],
                toolsets=[],
                system_prompt="You look at things.",
                context_window=100_000,
                store=store,
                home=home,
            )
            result = await agent.arun("go")
            await agent.aclose()
            return result.final_response == ANSWER and result.api_calls == calls

        ended = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
        store.close()
        return sum(end is not True for end in ended)


async def bare(url: str, count: int, calls: int) -> int:
    """How many loops failed."""
    import openai

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    function = {"name": "look", "description": "Look at number n.", "parameters": schema}
    offered: Any = [{"type": "function", "function": function}]

    async def one(client: openai.AsyncOpenAI) -> bool:
        messages: list[Any] = [
            {"role": "system", "content": "You look at things."},
            {"role": "user", "content": "go"},
        ]
        for _ in range(calls):
            content, asked = "", dict[int, Any]()
            async for chunk in await client.chat.completions.create(
                model="any", messages=messages, tools=offered, stream=True
            ):
                for choice in chunk.choices:
                    content += choice.delta.content or ""
                    for part in choice.delta.tool_calls or ():
                        entry = asked.setdefault(part.index, {"id": part.id, "name": "look", "arguments": ""})
                        entry["arguments"] += (part.function and part.function.arguments) or ""
            if not asked:
                return content == ANSWER
            rows = [
                {"id": entry["id"], "type": "function", "function": {**entry, "id": None}}
                for entry in asked.values()
            ]
            messages.append({"role": "assistant", "content": content or None, "tool_calls": rows})
            for entry in asked.values():
                result = await look.handler(**json.loads(str(entry["arguments"])))
                messages.append({"role": "tool", "tool_call_id": entry["id"], "content": result})
        return False

    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        ended = await asyncio.gather(*(one(client) for _ in range(count)), return_exceptions=True)
    return sum(end is not True for end in ended)


WAYS: dict[str, Callable[[str, int, int], Awaitable[int]]] = {"fsm_agent": turns, "bare SDK": bare}


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the table."""

    way: str
    turns: int
    failed: int
    wall: float
    cpu: float
    peak: float
    threads: int
    more: float = 0.0


def measured(way: str, url: str, count: int, calls: int) -> Figures:
    """In a fresh process."""
    most = [1]

    async def run() -> tuple[int, float, float]:
        await WAYS[way](url, 1, calls)  # imports, and what is made once in a process
        looking = asyncio.ensure_future(looked())
        wall, cpu = time.perf_counter(), time.process_time()
        failed = await WAYS[way](url, count, calls)
        looking.cancel()
        return failed, time.perf_counter() - wall, time.process_time() - cpu

    async def looked() -> None:
        while True:
            most[0] = max(most[0], threading.active_count())
            await asyncio.sleep(0.02)

    failed, wall, cpu = asyncio.run(run())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PEAK
    return Figures(way, count, failed, wall, cpu, peak, most[0])


def compare(counts: list[int], calls: int, delay: float) -> list[Figures]:
    processes = multiprocessing.get_context("spawn")
    ours, theirs = multiprocessing.Pipe()
    server = processes.Process(target=serve, args=(theirs, calls, delay), daemon=True)
    server.start()
    url, rows = ours.recv(), []
    for count in counts:
        for way in WAYS:
            with processes.Pool(1, maxtasksperchild=1) as pool:
                alone, many = (pool.apply(measured, (way, url, number, calls)) for number in (1, count))
            rows.append(replace(many, more=many.peak - alone.peak))
    server.terminate()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[200, 1_000])
    parser.add_argument("--calls", type=int, default=6, help="of the model, in each turn")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each reply")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    given = parser.parse_args()
    rows = compare(given.turns, given.calls, given.delay)
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(row) for row in rows], indent=2), encoding="utf-8")
    heads = (f"{name:>7}" for name in ("turns", "failed", "wall", "cpu", "peak", "more", "threads"))
    print(" " * 10, *heads)
    for row in rows:
        print(
            f"{row.way:10} {row.turns:>7,} {row.failed:>7} {row.wall:>7.2f} {row.cpu:>7.2f} {row.peak:>7.0f}"
            f" {row.more:>7.0f} {row.threads:>7}"
        )


if __name__ == "__main__":
    main()
