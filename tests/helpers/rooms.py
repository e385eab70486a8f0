"""What ARCHITECTURE.md shows of the rooms: the picture of their imports, and how large each folder may be.

``python -m tests.helpers.rooms`` draws the picture again. ``python -m tests.helpers.rooms --budgets`` also sets the
budgets to the sizes of now; do that only in a change that says why a folder has to grow.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import grimp

from tests.helpers.sources import product, text

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
BUDGETS = re.compile(r"<!-- budgets -->\n(.*?)<!-- end of budgets -->\n", re.DOTALL)
BUDGET = re.compile(r"^\| `([^`]+)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
STEP = 50
"""Lines that a budget is rounded up to."""
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)
STATES = "fsm_agent_states"
Imports = Mapping[str, set[str]]


@cache
def imports_of_rooms() -> Imports:
    """Which rooms each room imports; what is imported for types alone does not count."""
    graph = grimp.build_graph("fsm_agent", STATES, exclude_type_checking_imports=True, cache_dir=None)
    found = defaultdict[str, set[str]](set)
    # the package itself only lends names, when they are asked for
    for module in graph.modules - {"fsm_agent"}:
        for imported in graph.find_modules_directly_imported_by(module) - {"fsm_agent"}:
            if room_of(module) != room_of(imported):
                found[room_of(module)].add(room_of(imported))
    return found


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return "states" if package == STATES else rest.partition(".")[0]


def without_detours(imports: Imports) -> list[tuple[str, str]]:
    """The imports without those that follow from others, sorted."""

    def below(room: str) -> set[str]:
        return set().union(*({one} | below(one) for one in imports.get(room, ())))

    known = {room: below(room) for room in imports}
    return sorted(
        (room, one)
        for room, others in imports.items()
        for one in others
        if not any(one in known.get(other, ()) for other in others)
    )


def picture() -> str:
    """A Mermaid block: an arrow from each room to those below it that it imports."""
    arrows = without_detours(imports_of_rooms())
    return "\n".join(["```mermaid", "flowchart TD", *(f"    {a} --> {b}" for a, b in arrows), "```", ""])


def sizes() -> dict[str, tuple[int, int]]:
    """Files and lines of Python in each folder of the product, without those of the folders in it."""
    found = defaultdict[str, list[int]](list)
    for path in product():
        found[f"{path.parent.relative_to(PAGE.parent)}/"].append(len(text(path).splitlines()))
    return {folder: (len(lines), sum(lines)) for folder, lines in sorted(found.items())}


def budgets(page: str) -> dict[str, tuple[int, int]]:
    """Files and lines that the page allows each folder."""
    rows = BUDGET.findall("".join(BUDGETS.findall(page)))
    return {folder: (int(files), int(lines.replace(",", ""))) for folder, files, lines in rows}


def table_of_budgets() -> str:
    rows = [
        f"| `{folder}` | {files} | {-(-lines // STEP) * STEP:,} |"
        for folder, (files, lines) in sizes().items()
    ]
    head = ["<!-- budgets -->", "| folder | files | lines |", "|---|---:|---:|"]
    return "\n".join([*head, *rows, "<!-- end of budgets -->", ""])


if __name__ == "__main__":
    page = BLOCK.sub(lambda _: picture(), PAGE.read_text(encoding="utf-8"))
    if "--budgets" in sys.argv:
        page = BUDGETS.sub(lambda _: table_of_budgets(), page)
    PAGE.write_text(page, encoding="utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
