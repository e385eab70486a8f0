"""What a long history costs: making the next request, and sending it.

    python benchmarks/long_history.py [--json [FILE]]

1. *Building*: the time to make request N+1 after request N (one tool round was added), for histories of 10 to
   5,000 rows, beside the time to make the first request over the same history.
2. *Sending*: the client's processor time for one streamed call on histories of 10 and 1,000 rows, through the
   low-level door of the SDK that the engine uses, and through its typed ``create()``. The server runs in a
   process of its own.
3. *Whole turns*: processor time of all threads for a turn of one call, over histories of 10 and 5,000 rows
   that are handed over for the first time, handed over again as the last turn gave them back, and stored in
   the session; beside a streamed call of the bare SDK with the same rows.
4. *Compacting*: pruning, dividing and assembling 2,000 rows, without the summary call (target: under 100 ms).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.compaction import summary_prompt
from fsm_agent.conversation.compaction.plan import assemble, divide, prune
from fsm_agent.conversation.effects import ModelRequest, Runtime
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent.providers.openai_port import OpenAIChat
from fsm_agent.testing import ScriptedServer, repeat, text

RUNTIME = Runtime("openai", "scripted")
LINE = "a line of tool output with a little text in it\n" * 8


class Silent:
    """A sink that hears nothing."""

    def alive(self) -> None: ...
    def text(self, delta: str) -> None: ...
    def reasoning(self, delta: str) -> None: ...
    def tool(self, name: str) -> None: ...
    def arguments(self, name: str, delta: str) -> None: ...
    def notice(self, words: str) -> None: ...
    def unsent(self) -> None: ...


def rounds(rows: int) -> list[Message]:
    history = [Message("user", "go")]
    while len(history) < rows:
        history += one_round(len(history))
    return history[:rows]


def one_round(number: int) -> list[Message]:
    call = ToolCall(f"call_{number}", "look", json.dumps({"path": f"file_{number}.txt", "lines": 20}))
    return [Message("assistant", None, tool_calls=(call,)), Message("tool", LINE, tool_call_id=call.id)]


def body_of(wire: WireCopy, history: list[Message]) -> bytes:
    messages = wire.messages("You look at things.", history, (), View.of(RUNTIME, frozenset()))
    return format_of("chat_completions").body(Ask(RUNTIME), messages)


def building(rows: int, runs: int) -> dict[str, float]:
    history, wire = rounds(rows), WireCopy()
    begun = time.perf_counter()
    body_of(wire, history)
    first, following = time.perf_counter() - begun, []
    for number in range(runs):
        history += one_round(rows + 2 * number)
        begun = time.perf_counter()
        body_of(wire, history)
        following.append(time.perf_counter() - begun)
    return {"rows": rows, "first_ms": 1000 * first, "next_ms": 1000 * statistics.median(following)}


async def sending(url: str, rows: int, runs: int) -> dict[str, float]:
    import openai

    history, wire = rounds(rows + 1), WireCopy()
    body = body_of(wire, history)
    messages: Any = json.loads(body)["messages"]
    port = OpenAIChat(url, "k")
    door, create = [], []
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        for _ in range(runs + 2):
            begun = time.process_time()
            await port.call(ModelRequest(body), Silent())
            door.append(time.process_time() - begun)
            begun = time.process_time()
            stream = await client.chat.completions.create(model="scripted", messages=messages, stream=True)
            async for _chunk in stream:
                pass
            create.append(time.process_time() - begun)
    await port.aclose()
    return {
        "rows": rows,
        "door_ms": 1000 * statistics.median(door[2:]),
        "create_ms": 1000 * statistics.median(create[2:]),
    }


async def turns(url: str, rows: int, runs: int) -> dict[str, float]:
    import openai

    history: Any = [row.to_dict() for row in rounds(rows)]
    first, again, stored, bare = [], [], [], []
    with tempfile.TemporaryDirectory() as home:

        async def turn(agent: Agent, handed: Any = None) -> tuple[float, Any]:
            begun = time.process_time()
            result = await agent.arun("continue", conversation_history=handed)
            assert result.completed, result.error
            return time.process_time() - begun, result.messages

        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            for _ in range(runs):
                agent = Agent("openai:scripted", base_url=url, api_key="k", home=home, toolsets=[])
                took, said = await turn(agent, history)
                first.append(took)
                await asyncio.sleep(0.5)  # what is done beside turns, such as indexing, is not theirs
                took, said = await turn(agent, said)
                again.append(took)
                stored.append((await turn(agent))[0])
                await agent.aclose()
                begun = time.process_time()
                stream = await client.chat.completions.create(model="scripted", messages=history, stream=True)
                async for _chunk in stream:
                    pass
                bare.append(time.process_time() - begun)
    ways = {"first": first, "again": again, "stored": stored, "bare": bare}
    return {"rows": rows} | {f"{way}_ms": 1000 * statistics.median(took) for way, took in ways.items()}


def compacting(rows: int, runs: int) -> dict[str, float]:
    history, took = rounds(rows), []
    for _ in range(runs):
        begun = time.perf_counter()
        shorter = prune(history, 8)
        division = divide(shorter, front=3, tail_chars=60_000, tail_rows=8, soft_factor=1.5)
        summary_prompt(division.middle, window=128_000)
        assemble(division, "what happened")
        took.append(time.perf_counter() - begun)
    return {"rows": rows, "ms": 1000 * statistics.median(took)}


def serve(pipe: Connection) -> None:
    with ScriptedServer(repeat(text("a short answer"))) as server:
        pipe.send(server.url)
        pipe.recv()


async def measure(url: str, runs: int) -> dict[str, list[dict[str, float]]]:
    await sending(url, 10, 3)
    return {
        "building": [building(rows, runs) for rows in (10, 100, 1_000, 5_000)],
        "sending": [await sending(url, rows, runs) for rows in (10, 1_000)],
        "turns": [await turns(url, rows, 5) for rows in (10, 5_000)],
        "compacting": [compacting(rows, 5) for rows in (200, 2_000)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", nargs="?", type=argparse.FileType("w"), const=sys.stdout, metavar="FILE")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    measured = asyncio.run(measure(ours.recv(), given.runs))
    ours.send("stop")
    process.join(10)
    if given.json:
        print(json.dumps(measured, indent=2), file=given.json)
        return
    print(f"{'rows':>6} {'first request ms':>17} {'next request ms':>16}")
    for row in measured["building"]:
        print(f"{row['rows']:>6.0f} {row['first_ms']:>17.3f} {row['next_ms']:>16.3f}")
    print(f"\n{'rows':>6} {'low-level door, cpu ms':>23} {'create(), cpu ms':>17}")
    for row in measured["sending"]:
        print(f"{row['rows']:>6.0f} {row['door_ms']:>23.2f} {row['create_ms']:>17.2f}")
    short, long = measured["sending"]
    print(
        f"\n1,000 rows cost {long['door_ms'] / short['door_ms']:.2f} × 10 rows through the door, "
        f"{long['create_ms'] / short['create_ms']:.2f} × through create()"
    )

    print(f"\n{'rows':>6} {'handed over':>12} {'again':>8} {'stored':>8} {'bare SDK, cpu ms':>17}")
    for row in measured["turns"]:
        figures = [row[f"{way}_ms"] for way in ("first", "again", "stored")]
        print("{:>6.0f} {:>12.1f} {:>8.1f} {:>8.1f} {:>17.1f}".format(row["rows"], *figures, row["bare_ms"]))
    print("of the bare SDK's: " + ", ".join(f"1/{row['bare_ms'] / one:.0f}" for one in figures) + "\n")
    for row in measured["compacting"]:
        print(f"compacting {row['rows']:,.0f} rows: {row['ms']:.1f} ms")


if __name__ == "__main__":
    main()
