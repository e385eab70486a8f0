"""What it costs to begin: importing, making an agent, and the first answer of the command line.

    python benchmarks/startup.py [--runs N] [--json FILE]

Each figure is the median of fresh processes, in seconds of processor time (user and system); compiled files
are warm, because the first process of each kind is not counted. A bare Python and ``import pydantic``
are measured, too, so that figures of different machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = {
    "python": ["-c", "pass"],
    "import pydantic": ["-c", "from pydantic import BaseModel; type('Model', (BaseModel,), {})"],
    "from fsm_agent import Agent": ["-c", "from fsm_agent import Agent"],
    "Agent(model)": ["-c", "from fsm_agent import Agent; Agent('openai:m', api_key='k')"],
    "--version": ["-m", "fsm_agent", "--version"],
    "sessions list": ["-m", "fsm_agent", "sessions", "list"],
    "first answer": ["-m", "fsm_agent", "run", "--model", "offline:demo", "hi"],
}


def measured(arguments: list[str], home: str) -> tuple[float, float]:
    """Return (processor time, wall time) of a Python with these arguments, in seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "FSM_AGENT_HOME": home},
        check=True,
        capture_output=True,
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(given.runs + 1):  # one of each kind by turns: a noisy minute is everybody's
            for name, arguments in KINDS.items():
                taken[name].append(measured(arguments, home))
    found = {
        name: {
            "cpu": statistics.median(cpu for cpu, _ in runs[1:]),
            "wall": statistics.median(wall for _, wall in runs[1:]),
        }
        for name, runs in taken.items()
    }
    for row in found.values():
        row["per_pydantic"] = row["cpu"] / found["import pydantic"]["cpu"]
    print(f"{'':<30} {'cpu s':>7} {'wall s':>7} {'× pydantic':>11}")
    for name, row in found.items():
        print(f"{name:<30} {row['cpu']:>7.3f} {row['wall']:>7.3f} {row['per_pydantic']:>11.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
