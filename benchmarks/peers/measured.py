"""Times one framework inside its own environment: ``measured.py NAME URL RUNS ROUNDS...``. Standard library
alone.

The module ``turn_NAME`` of this folder has ``VERSION`` and ``async def turn(url, rounds)``. One JSON line on
standard output.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


async def spent(module: Any, url: str, rounds: int) -> float:
    """Milliseconds of processor time of one turn."""
    began = time.process_time()
    await module.turn(url, rounds)
    return 1000 * (time.process_time() - began)


async def measure(module: Any, url: str, runs: int, counts: list[int]) -> list[float]:
    await module.turn(url, 2)
    one = min([await spent(module, url, 1) for _ in range(runs)])
    return [
        (min([await spent(module, url, count) for _ in range(runs)]) - one) / (count - 1) for count in counts
    ]


def main() -> None:
    name, url, runs, *counts = sys.argv[1:]
    sys.path[0:1] = [str(Path(__file__).parent), os.getcwd()]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "HOME": home,
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": url,
            "FSM_AGENT_HOME": f"{home}/fsm",
        }
        began = time.process_time()
        module = importlib.import_module(f"turn_{name}")
        imported = 1000 * (time.process_time() - began)
        rounds = asyncio.run(measure(module, url, int(runs), [int(count) for count in counts]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"version": module.VERSION, "import": imported, "rounds": rounds, "memory": memory}))


if __name__ == "__main__":
    main()
