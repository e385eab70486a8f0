"""The figures of the pages and their picture, from one run of the benchmarks.

    python benchmarks/figures.py --measure    # some ten minutes; nothing else should run meanwhile
    python benchmarks/figures.py --commands demo test    # what these targets take in a fresh clone
    python benchmarks/figures.py              # rewrite the pages from the measurements
    python benchmarks/figures.py --check      # check that they match the measurements

The measurements are in ``benchmarks/measured/``, one object per program, as its ``--json`` writes it. On
the pages, everything between ``<!-- figures NAME -->`` and ``<!-- end of figures -->`` is written by this
program."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
COMMANDS = ("demo", "test")
PROGRAMS = ("overhead", "many_turns", "journal", "startup", "long_history")
BLOCK = re.compile(r"(?s)(<!-- figures (\w+) -->\n).*?(<!-- end of figures -->)")

Rows = list[dict[str, Any]]


def measure() -> None:
    """Run every program, and keep what it says."""
    MEASURED.mkdir(exist_ok=True)
    for name in PROGRAMS:
        print(f"{name} …", flush=True)
        command = [sys.executable, f"benchmarks/{name}.py", "--json", str(MEASURED / f"{name}.json")]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
    (MEASURED / "machine.json").write_text(json.dumps(machine, indent=2) + "\n", encoding="utf-8")


def measure_commands(names: Sequence[str]) -> None:
    """Run targets of the Makefile in a fresh clone, each twice, and keep the seconds that they take."""
    file = MEASURED / "commands.json"
    seconds: dict[str, dict[str, float]] = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    )
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder, environment = f"{place}/fsm_agent", os.environ | {"FSM_AGENT_HOME": f"{place}/home"}
            subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
            for which in ("first", "again"):
                print(f"make {name}, {which} …", flush=True)
                began = time.monotonic()
                subprocess.run(
                    ["make", name], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
                )
                seconds.setdefault(name, {})[which] = round(time.monotonic() - began, 1)
    file.write_text(json.dumps(seconds, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def known(name: str) -> Any:
    """What was measured by a program."""
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


def calls_of(rows: Rows) -> list[tuple[int, dict[str, Any]]]:
    """(iterations of the turn, what a model call costs in it)."""
    named = ((re.match(r"a model call, (\d+) iterations", row["what"]), row) for row in rows)
    return [(int(found[1]), row) for found, row in named if found is not None]


# Text of the pages


def commands() -> str:
    """What the first commands of the README take."""
    parts = [
        f"`make {name}` takes {spelled(found['first'])} on a fresh clone,"
        f" {spelled(found['again'])} when it is run again"
        for name, found in known("commands").items()
    ]
    words = (
        "They need Python 3.11, 3.12, or 3.13 and `make`, and install everything else into `.venv`:"
        f" {'; '.join(parts)}"
        f" ({known('machine')['cpus']} cores)."
    )
    return textwrap.fill(words, 140, break_long_words=False, break_on_hyphens=False) + "\n"


def spelled(seconds: float) -> str:
    """``8 s``, ``3 min 20 s``; never less than a second."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    return " ".join(part for part in (f"{minutes} min" * (minutes > 0), f"{rest} s" * (rest > 0)) if part)


def in_a_word() -> str:
    """The sentence of the README."""
    calls = calls_of(known("overhead")["rows"])
    (few, short), (many, long) = calls[0], calls[-1]
    words = (
        f"A model call with a tool call costs {short['engine_cpu']:.1f} ms of CPU in a turn of {few} and"
        f" {long['engine_cpu']:.1f} ms in one of {many} calls, streamed over HTTP with every move on disk. A"
        f" bare loop over the official SDK, which stores nothing, takes {short['bare_cpu']:.1f} and"
        f" {long['bare_cpu']:.1f} ms, because it validates the whole conversation with each request."
        " [`benchmarks/`](benchmarks/README.md) has the method, all figures, and other frameworks."
    )
    return textwrap.fill(words, 140, break_long_words=False, break_on_hyphens=False) + "\n"


def overhead() -> str:
    """Calls, many turns at once, and deltas, beside a bare loop."""
    found = known("overhead")
    lines = [
        "| | bare loop, CPU | raw httpx, CPU | engine, CPU | engine / bare | the same, wall |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        failed, unit = sum(row.get("failures", {}).values()), row["unit"]
        lines.append(
            f"| {row['what']}{f', {failed} failed' if failed else ''} | {row['bare_cpu']:,.1f} {unit} |"
            f" {row['httpx_cpu']:,.1f} {unit} | {row['engine_cpu']:,.1f} {unit} |"
            f" {row['cpu_ratio']:.2f} | {row['wall_ratio']:.2f} |"
        )
    about = known("machine")
    said = (
        f"{about['cpus']} cores ({about['machine']}), Python {about['python']}, where `json.dumps` of 1 MB"
        f" takes {found['json_dumps_ms']:.1f} ms."
    )
    return "\n".join([said, "", *lines]) + "\n"


def startup() -> str:
    """Importing, and the first answer."""
    lines = ["| | CPU | wall | CPU / `import pydantic` |", "|---|---:|---:|---:|"]
    for name, row in known("startup").items():
        lines.append(f"| `{name}` | {row['cpu']:.2f} s | {row['wall']:.2f} s | {row['per_pydantic']:.1f} |")
    return "\n".join(lines) + "\n"


def journal() -> str:
    """What the disk adds, and how the file grows."""
    lines = ["| | |", "|---|---:|"]
    lines += [f"| {name} | {value:,.2f} |" for name, value in sorted(known("journal").items())]
    return "\n".join(lines) + "\n"


def many_turns() -> str:
    """Turns at once."""
    lines = [
        "| | turns | failed | wall, s | CPU, s | MB more than one turn |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['way']} | {row['turns']:,} | {row['failed']} | {row['wall']:.1f} | {row['cpu']:.1f} |"
        f" {row['more']:.0f} |"
        for row in known("many_turns")
    ]
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "in_a_word": in_a_word,
    "overhead": overhead,
    "startup": startup,
    "journal": journal,
    "many_turns": many_turns,
}


def page(path: Path) -> str:
    """The page with its figures as they were measured."""
    text = path.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}{WRITERS[found[2]]()}{found[3]}", text)


def picture() -> str:
    """Two bars for each length of a turn: the bare loop and the engine."""
    calls = calls_of(known("overhead")["rows"])
    most = max(max(row["bare_cpu"], row["engine_cpu"]) for _, row in calls)
    parts: list[str] = []
    for place, (rounds, row) in enumerate(calls):
        top = 46 + place * 62
        parts.append(f'<text x="16" y="{top + 26}">turn of {rounds}</text>')
        bars: Sequence[tuple[str, str]] = (("bare loop over the SDK", "bare"), ("fsm_agent", "engine"))
        for line, (words, name) in enumerate(bars):
            value = row[f"{name}_cpu"]
            y, width = top + line * 24, max(2.0, 420 * value / most)
            parts.append(f'<rect class="{name}" x="110" y="{y}" width="{width:.0f}" height="19" rx="3"/>')
            parts.append(f'<text x="{118 + width:.0f}" y="{y + 14}">{value:.1f} ms  {words}</text>')
    height = 56 + len(calls) * 62
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="830" height="{height}"'
            f' viewBox="0 0 830 {height}" role="img">',
            "<title>CPU of a model call with a tool call, in turns of different lengths</title>",
            "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.bare{fill:#8c959f}.engine{fill:#1a7f37}"
            "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.engine{fill:#3fb950}}</style>",
            '<text x="16" y="26">CPU of a model call with a tool call, streamed over HTTP;'
            " the engine writes every move to disk</text>",
            *parts,
            "</svg>\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=())
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.measure:
        measure()
    if given.commands:
        measure_commands(given.commands)
    wanted = {path: page(path) for path in PAGES} | {PICTURE: picture()}
    stale = [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if given.check:
        print("\n".join(f"{path.relative_to(ROOT)} is not what was measured" for path in stale), end="")
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
