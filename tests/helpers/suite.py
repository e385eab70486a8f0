"""Run tests in several processes, show how far they are, and say what they cost.

    python -m tests.helpers.suite -m "not slow"                # two workers
    python -m tests.helpers.suite --workers 1 tests/fsm
    python -m tests.helpers.suite --budget 230 -m "not slow"   # fail when it costs a tenth more CPU than that
    python -m tests.helpers.suite --keep -m "not slow"         # keep this run's profile for the next budgets
    python -m tests.helpers.suite --profile slow --keep -m slow  # and in a file of its own
    python -m tests.helpers.suite --shuffle 7 -m "not slow"    # in random order, the same for each 7

Each worker is a pytest process that takes one test file after the other, slowest first, so a file is imported
by one worker only. Unknown options are passed to pytest unchanged.

The commit chooses the examples of hypothesis, so that what a run finds is found again at its commit (see
``tests.helpers.sample``), unless ``--hypothesis-seed`` does.

CPU is user and system time of the workers and of every process that they started and waited for. The profile
in ``benchmarks/measured/suite.json`` holds the CPU seconds of each test function that takes more than
``WORTH_NAMING``, the seconds of each file, and the seconds that a fixed piece of work took on the machine it
was measured on: on one that was slower during the run the budget is larger by as much. The files take another time in the slow
suite, so its order has a profile of its own, ``slow.json`` beside it: a long file that begins last leaves the
other workers idle."""

# A test worker takes one file after another. With pytest-xdist each worker imports all test modules (10 s of
# CPU each). A queue of files, most expensive first, imports each once. It also counts CPU seconds per test: a
# budget in CPU holds on a busy machine, a budget in seconds does not.

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pytest

from tests.helpers import sample

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "benchmarks" / "measured"
PLACE = "SUITE_PLACE"
"""The environment variable that tells a worker the folder with its queue."""
SHUFFLE = "SUITE_SHUFFLE"
"""The one that tells it the seed of an order of its own."""
WORTH_NAMING = 0.05
"""CPU seconds: test functions below this are not in the profile."""
EVERY = 10.0
"""Seconds after which the speed of the machine is measured again. Once is not enough: on a virtual machine it
varies by a factor of two within minutes."""


class Case(NamedTuple):
    """What a worker reports of a test case that has ended: CPU and wall in seconds."""

    id: str
    outcome: str
    cpu: float
    wall: float


# A worker


def pytest_configure(config: pytest.Config) -> None:
    if place := os.environ.pop(PLACE, None):
        config.pluginmanager.register(Worker(Path(place)))


class Worker:
    """Take files from the queue until none is left, and report each case in a line."""

    def __init__(self, place: Path) -> None:
        self._queue = place / "queue"
        self._reports = (place / f"cases-{os.getpid()}").open("a", encoding="utf-8", buffering=1)
        self._files: dict[str, pytest.Item | pytest.Collector] | None = None
        self._outcome = ""

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files, and import none."""
        session.perform_collect(genitems=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item | pytest.Collector]) -> None:
        """Keep the files before anything is deselected: which tests are wanted shows when they are imported."""
        if self._files is None:
            self._files = {file.nodeid: file for file in items}
            items.clear()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = self._items(session)
        session.testscollected = 0
        item = next(items, None)
        while item is not None:
            following = next(items, None)  # fixtures of a session live as long as there is one
            session.testscollected += 1
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
            item = following
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        hook = session.config.hook
        while (name := self._next_file()) is not None:
            before = cpu()
            assert self._files is not None
            session.items = list(session.genitems(self._files.pop(name)))
            if seed := os.environ.get(SHUFFLE):
                random.Random(seed + name).shuffle(session.items)
            hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
            hook.pytest_collection_finish(session=session)
            self._report(Case(name, "collected", cpu() - before, 0))
            yield from session.items

    def _next_file(self) -> str | None:
        with self._queue.open("r+", encoding="utf-8") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            first, *rest = queue.read().split("\n")
            queue.seek(0)
            queue.truncate()
            queue.write("\n".join(rest))
        return first or None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before, began, self._outcome = cpu(), time.monotonic(), "passed"
        try:
            return (yield)
        finally:
            self._report(Case(item.nodeid, self._outcome, cpu() - before, time.monotonic() - began))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._outcome = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report(Case(report.nodeid, "failed", 0, 0))

    def _report(self, case: Case) -> None:
        self._reports.write(json.dumps(case) + "\n")


def cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


# The run


class Run:
    """Workers over a list of files, and what they reported."""

    def __init__(self, files: Sequence[str], options: Sequence[str], workers: int) -> None:
        self._files, self._options, self._workers = files, options, workers
        self._reports: dict[Path, TextIO] = {}
        self.cases: list[Case] = []
        self.wall = self.cpu = 0.0
        self._works: list[float] = []

    @property
    def work(self) -> float:
        """CPU seconds that a fixed piece of work took, in the middle of those measured during the run."""
        return statistics.median(self._works)

    @property
    def counts(self) -> Counter[str]:
        return Counter(case.outcome for case in self.cases if case.outcome != "collected")

    def run(self) -> int:
        """Run all and return the worst exit status; output of workers is printed where something failed."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="suite-") as folder:
            place = Path(folder)
            (place / "queue").write_text("\n".join(self._files), encoding="utf-8")
            own = [
                "-m",
                "pytest",
                "-p",
                "tests.helpers.suite",
                f"--hypothesis-seed={sample.seed('examples')}",
            ]
            command = [sys.executable, *own, *self._options, *self._files]
            outputs = [(place / f"output-{n}").open("w+b") for n in range(self._workers)]
            processes = [
                subprocess.Popen(command, cwd=ROOT, env=os.environ | {PLACE: folder}, stdout=out, stderr=out)
                for out in outputs
            ]
            try:
                while any(process.poll() is None for process in processes):
                    time.sleep(0.1)
                    self._read(place)
                    self._show(time.monotonic() - began)
                    if time.monotonic() - began >= EVERY * len(self._works):
                        self._works.append(work())
            except KeyboardInterrupt:
                for process in processes:
                    process.wait()
                raise
            self._read(place)
            for reports in self._reports.values():
                reports.close()
            self.wall = time.monotonic() - began
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.cpu = spent.ru_utime + spent.ru_stime
            if sys.stdout.isatty():
                print("\r\033[K", end="")
            statuses = [process.returncode for process in processes]
            left = (place / "queue").read_text(encoding="utf-8")
            for status, output in zip(statuses, outputs, strict=True):
                output.seek(0)
                if status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                    print(output.read().decode(errors="replace"))
                output.close()
            if left and not any(statuses):
                statuses.append(1)
        if not self.counts:
            return int(pytest.ExitCode.NO_TESTS_COLLECTED)
        return max((s for s in map(abs, statuses) if s != pytest.ExitCode.NO_TESTS_COLLECTED), default=0)

    def _read(self, place: Path) -> None:
        for file in place.glob("cases-*"):
            reports = self._reports.get(file) or self._reports.setdefault(file, file.open(encoding="utf-8"))
            self.cases += [Case(*json.loads(line)) for line in reports]

    def _show(self, seconds: float) -> None:
        if sys.stdout.isatty():
            files = sum(case.outcome == "collected" for case in self.cases)
            print(
                f"\r\033[K{files} of {len(self._files)} files: {self.said()}, {seconds:.0f} s",
                end="",
                flush=True,
            )

    def said(self) -> str:
        """The cases, counted by outcome, most frequent first."""
        return ", ".join(f"{count:,} {outcome}" for outcome, count in self.counts.most_common()) or "no test"


# What it cost


def work() -> float:
    """CPU seconds of a fixed piece of work: how fast this machine is now, with all that it does beside."""
    began = time.process_time()
    words = [str(number) for number in range(60_000)]
    json.loads(json.dumps({word: [word, len(word)] for word in words}))
    sorted(words, key=lambda word: word[::-1])
    return time.process_time() - began


def functions(cases: Sequence[Case]) -> dict[str, float]:
    """CPU seconds by test function."""
    found: dict[str, float] = defaultdict(float)
    for case in cases:
        if case.outcome != "collected":
            found[case.id.split("[")[0]] += case.cpu
    return found


def files_of(cases: Sequence[Case]) -> dict[str, float]:
    """Wall seconds by file."""
    found: dict[str, float] = defaultdict(float)
    for case in cases:
        found[case.id.split("::")[0]] += case.wall or case.cpu
    return found


def keep(run: Run, place: Path, profile: Mapping[str, Any]) -> None:
    """Write the profile of this run; files that it did not run keep what is known of them, if they are still
    there."""
    dear = {name: round(s, 2) for name, s in sorted(functions(run.cases).items()) if s >= WORTH_NAMING}
    files = {name: round(s, 2) for name, s in files_of(run.cases).items()}
    files = {name: s for name, s in profile.get("files", {}).items() if (ROOT / name).exists()} | files
    found = {
        "cpu": round(run.cpu, 1), "wall": round(run.wall, 1), "work": round(run.work, 4), "files": files,
        "functions": dear,
    }  # fmt: skip
    place.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def beyond(run: Run, profile: Mapping[str, Any], budget: float) -> list[str]:
    """Lines that say by how much the run passed its budget, and where: none when it did not."""
    slower = max(1.0, run.work / profile["work"])
    if run.cpu <= budget * slower * 1.1:
        return []
    known: Mapping[str, float] = profile["functions"]
    grown = {
        name: seconds / slower - known.get(name, WORTH_NAMING)
        for name, seconds in functions(run.cases).items()
    }
    most = sorted(grown.items(), key=lambda pair: -pair[1])[:20]
    return [
        f"{run.cpu:.0f} s of CPU are more than a tenth over the budget of {budget:.0f} s"
        f" (on this machine {budget * slower:.0f} s). These grew most:",
        *(f"  +{more:.2f} s  {name}" for name, more in most if more > 0),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.suite", allow_abbrev=False)
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 2, help="processes (default: the cores)"
    )
    parser.add_argument(
        "--budget", type=float, help="CPU seconds that the run may cost, a tenth more at most"
    )
    parser.add_argument("--keep", action="store_true", help="keep the profile of this run")
    parser.add_argument("--profile", default="suite", help="the one to use, and to keep (default: suite)")
    parser.add_argument(
        "--shuffle", metavar="SEED", help="run files, and the tests of each, in another order"
    )
    parser.add_argument("--ignore", action="append", default=[], help="leave out a folder or file")
    given, options = parser.parse_known_args(arguments)
    places, options = divide(options)
    place = PROFILES / f"{given.profile}.json"
    profile = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    files = test_files(places or ["tests"], given.ignore, profile.get("files", {}))
    if given.shuffle:
        random.Random(given.shuffle).shuffle(files)
        os.environ[SHUFFLE] = given.shuffle
    run = Run(files, options, given.workers)
    status = run.run()
    print(f"{run.said()} in {run.wall:.0f} s; {run.cpu:.0f} s of CPU")
    if given.keep and not status:
        keep(run, place, profile)
    elif given.budget and (lines := beyond(run, profile, given.budget)):
        print("\n".join(lines), file=sys.stderr)
        return status or 1
    return status


def divide(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files and folders of tests among the options, and the other options."""
    options = [option.removeprefix(f"{ROOT}/") for option in options]
    places = [o for o in options if o.startswith("tests") and (ROOT / o.split("::")[0]).exists()]
    return places, [option for option in options if option not in places]


def test_files(places: Sequence[str], ignored: Sequence[str], known: Mapping[str, float]) -> list[str]:
    """The test files below the places, slowest first, and before them those that the profile does not know."""
    found = {
        str(file.relative_to(ROOT))
        for place in places
        for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("test_*.py"))
    }
    files = [file for file in found if not any(file.startswith(name) for name in ignored)]
    return sorted(files, key=lambda file: (-known.get(file, math.inf), file))


if __name__ == "__main__":
    sys.exit(main())
