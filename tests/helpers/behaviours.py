"""docs/behaviours.md, made from the lines of docs/behaviours.toml and from the tests that are marked with their
ids. ``python -m tests.helpers.behaviours`` writes it and says how much of the specification holds;
``--check`` only says it, and fails when the page is another one."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.helpers.sources import ROOT, named_tests, text, tree

LINES = ROOT / "docs" / "behaviours.toml"
PAGE = LINES.with_suffix(".md")
MARK = "pytest.mark.behaviour"
BEYOND = "beyond"
WORDS = {"partly": "In part", "missing": "Not yet", "product": "Part of a product around the engine"}
"""What the page says of the states that need a reason. Without one a claim holds."""
HEAD = """# Behaviors

The testable claims of the project, for someone changing it: what must happen, where the code is, and the tests that fail when it does not. Code and
tests refer to a claim by its id, such as `COMP-13`; a letter after the number separates claims about the same behavior. Ids in *italics* go beyond the
specification. Figures that a user may change are [settings](configuration.md). Paths start at `fsm_agent/`, or at `states/fsm_agent_states/` if they say
`states/`. The text of a test is its name, in the linked file.

**{summary}**

{open_}

`python -m tests.helpers.behaviours` generates this page from `behaviours.toml` and from the marks of the tests.
"""


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """A line of the file. ``state``: how far it holds, ``holds`` or a key of ``WORDS``, and ``why`` not
    wholly; ``beyond``: it is not a claim of the specification."""

    id: str
    group: str
    claim: str
    where: tuple[str, ...]
    state: str
    why: str
    beyond: bool


def behaviours() -> list[BehaviourRow]:
    """The lines, in their order. Raises ``ValueError`` for an unknown state."""
    groups = tomllib.loads(LINES.read_text(encoding="utf-8"))
    return [_behaviour(group, id, *line) for group, lines in groups.items() for id, line in lines.items()]


def _behaviour(group: str, id: str, claim: str, where: str = "", state: str = "") -> BehaviourRow:
    word, _, why = state.partition(": ")
    if word not in ("", BEYOND) and not (word in WORDS and why):
        raise ValueError(
            f"{id}: no such state: {state}; allowed: {BEYOND}, or {', '.join(WORDS)} with a reason"
        )
    places = tuple(place for place in where.split(", ") if place)
    return BehaviourRow(id, group, claim, places, word if why else "holds", why, beyond=word == BEYOND)


@cache
def marked() -> dict[str, list[tuple[Path, str]]]:
    """Files and names of the tests that are marked with each id. Read, not run."""
    found = defaultdict[str, list[tuple[Path, str]]](list)
    for path in named_tests():
        for name, ids in _marks(tree(path)) if MARK in text(path) else ():
            for id in ids:
                found[id].append((path.relative_to(ROOT), name))
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                    yield node.name, [ast.literal_eval(argument) for argument in mark.args]


def counted(lines: Sequence[BehaviourRow]) -> Counter[str]:
    """How many claims of the specification are in each state."""
    return Counter(line.state for line in lines if not line.beyond)


def summary(lines: Sequence[BehaviourRow]) -> str:
    """How much of the specification holds, in one line."""
    states = counted(lines)
    besides = sum(line.beyond for line in lines)
    return (
        f"{states['holds']} of {states.total()} claims of the specification hold, {states['partly']} in part,"
        f" {states['missing']} not yet, {states['product']} belong to a product around the engine;"
        f" {besides} behaviors beyond it also hold."
    )


def page() -> str:
    """The whole page."""
    lines, marks = behaviours(), marked()
    groups = defaultdict[str, list[str]](list)
    for line in lines:
        groups[line.group].append(_row(line, marks))
    open_ = "  \n".join(
        f"{words}: {', '.join(line.id for line in lines if line.state == state)}."
        for state, words in WORDS.items()
        if any(line.state == state for line in lines)
    )
    parts = [HEAD.format(summary=summary(lines), open_=open_)]
    for group, rows in groups.items():
        parts += [f"\n## {group}\n", "| id | what must happen | where | tests |", "|---|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _row(line: BehaviourRow, marks: Mapping[str, list[tuple[Path, str]]]) -> str:
    claim = f"{line.claim} **{WORDS[line.state]}**: {line.why}." if line.why else line.claim
    where = ", ".join(f"`{place}`" for place in line.where)
    links = ", ".join(
        f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"
        for path, name in marks.get(line.id, ())
    )
    return f"| {f'*{line.id}*' if line.beyond else line.id} | {claim} | {where} | {links} |"


if __name__ == "__main__":
    wanted, checks = page(), "--check" in sys.argv
    stale = PAGE.read_text(encoding="utf-8") != wanted
    if stale and not checks:
        PAGE.write_text(wanted, encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {summary(behaviours())}\n")
    if stale and checks:
        sys.exit(
            f"{PAGE.relative_to(ROOT)} is not what its lines and marks make; python -m tests.helpers.behaviours"
        )
