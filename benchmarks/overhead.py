"""What the engine costs beside a bare loop: the same server, the same tool, as many calls of the model.

    python benchmarks/overhead.py [--iterations 10 50 200] [--turns 200 --rounds 6 --delay 0.05]
                                  [--deltas 2000] [--runs 5] [--json FILE]

The bare loop is what a user would write without an engine: one client of the official SDK for all turns,
``create(stream=True)``, collect the deltas, run the tool, append two rows, again. It keeps nothing, and the
engine writes every move to disk. ``httpx`` is less than anybody writes: cached pieces of a body are joined
and posted, and the events of the reply are read as JSON. Each has one turn to get warm.

Three tables: one turn after another; many turns at once, each reply of the model ``--delay`` seconds late;
and a reply of many deltas, each a packet of its own. The server runs in a process of its own. Figures are the
client's processor time (user + system), so that waiting does not hide a difference, with wall time beside it;
a ratio is engine / bare loop, the median of the runs. The first line calibrates: how long ``json.dumps`` of a
megabyte takes here and now."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool

RESULT = "a line of tool output with a little text in it\n" * 10
SCHEMA: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
OFFERED: Any = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
]
FIRST: Any = [{"role": "system", "content": "You look at things."}, {"role": "user", "content": "go"}]
FIGURES = tuple[float, float]
"""Seconds: processor time and wall time."""


@tool(concurrency="parallel", effect="unsafe")
async def look(n: int) -> str:
    """Look at number n."""
    return f"{n}: {RESULT}"


# The server

_ASKED = re.compile(rb'"model":\s*"(\d+)-(\d+)-(\d+)"')
_ROUND = re.compile(rb'"role":\s*"tool"')


def chunk(delta: Any, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def reply_to(body: bytes) -> tuple[float, list[bytes]]:
    """The delay, and the packets of a reply. The model's name is ROUNDS-MILLISECONDS-DELTAS: it calls the
    tool until the transcript has ROUNDS rounds, then sends DELTAS deltas of text."""
    asked = _ASKED.search(body)
    assert asked is not None
    rounds, delay, deltas = map(int, asked.groups())
    done = len(_ROUND.findall(body))
    head = chunk({"role": "assistant", "content": ""})
    if done >= rounds:
        return delay / 1000, [
            head,
            *[chunk({"content": "word "})] * deltas,
            chunk({}, "stop") + b"data: [DONE]\n\n",
        ]
    call = {"index": 0, "id": f"call_{done}", "type": "function"}
    parts = [
        chunk({"tool_calls": [{**call, "function": {"name": "look", "arguments": ""}}]}),
        *(
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
            for part in ('{"n"', f": {done}}}")
        ),
    ]
    return delay / 1000, [b"".join((head, *parts, chunk({}, "tool_calls"), b"data: [DONE]\n\n"))]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            delay, packets = reply_to(await reader.readexactly(length))
            await asyncio.sleep(delay)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for packet in packets:
                writer.write(b"%x\r\n%b\r\n" % (len(packet), packet))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(pipe: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**26, backlog=2_000)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        async with server:
            await server.serve_forever()

    asyncio.run(run())


# The loops: each serves any number of turns with one client


class Bare:
    """The official SDK as its users write it."""

    def __init__(self, url: str) -> None:
        import openai

        self._client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=600)

    async def turn(self, model: str) -> None:
        messages = [*FIRST]
        while True:
            stream = await self._client.chat.completions.create(
                model=model,
                messages=messages,
                tools=OFFERED,
                stream=True,
                stream_options={"include_usage": True},
            )
            content, calls = "", dict[int, Any]()
            async for part in stream:
                for choice in part.choices:
                    content += choice.delta.content or ""
                    for asked in choice.delta.tool_calls or ():
                        entry = calls.setdefault(asked.index, {"id": "", "name": "", "arguments": ""})
                        entry["id"] = asked.id or entry["id"]
                        if asked.function is not None:
                            entry["name"] = asked.function.name or entry["name"]
                            entry["arguments"] += asked.function.arguments or ""
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

    async def close(self) -> None:
        await self._client.close()


class Httpx:
    """No SDK, no classes, no walk of the messages: bytes out, JSON in."""

    def __init__(self, url: str) -> None:
        import httpx2

        self._url, self._client = f"{url}/chat/completions", httpx2.AsyncClient(timeout=600)

    async def turn(self, model: str) -> None:
        parts = [json.dumps(row).encode() for row in FIRST]
        begin = json.dumps({"model": model, "tools": OFFERED, "stream": True}).encode()[:-1]
        headers = {"Authorization": "Bearer k", "Content-Type": "application/json"}
        while True:
            body = begin + b', "messages": [' + b", ".join(parts) + b"]}"
            content, name, call, arguments = "", "", "", ""
            async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    delta = json.loads(line[6:])["choices"][0]["delta"]
                    content += delta.get("content") or ""
                    for asked in delta.get("tool_calls", ()):
                        call = asked.get("id", call)
                        name = asked["function"].get("name", name)
                        arguments += asked["function"]["arguments"]
            if not name:
                return
            function = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
            row = {"role": "assistant", "content": content or None, "tool_calls": [function]}
            result = await look.handler(**json.loads(arguments))
            parts += [
                json.dumps(row).encode(),
                json.dumps({"role": "tool", "tool_call_id": call, "content": result}).encode(),
            ]

    async def close(self) -> None:
        await self._client.aclose()


class Engine:
    """An agent a turn, as a program that serves many people has: a session of its own for each."""

    def __init__(self, url: str, home: str) -> None:
        self._url, self._home, self._agents = url, home, list[Agent]()

    async def turn(self, model: str) -> None:
        agent = Agent(
            f"local:{model}",
            base_url=self._url,
            api_key="k",
            tools=[look],
            toolsets=[],
            settings={"max_iterations": 10_000},
            context_window=10_000_000,
            home=self._home,
            callbacks={"stream_delta": lambda text: None},
        )
        self._agents.append(agent)
        result = await agent.arun("go")
        if not result.completed:
            raise RuntimeError(result.error or result.turn_exit_reason)

    async def close(self) -> None:
        for agent in self._agents:
            await agent.aclose()


Loop = Bare | Httpx | Engine
MAKE: dict[str, Callable[[str, str], Loop]] = {
    "bare": lambda url, home: Bare(url),
    "httpx": lambda url, home: Httpx(url),
    "engine": Engine,
}


# The clock


async def timed(work: Awaitable[Any]) -> FIGURES:
    cpu, wall = time.process_time(), time.perf_counter()
    await work
    return time.process_time() - cpu, time.perf_counter() - wall


def calibration() -> float:
    """Milliseconds that ``json.dumps`` of a megabyte takes."""
    value = [
        {"role": "user", "content": "a line of text\n" * 10, "number": number} for number in range(5_000)
    ]
    value = value[: len(value) * 1_000_000 // len(json.dumps(value))]
    best = min(measured(partial(json.dumps, value)) for _ in range(10))
    return 1000 * best


def measured(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


async def in_turn(loop: Loop, models: list[str], scale: int) -> FIGURES:
    """One turn after another; figures are divided by ``scale``."""

    async def all_of_them() -> None:
        for model in models:
            await loop.turn(model)

    cpu, wall = await timed(all_of_them())
    return cpu / scale, wall / scale


async def a_delta(loop: Loop, deltas: int) -> FIGURES:
    """The cost that each further delta adds to a turn with one."""
    one = await in_turn(loop, ["0-0-1"] * 5, 5)
    all_of_them = await in_turn(loop, [f"0-0-{deltas + 1}"], 1)
    return (all_of_them[0] - one[0]) / deltas, (all_of_them[1] - one[1]) / deltas


async def at_once(loop: Loop, model: str, turns: int) -> tuple[FIGURES, int]:
    """Many turns at the same time, and how many of them failed."""
    failed: list[BaseException | None] = []

    async def all_of_them() -> None:
        failed.extend(await asyncio.gather(*(loop.turn(model) for _ in range(turns)), return_exceptions=True))

    figures = await timed(all_of_them())
    return figures, sum(one is not None for one in failed)


def row(what: str, unit: str, scale: float, runs: dict[str, list[FIGURES]], **more: Any) -> dict[str, Any]:
    """Medians in ``unit``, of which a second has ``scale``; the ratio is that of each run, engine / bare."""
    figures = {
        f"{name}_{kind}": scale * statistics.median(run[at] for run in taken)
        for name, taken in runs.items()
        for at, kind in enumerate(("cpu", "wall"))
    }
    ratios = {
        f"{kind}_ratio": statistics.median(
            ours[at] / bare[at] for ours, bare in zip(runs["engine"], runs["bare"], strict=True)
        )
        for at, kind in enumerate(("cpu", "wall"))
    }
    return {"what": what, "unit": unit, **figures, **ratios, **more}


async def compare(url: str, given: argparse.Namespace, home: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    loops = {name: make(url, home) for name, make in MAKE.items()}
    for loop in loops.values():
        await loop.turn("3-0-1")
    for rounds in given.iterations:
        runs = [
            {name: await in_turn(loop, [f"{rounds}-0-1"], rounds + 1) for name, loop in loops.items()}
            for _ in range(given.runs)
        ]
        rows.append(row(f"a model call, {rounds} iterations", "ms", 1e3, columns(runs)))
    for turns in given.turns:
        model, failures = f"{given.rounds - 1}-{round(1000 * given.delay)}-1", dict.fromkeys(loops, 0)
        taken: dict[str, list[FIGURES]] = {name: [] for name in loops}
        for _ in range(max(1, given.runs // 3)):
            for name, loop in loops.items():
                figures, failed = await at_once(loop, model, turns)
                taken[name].append(figures)
                failures[name] += failed
        what = f"{turns:,} turns at once × {given.rounds} calls at {1000 * given.delay:.0f} ms"
        rows.append(row(what, "s", 1, taken, failures=failures))
    for deltas in given.deltas:
        runs = [
            {name: await a_delta(loop, deltas) for name, loop in loops.items()} for _ in range(given.runs)
        ]
        rows.append(row(f"a delta of {deltas:,}", "µs", 1e6, columns(runs)))
    for loop in loops.values():
        await loop.close()
    return rows


def columns(runs: list[dict[str, FIGURES]]) -> dict[str, list[FIGURES]]:
    return {name: [run[name] for run in runs] for name in runs[0]}


def shown(rows: list[dict[str, Any]]) -> None:
    heads = [f"{name} {kind}" for name in MAKE for kind in ("cpu", "wall")]
    print(f"{'':46} {'':2} " + " ".join(f"{head:>11}" for head in heads) + f" {'cpu ratio':>10} {'wall':>6}")
    for one in rows:
        figures = " ".join(f"{one[head.replace(' ', '_')]:>11.2f}" for head in heads)
        print(
            f"{one['what']:46} {one['unit']:2} {figures} {one['cpu_ratio']:>10.2f} {one['wall_ratio']:>6.2f}"
        )
        if failed := {name: count for name, count in one.get("failures", {}).items() if count}:
            print(f"{'':46}    failed: " + ", ".join(f"{name} {count}" for name, count in failed.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, nargs="*", default=[10, 50, 200])
    parser.add_argument("--turns", type=int, nargs="*", default=[200])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--deltas", type=int, nargs="*", default=[2_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 16_384), most))  # a connection for each turn
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    calibrated = calibration()
    with tempfile.TemporaryDirectory() as home:
        rows = asyncio.run(compare(ours.recv(), given, home))
    process.terminate()
    print(f"json.dumps of 1 MB: {calibrated:.1f} ms. Medians of {given.runs} runs.\n")
    shown(rows)
    if given.json is not None:
        given.json.write_text(json.dumps({"json_dumps_ms": calibrated, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
