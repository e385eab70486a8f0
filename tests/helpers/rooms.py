"""The picture of the rooms in ARCHITECTURE.md, made from the imports. ``python -m tests.helpers.rooms`` writes it again."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
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


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda _: picture(), page), encoding="utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
