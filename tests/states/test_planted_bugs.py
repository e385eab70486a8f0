"""Bugs that are planted in copies of pure states, and what the tests of ``docs/testing.md`` find of them.

``python -m tests.states.test_planted_bugs`` prints a line a bug. Each is one change of one line, of the
kinds that people make: a request that is dropped or wrong, data that is lost, another event, a counter that
a state changes by itself. The tests run in a copy of the tree, and are those that are named in ``TESTS``."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.helpers.sample import everything, sampled

ROOT = Path(__file__).parents[2]
STATES, EXAMPLES = "states/fsm_agent_states", "examples"
TESTS = {
    STATES: [
        "tests/states/test_row_coverage.py::test_sixty_agents_take_most_rows",
        "tests/states/test_row_coverage.py::test_the_footprints_of_the_turn_are_those_that_were_read",
    ],
    EXAMPLES: ["tests/workflow/test_examples_of_tables.py", "-k", "row or pair or footprints or random"],
}
"""What ``docs/testing.md`` tells people to write: scripts of rows and pairs, footprints, random turns and
worlds. Of the turn, agents in a hostile world come first: they find most bugs in a moment, and footprints are
compared only when all scripts were played."""
Kind = Literal["effect", "data", "event", "counter"]


@dataclass(frozen=True)
class Planted:
    """``right`` is there once in the file, and becomes ``wrong``."""

    kind: Kind
    folder: str
    file: str
    right: str
    wrong: str


def _in_turn(kind: Kind, file: str, right: str, wrong: str) -> Planted:
    return Planted(kind, STATES, file, right, wrong)


def _in_example(kind: Kind, file: str, right: str, wrong: str) -> Planted:
    return Planted(kind, EXAMPLES, file, right, wrong)


BUGS = (
    _in_turn("effect", "prepare.py", "yield Persist((*reports, *turn.rows))", "pass"),
    _in_turn("effect", "execute_tools.py", "yield Persist((row,))", "pass"),
    _in_turn("effect", "logic/running.py", 'if item.spec.approval == "never":', "if True:"),
    _in_turn("effect", "logic/recover.py", 'return (yield from _wait(turn, Wait("empty", turn.count("empties"), "the model gave an empty reply")))', "return None"),
    _in_turn("data", "logic/parts.py", "self.fragments.append(visible)", "self.fragments = [visible]"),
    _in_turn("data", "logic/parts.py", "self.fragments = self.begun + visible, []", "_ = self.begun + visible, []"),
    _in_turn("data", "execute_tools.py", "    turn.recovery.drop_scaffold()\n", ""),
    _in_turn("data", "logic/ending.py", "interrupted=interrupted, wire=False)", "interrupted=interrupted)"),
    _in_turn("event", "empty_recovery.py", "if facts.text_prior(turn):", "if False:"),
    _in_turn("event", "classify_error.py", '"invalid_response": "limited"', '"invalid_response": "overloaded"'),
    _in_turn("counter", "call_llm.py", "    turn.recovery.succeed()\n", '    turn.recovery.succeed()\n    turn.reset("repairs")\n'),
    _in_turn("counter", "logic/running.py", "    note_files(turn, calls)\n", '    note_files(turn, calls)\n    turn.spend("invalid_tool_rounds")\n'),
    _in_example("effect", "order.py", 'again = "tries" in turn.spent and request is Pay', "again = False"),
    _in_example("effect", "order.py", "kind(what, turn.turn_id,", 'kind(what, "",'),
    _in_example("effect", "review_loop.py", 'yield Ask("reviewer", prompt', 'yield Ask("writer", prompt'),
    _in_example("effect", "review_loop.py", 'yield Ask("writer", turn.task, turn.count("retries"))', 'yield Ask("writer", turn.task, 0)'),
    _in_example("data", "order.py", 'turn.said.append(f"{act}: {answer}")', 'turn.said = [f"{act}: {answer}"]'),
    _in_example("data", "review_loop.py", "turn.text = answer or turn.text", "turn.text = answer"),
    _in_example("data", "review_loop.py", 'verdict, _, turn.objections = answer.partition(" ")', 'verdict, _, _ = answer.partition(" ")'),
    _in_example("event", "order.py", 'return "failed" if answer == "refused" and turn.state in BACK else answer', 'return "done" if answer == "refused" else answer'),
    _in_example("event", "review_loop.py", '"objections" if turn.objections else "unclear"', '"objections"'),
    _in_example("event", "review_loop.py", 'return "cancelled" if turn.cancelled else event', "return event"),
    _in_example("counter", "order.py", "        turn.said.append(", '        turn.reset("tries")\n        turn.said.append('),
    _in_example("counter", "review_loop.py", "    turn.text = yield Ask(", '    turn.spend("rounds")\n    turn.text = yield Ask('),
)  # fmt: skip


def is_found(bug: Planted) -> bool:
    """Do the tests fail in a copy of the tree with this bug in it?"""
    with _copied() as tree:
        file = tree / bug.folder / bug.file
        text = file.read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, f"{bug.right} is {text.count(bug.right)} times in {bug.file}"
        file.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
        return _tests(tree, TESTS[bug.folder]) == 1


def is_green(folder: str) -> bool:
    """Do the tests pass in a copy without a bug?"""
    with _copied() as tree:
        return _tests(tree, TESTS[folder]) == 0


@contextlib.contextmanager
def _copied() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        for name in ("states", "examples", "tests"):
            # with the compiled files beside the sources, but for those that another process is writing
            shutil.copytree(ROOT / name, Path(place, name), ignore=shutil.ignore_patterns("*.pyc.*"))
        shutil.copy(ROOT / "pyproject.toml", place)
        yield Path(place)


def _tests(tree: Path, arguments: list[str]) -> int:
    path = os.pathsep.join(map(str, (tree, tree / "states", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode in (0, 1), done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("folder", TESTS if everything() else [EXAMPLES])
def test_a_copy_without_a_bug_is_green(folder: str) -> None:
    """Those of the turn take minutes, and are run in this tree as well."""
    assert is_green(folder)


@pytest.mark.slow
def test_planted_bugs_are_found() -> None:
    missed = [bug for bug in sampled(BUGS, "planted bugs") if not is_found(bug)]
    assert len(missed) <= (4 if everything() else 2), missed
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"at least {len(BUGS) - 4} of {len(BUGS)} planted bugs" in page


def test_there_are_twelve_in_the_turn_and_twelve_in_the_examples() -> None:
    assert Counter(bug.folder for bug in BUGS) == {STATES: 12, EXAMPLES: 12}
    assert {bug.kind for bug in BUGS} == {"effect", "data", "event", "counter"}
    for bug in BUGS:
        text = (ROOT / bug.folder / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, bug


if __name__ == "__main__":
    found = 0
    for bug in BUGS:
        seen = is_found(bug)
        found += seen
        said = f"{bug.kind:8} {bug.file:20} {bug.wrong.strip()[:60]!r}"
        print("found " if seen else "MISSED", said, flush=True)
    print(f"{found} of {len(BUGS)}")
