"""The same turn with other agent frameworks, each in an environment of its own: processor time a round, and
of an import.

    python benchmarks/peers/compare.py             # installs what is missing below ~/.cache/fsm-agent-peers
    python benchmarks/peers/compare.py --only fsm_agent bare pydantic_ai --rounds 10 100 --environments DIR
    --json

None of them is a dependency. One server on loopback, in a process of its own, plays the model for all: it
asks for one more call of the tool ``look`` until the wanted number of rounds is in the transcript, and then
says "done". A file of this folder for each says how its users would run such a turn; ``measured.py`` times it
inside the framework's environment. Figures:

import     processor time of importing what the turn needs, milliseconds, in a fresh process
round      processor time of one model call and one tool call: the difference between a turn of many rounds
           and one of one
           round, over the rounds between; the best of a few runs. What grows from column to column walks the
           conversation
memory     the most resident memory of the process, megabytes

Time spent waiting is not counted. A framework that cannot be installed, or that refuses such a server, is
named with its reason."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import venv
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fsm_agent.testing import Received, ScriptedServer, call, repeat, text, tools

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS: dict[str, tuple[str, ...]] = {
    "fsm_agent": (),
    "bare": (),
    "pydantic_ai": ("pydantic-ai-slim[openai]",),
    "openai_agents": ("openai-agents",),
    "langgraph_react": ("langgraph", "langchain", "langchain-openai"),
    "smolagents_loop": ("smolagents[openai]",),
    "hermes": ("hermes-agent==0.19.*",),
}
"""What is installed for each; nothing means: this environment."""


def reply_to(request: Received) -> Any:
    """The model's name is the number of rounds."""
    done = sum(row["role"] == "tool" for row in request.body["messages"])
    return text("done") if done >= int(request.body["model"]) else tools(call("look", {"n": done}))


def serve(pipe: Connection) -> None:
    with ScriptedServer(repeat(reply_to)) as server:
        pipe.send(server.url)
        pipe.recv()


def interpreter(name: str, environments: Path) -> str:
    """The Python that has the framework, installed first if need be. Raises ``CalledProcessError`` with what
    pip said."""
    if not PEERS[name]:
        return sys.executable
    folder = environments / name
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *PEERS[name]]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "installed").touch()
    return str(python)


def measured(name: str, python: str, url: str, rounds: list[int], runs: int) -> dict[str, Any]:
    command = [python, str(HERE / "measured.py"), name, url, str(runs), *map(str, rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    if done.returncode:
        return {"peer": name, "problem": (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"peer": name, **found}


def compare(
    names: list[str], url: str, environments: Path, rounds: list[int], runs: int
) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        try:
            rows.append(measured(name, interpreter(name, environments), url, rounds, runs))
        except subprocess.CalledProcessError as error:
            rows.append(
                {"peer": name, "problem": (error.stderr or str(error)).strip().splitlines()[-1][:200]}
            )
        except subprocess.TimeoutExpired:
            rows.append({"peer": name, "problem": "not done within ten minutes"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "fsm-agent-peers")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    rows = compare(given.only, ours.recv(), given.environments, given.rounds, given.runs)
    ours.send("stop")
    process.join(10)
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    columns = "".join(f"{f'round of {count}, ms':>18}" for count in given.rounds)
    print(f"{'':18} {'version':>12} {'import, ms':>11}{columns} {'memory, MB':>11}")
    for row in rows:
        if "problem" in row:
            print(f"{row['peer']:18} could not be compared: {row['problem']}")
            continue
        figures = "".join(f"{figure:>18.2f}" for figure in row["rounds"])
        print(f"{row['peer']:18} {row['version']:>12} {row['import']:>11.0f}{figures} {row['memory']:>11.0f}")


if __name__ == "__main__":
    main()
