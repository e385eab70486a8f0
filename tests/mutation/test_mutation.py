"""The mutants are those that the operators say, and what becomes of them is what the tests of a toy make of them."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.mutation.measure import (
    TABLE,
    Bench,
    Result,
    chosen_mutants,
    library,
    measured,
    options,
    sample,
    table,
    table_mutants,
)
from tests.mutation.mutants import OPERATORS, mutants

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A docstring with 1 number."""

LIMIT = 3


def clamp(value: int, most: int = 9) -> int:
    """Another."""
    if value > most and not LIMIT == 0:
        raise ValueError(f"{value} is more than {most + 1}")
    for step in range(value):
        if step:
            continue
        log.info("step %d", 7)
    match value:
        case 1 | 2:
            return min(value, 2)
        case _:
            seen[value] = value + 1
    assert value != 5
    return value
'''
EXPECTED = """
constant   LIMIT = 4
default    def clamp(value: int, most: int = 10) -> int:
compare    if value >= most and not LIMIT == 0:
and/or     if (value > most or not LIMIT == 0):
negate     if (not (value > most and (not LIMIT == 0))):
not        if value > most and (LIMIT == 0):
compare    if value > most and not LIMIT != 0:
constant   if value > most and not LIMIT == 1:
raise      pass
negate     if (not (step)):
loop       break
constant   case 2 | 2:
case       case (1 | 2) if False:
constant   case 1 | 3:
return     return None
min/max    return max(value, 2)
constant   return min(value, 3)
case       case (_) if False:
statement  pass
arithmetic seen[value] = (value - 1)
constant   seen[value] = value + 2
return     return None
"""


def test_each_operator_changes_what_it_says() -> None:
    found = mutants(SOURCE, "toy.py")
    shown = [f"{one.operator:10} {one.diff(SOURCE).split(chr(10) + '+', 1)[1].strip()}" for one in found]
    assert shown == EXPECTED.strip().split("\n")
    assert all(one.compiles(SOURCE) for one in found)
    assert {one.operator for one in found} == {*OPERATORS} - {"table"}


def test_an_id_outlives_a_move_and_no_change() -> None:
    ids = [one.id for one in mutants(SOURCE, "toy.py")]
    assert len(set(ids)) == len(ids)
    moved = SOURCE.replace("LIMIT = 3\n", "LIMIT = 3\nOTHER = 'text'\n\n\n")
    assert [one.id for one in mutants(moved, "toy.py")] == ids
    other = [one.id for one in mutants(SOURCE.replace("min(value, 2)", "min(value, 8)"), "toy.py")]
    assert len(set(ids) - set(other)) == 3  # of that statement
    assert not set(ids) & {one.id for one in mutants(SOURCE, "other.py")}


def test_a_seed_chooses_from_each_file_in_proportion(tmp_path: Path) -> None:
    for name, times in (("one", 1), ("two", 2), ("five", 5)):
        (tmp_path / f"{name}.py").write_text(SOURCE * times)
    known = library(tmp_path, ["."])
    chosen = sample(known.values(), 40, "first", tmp_path)
    assert Counter(mutant.file for mutant in chosen) == {"one.py": 5, "two.py": 10, "five.py": 25}
    assert len({mutant.id for mutant in chosen}) == 40
    assert chosen == sample(reversed(known.values()), 40, "first", tmp_path)
    assert chosen != sample(known.values(), 40, "second", tmp_path)


def test_the_mutants_of_an_earlier_run_are_chosen_again(tmp_path: Path) -> None:
    for name, text in ((TABLE, "TURN = 1\n"), ("fsm_agent/fsm/toy.py", SOURCE)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    known = ["of another revision", *library(tmp_path), *(one.id for one in table_mutants("TURN = 1\n", 2))]
    outcomes = ["killed" if at % 2 else "survived" for at in range(len(known))]
    before = [asdict(Result(one, "", "", "", outcome)) for one, outcome in zip(known, outcomes, strict=True)]
    kept = tmp_path / "before.json"
    kept.write_text(json.dumps({"results": before}))
    for missed in ([], ["--missed"]):
        chosen, gone = chosen_mutants(options(["--tree", str(tmp_path), "--again", str(kept), *missed]))
        assert [one.id for one in chosen] == (known[2::2] if missed else known[1:])
        assert [(one.id, one.outcome) for one in gone] == [("of another revision", "gone")]


TOY = {
    "toys/__init__.py": "",
    "toys/sums.py": """
MOST = 3


def total(numbers):
    found = 0
    for number in numbers:
        if number > MOST:
            continue
        found += number
    return found


def endless(count):
    while count > 0:
        count -= 1
    return "end"


def unused(one):
    return not one
""",
    "tests/test_sums.py": """
import sums_by_name
from toys.sums import endless, total


def test_total():
    assert total([1, 5]) == 1
    assert total([4]) == 0


def test_endless():
    assert endless(2)
""",
    "sums_by_name.py": "",
    "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow"]\naddopts = ["--import-mode=importlib"]\n',
}
BECOMES = """
killed    MOST = 4
killed    found = 1
survived  if number >= MOST:
killed    if (not (number > MOST)):
survived  break
killed    found -= number
killed    pass
killed    return None
survived  while count >= 0:
survived  while (not (count > 0)):
survived  while count > 1:
timeout   count += 1
timeout   pass
survived  count -= 2
killed    return None
uncovered return None
uncovered return (one)
"""


@pytest.mark.slow
def test_what_becomes_of_each_mutant_of_a_toy(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in TOY.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    chosen = list(library(tree, ["toys"]).values())
    with Bench(tree, patience=8, sources=["toys"], cache=tmp_path / "cache") as bench:
        done: dict[str, Result] = {}
        measured(bench, chosen, done, lambda: None)
    shown = [f"{one.outcome:9} {one.diff.split(chr(10))[-1].strip('+ ')}" for one in done.values()]
    assert shown == BECOMES.strip().split("\n")
    assert {one.test for one in done.values()} == {
        "",
        *(f"tests/test_sums.py::test_{name}" for name in ("total", "endless")),
    }
    assert (tree / "toys/sums.py").read_text() == TOY["toys/sums.py"]


def test_a_table_is_edited_at_the_end_of_its_file() -> None:
    source = "TURN = 1\n"
    first, second = table_mutants(source, 2)
    assert first.applied(source).startswith(source)
    assert "mutant(TURN, 1)" in second.applied(source)
    assert "all" in table([])
