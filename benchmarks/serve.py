"""What a server adds to its model: many clients that stream at once, over real connections.

    python benchmarks/serve.py [--clients 200] [--seconds 60] [--json]

``fsm-agent serve`` runs in a process of its own. Its model says its first piece after 0.2 s and then ten
pieces a second, fifty in all. Each client begins one turn after the other, each in a session of its own, and
follows its events over the same connection.

first     from before the request that begins a turn to its first piece of text at the client, less the 0.2 s
          of the model: begun in the store, claimed, prompted, called, streamed
cpu       of the server process, in milliseconds a turn; unlike ``first`` it means the same on a busy machine
memory    of the server: after a fifth of the time, after seven tenths, and at the end
lost      turns whose text, as the client got it, is not what the model said, or that did not end
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fsm_agent import Agent
from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.runtime.ports import StreamSink

ROOT = Path(__file__).parents[1]
FIRST, PAUSE, PIECES = 0.2, 0.1, 50
SAID = [f"piece{number} " for number in range(PIECES)]


class SpeakingModel:
    """A model that speaks at its own pace."""

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply:
        await asyncio.sleep(FIRST)
        for number, piece in enumerate(SAID):
            if number:
                await asyncio.sleep(PAUSE)
            sink.alive()
            sink.text(piece)
        return ModelReply("".join(SAID), usage=Usage(10, PIECES), model="speaking")

    def use_key(self, key: str) -> None: ...

    async def rebuild(self) -> None: ...

    async def aclose(self) -> None: ...


def make_agent() -> Agent[Any, Any]:
    """The agent of one turn."""
    return Agent(
        SpeakingModel(), toolsets=[], system_prompt="You speak.",
        settings={"prompt": {"context_files": False}, "store": {"index": False}},
    )  # fmt: skip


@dataclass
class Seen:
    """What the clients saw; ``over``: seconds to the first piece, beyond the model's own."""

    over: list[float] = field(default_factory=list)
    turns: int = 0
    events: int = 0
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The figures, in milliseconds and MB."""

    clients: int
    seconds: float
    turns: int
    events: int
    first_p50_ms: float
    first_p95_ms: float
    cpu_ms: float
    memory_early_mb: float
    memory_middle_mb: float
    memory_end_mb: float
    lost: int


class Client:
    """One client: a connection for each turn, as plain bytes."""

    def __init__(self, port: int, token: str, seen: Seen) -> None:
        self._port, self._token, self._seen = port, token, seen

    async def run(self, until: float) -> None:
        """One turn after the other."""
        await asyncio.sleep(random.uniform(0, FIRST + PAUSE * PIECES))
        while time.monotonic() < until:
            try:
                await self._turn()
            except Exception as error:
                self._seen.lost.append(f"{type(error).__name__}: {error}")

    async def _turn(self) -> None:
        began = time.monotonic()
        body = json.dumps({"content": "speak"}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._head("POST", "/api/turns", len(body)) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert head.startswith(b"HTTP/1.1 202"), head
            assert length is not None
            turn = json.loads(await reader.readexactly(int(length[1])))["turn"]
            writer.write(self._head("GET", f"/api/turns/{turn}/events"))
            await reader.readuntil(b"\r\n\r\n")
            await self._read(reader, began)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, began: float) -> None:
        text, ids, ended = list[str](), set[bytes](), False
        while not ended:
            chunk = await reader.readuntil(b"\n\n\r\n")
            for block in chunk.split(b"\n\n"):
                found = re.search(rb"id: (\S+)\n", block)
                if found is not None:
                    assert found[1] not in ids, f"{found[1]!r} came twice"
                    ids.add(found[1])
                    self._seen.events += 1
                if b"event: stream_delta" in block:
                    piece = json.loads(block[block.index(b"data: ") + 6 :])["values"]["text"]
                    if piece and not text:
                        self._seen.over.append(time.monotonic() - began - FIRST)
                    text.append(piece or "")
                ended = ended or b"event: end" in block or b"event: error" in block
        self._seen.turns += 1
        if "".join(text).strip() != "".join(SAID).strip():
            self._seen.lost.append("".join(text)[:80])

    def _head(self, method: str, path: str, length: int = 0) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


def measure(clients: int, seconds: float) -> Report:
    """Begin a server, let the clients stream, and end it."""
    with tempfile.TemporaryDirectory(prefix="fsm-serve-") as folder:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'states'}", "FSM_AGENT_HOME": folder,
        }  # fmt: skip
        words = [sys.executable, "-m", "fsm_agent", "serve", "--app", "benchmarks.serve:make_agent"]
        log = Path(folder) / "log"
        with log.open("wb") as said:
            server = subprocess.Popen(words, env=environment, cwd=ROOT, stdout=said, stderr=said)
        try:
            while (found := re.search(r":(\d+)  token (\S+)", log.read_text())) is None:
                assert server.poll() is None, log.read_text()
                time.sleep(0.05)
            return asyncio.run(_stream(clients, seconds, int(found[1]), found[2], server.pid))
        finally:
            server.terminate()
            server.wait(60)


async def _stream(clients: int, seconds: float, port: int, token: str, pid: int) -> Report:
    seen, until, used = Seen(), time.monotonic() + seconds, _cpu(pid)
    running = [asyncio.create_task(Client(port, token, seen).run(until)) for _ in range(clients)]
    await asyncio.sleep(seconds / 5)
    early = _memory(pid)
    await asyncio.sleep(seconds / 2)
    middle = _memory(pid)
    await asyncio.gather(*running)
    cuts = statistics.quantiles(seen.over, n=20)
    for one in seen.lost[:5]:
        print(f"lost: {one}", file=sys.stderr)
    return Report(
        clients, seconds, seen.turns, seen.events, statistics.median(seen.over) * 1000, cuts[-1] * 1000,
        (_cpu(pid) - used) * 1000 / seen.turns,
        early, middle, _memory(pid), len(seen.lost),
    )  # fmt: skip


def _cpu(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = measure(given.clients, given.seconds)
    if given.json:
        print(json.dumps(asdict(report)))
        return
    for name, value in asdict(report).items():
        print(f"{name:<16} {value:>12,.1f}" if isinstance(value, float) else f"{name:<16} {value:>12,}")


if __name__ == "__main__":
    main()
