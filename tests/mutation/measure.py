"""Measure what the fast tests find: each mutant is put into a copy of the tree, and tests that run its line are run.

    python -m tests.mutation.measure --sample 100                    # by a seed that the commit chooses
    python -m tests.mutation.measure --changed main                  # all mutants of the lines changed since then
    python -m tests.mutation.measure --sample 400 --seed 1 --tables 300 --to before.json
    python -m tests.mutation.measure --again before.json --tree ../other --to after.json      # the same mutants
    python -m tests.mutation.measure --again before.json --missed --seconds 60               # those that nothing found

Which tests run a line is recorded once for a tree and kept in ``.cache/mutation``. Those that run least else
and cost least are tried first, up to ``--seconds`` of them, and then tests that run anything of the same file.
A mutant is *killed* by a test that fails, *timeout* when a test takes far longer than without it (that is found,
too), *died* when the process ends in a test, *survived* when no test fails, *uncovered* when none runs its line
in its own process, and *gone* when ``--again`` names one that the sources do not have. At the end the tests that
killed run once without a fault; what fails then has found nothing, and its mutants are tried without it.

The table that is printed has a line a package and a line an operator; after it come the survivors."""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from tests.mutation.mutants import Mutant, mentions, mutants

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "states/fsm_agent_states", "fsm_agent/fsm", "fsm_agent/sessions", "fsm_agent/conversation",
    "fsm_agent/providers", "fsm_agent/approvals",
)  # fmt: skip
LEFT_OUT = ("fsm_agent/sessions/store/postgres/",)
"""Runs on a server that the fast suite does not have."""
TABLE = "states/fsm_agent_states/table.py"
OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-m", "not slow", "--hypothesis-seed=0", "--no-header", "--tb=no",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
MOST_TESTS, OF_ONE_FILE = 400, 4
FOUND = ("killed", "timeout", "died")


@dataclass
class Result:
    """What became of a mutant; ``cpu`` in seconds, ``ran`` tests of ``candidates`` that run its line."""

    id: str
    place: str
    where: str
    operator: str
    outcome: str
    test: str = ""
    ran: int = 0
    candidates: int = 0
    cpu: float = 0.0
    diff: str = ""

    def line(self) -> str:
        return f"{self.outcome:9} {self.cpu:5.1f} s {self.place} {self.operator} {self.test}"


# Which mutants


def table_mutants(source: str, count: int) -> Iterator[Mutant]:
    """Random edits of the rows of the turn's table, as a line at the end of its file."""
    end = len(source.encode())
    for seed in range(count):
        text = f"\n\nfrom tests.helpers.mutants import mutant\n\nTURN = mutant(TURN, {seed})\n"
        yield Mutant(
            f"table-{seed}", TABLE, "TURN", "table", source.count("\n"), 0, ("TURN",), end, end, text
        )


def library(tree: Path, packages: Sequence[str] = PACKAGES) -> dict[str, Mutant]:
    """All mutants of a tree, by id."""
    found = {}
    for package in packages:
        for path in sorted((tree / package).rglob("*.py")):
            name = path.relative_to(tree).as_posix()
            if not name.startswith(LEFT_OUT):
                found |= {one.id: one for one in mutants(path.read_text(encoding="utf-8"), name)}
    return found


def sample(candidates: Iterable[Mutant], count: int, seed: str, tree: Path) -> list[Mutant]:
    """``count`` candidates, the same ones for a seed, from each file in proportion to its size. The order is
    random, so that any first part of them is a sample, too."""

    def chance(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.id}".encode()).hexdigest()

    ordered = sorted(candidates, key=lambda mutant: (mutant.file, chance(mutant)))
    step = max(1.0, len(ordered) / max(count, 1))
    chosen = []
    for at in range(min(count, len(ordered))):
        begin = int(at * step)
        for mutant in ordered[begin : int((at + 1) * step)]:
            if mutant.compiles((tree / mutant.file).read_text(encoding="utf-8")):
                chosen.append(mutant)
                break
    return sorted(chosen, key=chance)


def changed_lines(tree: Path, revision: str) -> set[tuple[str, int]]:
    """The lines that differ from a revision, as (file, line)."""
    command = ["git", "diff", "-U0", "--no-color", revision, "--", *PACKAGES]
    shown = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    found, file = set(), ""
    for line in shown.splitlines():
        if line.startswith("+++ b/"):
            file = line[6:]
        elif line.startswith("@@"):
            begin, _, count = line.split("+")[1].split(" ")[0].partition(",")
            found |= {(file, int(begin) + at) for at in range(int(count or 1))}
    return found


def commit(tree: Path) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False).stdout.strip()


# Which tests


class Coverage:
    """Which tests run a line, from a recording."""

    def __init__(self, recording: dict[str, Any], tree: Path) -> None:
        self._tree = tree
        self._at: dict[tuple[str, int], list[int]] = defaultdict(list)
        for at, (file, line) in enumerate(recording["statements"]):
            self._at[file, line].append(at)
        self._tests: list[tuple[str, float, bytes]] = [
            (name, seconds, zlib.decompress(base64.b85decode(ran)))
            for name, seconds, ran in recording["tests"]
        ]
        self.seconds = {name: seconds for name, seconds, _ in self._tests}
        self._breadth = {name: ran.count(1) for name, _, ran in self._tests}
        self._of_file: dict[str, str] = {}  # the cheapest test of a file
        for name in sorted(self.seconds, key=self.seconds.__getitem__):
            if "::" in name:
                self._of_file.setdefault(name.split("::")[0], name)
        self._mentions: dict[str, list[tuple[str, int]]] | None = None

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run the line of a mutant, those first that are likely to find it for little."""
        if mutant.statement:
            places = self._at.get((mutant.file, mutant.statement), [])
        else:
            mentioned = [place for name in mutant.names for place in self._mentioned(name)]
            places = [at for place in mentioned for at in self._at.get(place, [])]
        return self._ranked(mutant, places)

    def others(self, mutant: Mutant) -> list[str]:
        """The tests that run anything of its file. What is computed once for a process is recorded for the first
        test alone, and of what runs at import nothing is recorded."""
        return self._ranked(
            mutant, [at for (file, _), found in self._at.items() if file == mutant.file for at in found]
        )

    def _ranked(self, mutant: Mutant, places: Sequence[int]) -> list[str]:
        found = {
            name if "::" in name else self._of_file.get(name, "")
            for name, _, ran in self._tests
            if any(at < len(ran) and ran[at] for at in places)
        } - {""}
        return sorted(found, key=lambda name: self._dearness(name, mutant))

    def _dearness(self, name: str, mutant: Mutant) -> tuple[float, str]:
        module = Path(mutant.file).stem.strip("_")
        mirrors = module in Path(name.split("::")[0]).stem
        return (20 + self._breadth[name]) * (0.05 + self.seconds[name]) / (5 if mirrors else 1), name

    def _mentioned(self, name: str) -> list[tuple[str, int]]:
        if self._mentions is None:
            self._mentions = defaultdict(list)
            for file in sorted({file for file, _ in self._at}):
                for word, lines in mentions((self._tree / file).read_text(encoding="utf-8")).items():
                    self._mentions[word] += [(file, line) for line in lines]
        return self._mentions.get(name, [])

    def rounds(self, tests: Sequence[str], others: Sequence[str], seconds: float) -> list[list[str]]:
        """Tests in rounds of one file each, likeliest file first, for ``seconds`` seconds: few of each file,
        then more of each, then the others."""
        found: list[list[str]] = []
        left, count = seconds, MOST_TESTS
        few, rest = (0, OF_ONE_FILE), (OF_ONE_FILE, None)
        for names, (begin, end) in ((tests, few), (tests, rest), (others, few), (others, rest)):
            of_file: dict[str, list[str]] = defaultdict(list)
            for name in names:
                of_file[name.split("::")[0]].append(name)
            for of_one in of_file.values():
                chosen = []
                for name in of_one[begin:end]:
                    if count and (self.seconds[name] <= left or (not found and not chosen)):
                        chosen.append(name)
                        left, count = left - self.seconds[name], count - 1
                if chosen:
                    found.append(chosen)
        return found


# The run


@dataclass
class Bench:
    """A copy of a tree in which faults are planted, and the process that runs tests in it. ``sources`` are the
    folders whose lines are recorded; ``seconds`` of CPU go to the tests of a mutant; ``patience`` is what any
    test may take on the wall besides a multiple of what it took when it was recorded."""

    tree: Path
    seconds: float = 4.0
    sources: Sequence[str] = ("fsm_agent", "states/fsm_agent_states")
    patience: float = 20.0
    cache: Path = ROOT / ".cache" / "mutation"
    place: Path = field(init=False)
    coverage: Coverage = field(init=False)
    planted: int = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            memory = Path("/dev/shm")
            where = memory if memory.is_dir() else None
            self.place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-", dir=where)))
            digest = self._copy()
            self._process = stack.enter_context(self._server())
            stack.callback(self._process.stdin.close)
            recording = self._recording(digest)
            self.coverage = Coverage(recording, self.place)
            self._ask({"do": "load", "libraries": recording["libraries"]})
            self._try_without_a_fault()
            self._leave = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.close()

    def attempt(self, mutant: Mutant, without: Iterable[str] = ()) -> Result:
        """Plant a fault, run tests until one fails, and take it out again."""
        path = self.place / mutant.file
        source = path.read_text(encoding="utf-8")
        of_table = mutant.operator == "table"
        result = Result(
            mutant.id, f"{mutant.file}:{mutant.line}", mutant.where, mutant.operator, "uncovered",
            diff=mutant.text.strip().splitlines()[-1] if of_table else mutant.diff(source),
        )  # fmt: skip
        tests = [name for name in self.coverage.tests(mutant) if name not in without]
        others = [name for name in self.coverage.others(mutant) if name not in {*tests, *without}]
        result.candidates = len(tests)
        with self._planted(path, mutant.applied(source)):
            if rounds := self.coverage.rounds(tests, others, self.seconds):
                answer = self._try(rounds)
                result.test, result.ran, result.cpu = answer["test"], answer["ran"], answer["cpu"]
                if tests or answer["outcome"] in FOUND:
                    result.outcome = answer["outcome"]
        return result

    def failing(self, tests: Iterable[str]) -> set[str]:
        """Those that fail without any fault."""
        found: set[str] = set()
        left = [name for name in tests if name in self.coverage.seconds]
        while left:
            answer = self._try([list(names) for _, names in groupby(left, lambda name: name.split("::")[0])])
            if answer["outcome"] not in FOUND:
                break
            if (name := answer["test"].split(" (")[0]) not in left:
                raise SystemExit(f"tests fail without a fault: {answer}\n{self._said()}")
            found.add(name)
            left.remove(name)
        return found

    def _try_without_a_fault(self) -> None:
        cheap = sorted(
            (name for name in self.coverage.seconds if "::" in name), key=self.coverage.seconds.get
        )
        answer = self._try([[name] for name in cheap[:5]])
        if answer["outcome"] != "survived":
            raise SystemExit(f"tests fail without a fault: {answer}\n{self._said()}")

    def _said(self) -> str:
        return (self.place / "child.log").read_text(encoding="utf-8", errors="replace")[-3_000:]

    def _try(self, rounds: Sequence[Sequence[str]]) -> dict[str, Any]:
        usual = {name: self.coverage.seconds[name] for names in rounds for name in names}
        limits = {"cpu": 0.3 * self.patience + 3 * sum(usual.values()), "patience": self.patience}
        return self._ask({"do": "try", "options": OPTIONS, "rounds": rounds, "usual": usual, **limits})

    @contextlib.contextmanager
    def _planted(self, path: Path, text: str) -> Iterator[None]:
        kept, times = path.read_bytes(), path.stat()
        path.write_text(text, encoding="utf-8")
        self.planted += 1
        os.utime(
            path, (self.planted, self.planted)
        )  # a time of its own: no compiled file is that of another source
        try:
            yield
        finally:
            path.write_bytes(kept)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _copy(self) -> str:
        """Copy what the repository has or would take; returns a digest of the Python files."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self.tree, capture_output=True, text=True, check=True).stdout
        digest = hashlib.sha256(sys.version.encode())
        for name in sorted(filter(None, listed.split("\0"))):
            if (self.tree / name).is_file():
                (self.place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.tree / name, self.place / name)
                if name.endswith(".py"):
                    digest.update(name.encode() + b"\0" + (self.tree / name).read_bytes())
        return digest.hexdigest()[:16]

    def _server(self) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(self.place), str(self.place / "states")])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {
            "PYTHONPATH": path, "PYTEST_DEBUG_TEMPROOT": str(self.place.parent), "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "",
        }  # fmt: skip
        command = [sys.executable, str(Path(__file__).with_name("server.py"))]
        return subprocess.Popen(
            command, cwd=self.place, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _recording(self, digest: str) -> dict[str, Any]:
        kept = self.cache / f"{digest}.json"
        if not kept.exists():
            print("recording which tests run which lines …", file=sys.stderr, flush=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            sources = [
                path.relative_to(self.place).as_posix()
                for package in self.sources
                for path in sorted((self.place / package).rglob("*.py"))
            ]
            new = kept.with_suffix(".new")
            options = [*OPTIONS, "tests", "--ignore", "tests/mutation"]
            answer = self._ask({"do": "record", "sources": sources, "options": options, "to": str(new)})
            if not new.exists():
                raise SystemExit(f"the tests could not be recorded:\n{self._said()}")
            new.rename(kept)
            print(f"recorded in {answer['cpu']:.0f} s of CPU", file=sys.stderr, flush=True)
        recording: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return recording

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def measured(
    bench: Bench, chosen: Sequence[Mutant], done: dict[str, Result], keep: Callable[[], None]
) -> None:
    """Try those that are not done; ``keep`` is called after each. Kills by tests that fail without a fault, too,
    are not believed."""
    for at, mutant in enumerate(chosen, 1):
        if mutant.id not in done:
            result = done[mutant.id] = bench.attempt(mutant)
            keep()
            print(f"{at}/{len(chosen)} {result.line()}", flush=True)
    wrong = bench.failing(sorted({result.test for result in done.values() if result.outcome == "killed"}))
    for mutant in chosen:
        if done[mutant.id].test in wrong:
            print(f"fails without a fault: {done[mutant.id].test}", flush=True)
            done[mutant.id] = bench.attempt(mutant, wrong)
            keep()


# What is shown


def table(results: Sequence[Result]) -> str:
    """Counts by package and by operator; what is found counts in per cent of what is there."""
    columns = ("killed", "timeout", "died", "survived", "uncovered", "gone")
    lines = [f"{'':28}" + "".join(f"{name:>11}" for name in ("mutants", *columns, "found"))]

    def line(name: str, counts: Counter[str]) -> str:
        there = counts.total() - counts["gone"]
        share = sum(counts[name] for name in FOUND) / there if there else 0
        cells = (counts.total(), *(counts[name] for name in columns), f"{share:.1%}")
        return f"{name:28}" + "".join(f"{cell:>11}" for cell in cells)

    for key in (package_of, lambda result: result.operator):
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for result in results:
            groups[key(result)][result.outcome] += 1
        lines += [*(line(name, counts) for name, counts in sorted(groups.items())), ""]
    return "\n".join([*lines, line("all", Counter(result.outcome for result in results))])


def package_of(result: Result) -> str:
    if result.operator == "table":
        return "the turn's table"
    return next((name for name in PACKAGES if result.place.startswith(name)), "other")


def survivors(results: Sequence[Result]) -> str:
    return "\n".join(
        f"{one.outcome} {one.id} {one.place} in {one.where or 'the module'}: {one.ran} of {one.candidates} tests\n"
        f"{one.diff}"
        for one in results
        if one.outcome in ("survived", "uncovered")
    )


def results_in(file: Path) -> list[Result]:
    return [Result(**one) for one in json.loads(file.read_text(encoding="utf-8"))["results"]]


def chosen_mutants(given: argparse.Namespace) -> tuple[list[Mutant], list[Result]]:
    """The mutants that the command names, and results for those that are gone."""
    known = library(given.tree)
    source = (given.tree / TABLE).read_text(encoding="utf-8")
    if given.again:
        before = [one for one in results_in(given.again) if not (given.missed and one.outcome in FOUND)]
        known |= {one.id: one for one in table_mutants(source, 1_000)}
        gone = [
            Result(one.id, one.place, one.where, one.operator, "gone", diff=one.diff)
            for one in before
            if one.id not in known
        ]
        return [known[one.id] for one in before if one.id in known], gone
    candidates: Iterable[Mutant] = known.values()
    if given.changed:
        lines = changed_lines(given.tree, given.changed)
        candidates = [one for one in candidates if (one.file, one.line) in lines]
    seed = given.seed or commit(given.tree)
    count = len(known) if given.sample is None else given.sample
    return [*sample(candidates, count, seed, given.tree), *table_mutants(source, given.tables)], []


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.measure", allow_abbrev=False)
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="the checkout that is measured (default: this one)"
    )
    parser.add_argument("--sample", type=int, help="how many mutants (default: all)")
    parser.add_argument("--seed", default="", help="which ones (default: the commit)")
    parser.add_argument("--changed", metavar="REVISION", help="those of lines that differ from it")
    parser.add_argument("--tables", type=int, default=0, help="how many edits of the turn's table besides")
    parser.add_argument("--again", type=Path, metavar="FILE", help="the mutants of an earlier run")
    parser.add_argument("--missed", action="store_true", help="of these, only those that nothing found")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="CPU seconds of tests for a mutant (default: 4)"
    )
    parser.add_argument(
        "--to", type=Path, metavar="FILE",
        help="write the results there as JSON; those that are there are not measured again",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    given.tree = given.tree.resolve()
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    chosen, gone = chosen_mutants(given)
    done = {one.id: one for one in gone}
    if given.to and given.to.exists():
        done |= {one.id: one for one in results_in(given.to)}

    def keep() -> None:
        if given.to:
            found = {"commit": commit(given.tree), "results": [asdict(one) for one in done.values()]}
            given.to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    with Bench(given.tree, given.seconds) as bench:
        measured(bench, chosen, done, keep)
    keep()
    results = [*(done[mutant.id] for mutant in chosen), *gone]
    print(f"\n{survivors(results)}\n\n{table(results)}\n{sum(one.cpu for one in results):.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
