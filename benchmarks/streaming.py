"""What a chunk of a streamed reply costs, on each of the three wires, from the socket to the callback.

    python benchmarks/streaming.py [--chunks 2000 100000] [--json]

A server in its own process sends one reply of ``--chunks`` small pieces of text, each as its own event, as
fast as it is read. Figures are the client's processor time (user + system) in microseconds a chunk: through a
port alone, whose sink does nothing; through a whole turn of an ``Agent`` with a ``stream_delta`` callback;
and, to compare, through the official SDK's typed stream, collected by hand. A figure that grows with the
number of chunks would mean that something walks the text again for each of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.openai_port import OpenAIChat, OpenAIResponses
from fsm_agent.runtime.ports import ModelPort

PIECE = "word "
WIRES: dict[str, Callable[[str, str], ModelPort]] = {
    "chat_completions": OpenAIChat,
    "codex_responses": OpenAIResponses,
    "anthropic_messages": AnthropicMessages,
}


class Silent:
    """A sink that hears nothing."""

    def alive(self) -> None: ...
    def text(self, delta: str) -> None: ...
    def reasoning(self, delta: str) -> None: ...
    def tool(self, name: str) -> None: ...
    def arguments(self, name: str, delta: str) -> None: ...
    def notice(self, words: str) -> None: ...
    def unsent(self) -> None: ...


# The server


def events(path: str, count: int) -> tuple[list[Any], Any, list[Any]]:
    """(before, one chunk, after): what a reply of ``count`` pieces looks like on the wire of ``path``."""
    if path.endswith("/chat/completions"):
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}

        def chunk(delta: Any, finish: str | None = None) -> Any:
            return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        return (
            [chunk({"role": "assistant", "content": ""})],
            chunk({"content": PIECE}),
            [chunk({}, "stop"), "[DONE]"],
        )
    if path.endswith("/responses"):
        where = {"item_id": "i", "output_index": 0, "content_index": 0, "logprobs": [], "sequence_number": 1}
        item = {"type": "message", "id": "i", "role": "assistant", "status": "in_progress", "content": []}
        whole = {"type": "output_text", "text": PIECE * count, "annotations": []}
        done = {**item, "status": "completed", "content": [whole]}
        response = {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "tools": [],
            "tool_choice": "auto",
        }
        return (
            [
                {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
                {"type": "response.output_item.added", "output_index": 0, "item": item},
            ],
            {"type": "response.output_text.delta", "delta": PIECE, **where},
            [
                {"type": "response.output_item.done", "output_index": 0, "item": done},
                {
                    "type": "response.completed",
                    "response": {**response, "status": "completed", "output": [done]},
                },
            ],
        )
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    return (
        [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ],
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": PIECE}},
        [
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ],
    )


def sse(event: Any) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event)}\n\n".encode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One reply a connection; how many pieces it has is the model's name."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = next(
        int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length:")
    )
    count = int(json.loads(await reader.readexactly(length))["model"])
    before, chunk, after = events(head.split()[1], count)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    writer.write(b"".join(map(sse, before)))
    piece, left = sse(chunk), count
    while left:
        writer.write(piece * min(left, 20))  # a few events a packet, as networks deliver them
        left -= min(left, 20)
        await writer.drain()
    writer.write(b"".join(map(sse, after)))
    await writer.drain()
    writer.close()


def serve(pipe: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**24)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        async with server:
            await server.serve_forever()

    asyncio.run(run())


# The clients


async def through_port(url: str, wire: str, count: int) -> None:
    body = {"model": str(count), "stream": True, "messages": [], "input": []}
    port = WIRES[wire](url, "k")
    reply = await port.call(ModelRequest(json.dumps(body).encode()), Silent())
    assert len(getattr(reply, "text", "")) == len(PIECE) * count, reply
    await port.aclose()


async def through_turn(url: str, wire: str, count: int) -> None:
    heard: list[str | None] = []
    with tempfile.TemporaryDirectory() as home:
        agent = Agent(
            f"local:{count}",
            base_url=url,
            api_mode=wire,
            api_key="k",
            toolsets=[],
            system_prompt="Be long.",
            context_window=10_000_000,
            home=home,
            callbacks={"stream_delta": heard.append},
        )
        result = await agent.arun("go")
        assert (
            len(result.final_response or "") == len((PIECE * count).strip())
            or result.final_response == PIECE * count
        ), result.error
        assert sum(len(text or "") for text in heard) == len(PIECE) * count
        await agent.aclose()


async def through_sdk(url: str, wire: str, count: int) -> None:
    text: list[str] = []
    if wire == "anthropic_messages":
        import anthropic

        async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="k") as claude:
            stream = await claude.messages.create(model=str(count), messages=[], max_tokens=1, stream=True)
            async for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text.append(event.delta.text)
    else:
        import openai

        async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
            if wire == "codex_responses":
                async for said in await client.responses.create(model=str(count), input=[], stream=True):
                    if said.type == "response.output_text.delta":
                        text.append(said.delta)
            else:
                async for chunk in await client.chat.completions.create(
                    model=str(count), messages=[], stream=True
                ):
                    text.append(chunk.choices[0].delta.content or "")
    assert len("".join(text)) == len(PIECE) * count


async def chunk_cost(
    way: Callable[[str, str, int], Awaitable[None]], url: str, wire: str, count: int
) -> float:
    """Microseconds of processor time a chunk, the best of a few runs; what a call costs without chunks is
    taken off."""

    async def spent(chunks: int) -> float:
        began = time.process_time()
        await way(url, wire, chunks)
        return time.process_time() - began

    runs = 3 if count <= 10_000 else 1
    await spent(1)
    empty = min([await spent(1) for _ in range(3)])
    return 1e6 * (min([await spent(count) for _ in range(runs)]) - empty) / count


async def measure(url: str, counts: list[int]) -> list[dict[str, Any]]:
    ways = {"port": through_port, "turn": through_turn, "sdk": through_sdk}
    return [
        {
            "wire": wire,
            "chunks": count,
            **{name: await chunk_cost(way, url, wire, count) for name, way in ways.items()},
        }
        for wire in WIRES
        for count in counts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    rows = asyncio.run(measure(ours.recv(), given.chunks))
    process.terminate()
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds of processor time a chunk\n")
    print(f"{'wire':20} {'chunks':>8} {'port alone':>11} {'whole turn':>11} {'SDK, typed':>11}")
    for row in rows:
        print(
            f"{row['wire']:20} {row['chunks']:>8,} {row['port']:>11.1f} {row['turn']:>11.1f}"
            f" {row['sdk']:>11.1f}"
        )


if __name__ == "__main__":
    main()
