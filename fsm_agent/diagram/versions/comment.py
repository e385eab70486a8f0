"""The difference of two versions as the comment of a pull request: what changed, both maps, and what is
proved before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsm_agent.diagram.map import map_of
from fsm_agent.diagram.markdown import grid
from fsm_agent.diagram.mermaid import as_mermaid
from fsm_agent.diagram.model import Arrow, Diagram
from fsm_agent.diagram.versions.bounds import KNOWN, ProofChange
from fsm_agent.diagram.versions.compare import Difference
from fsm_agent.diagram.versions.load import Version
from fsm_agent.diagram.versions.text import SIGN, as_diff_markdown

LONGEST = 60_000
"""Characters: GitHub takes 65,536, and a marker of whoever posts it comes on top."""
CUT = "\n\nThe rest does not fit into a comment; `fsm-agent diagram diff` prints it.\n"


def as_comment(old: Version, new: Version, difference: Difference, proofs: ProofChange) -> str:
    """Markdown for GitHub, at most ``LONGEST`` characters: of a longer one the maps are left out first, then
    the end."""
    told = as_diff_markdown(old, new, difference, proofs)
    if not difference.changed and not proofs.changed:
        return told
    text = "\n".join([told, *_checks(proofs)]) + "\n"
    drawn = "\n".join([text, *_maps(old, new, difference)]) + "\n"
    if len(drawn) <= LONGEST:
        return drawn
    return text if len(text) <= LONGEST else _whole_blocks(text[: LONGEST - len(CUT) - 8]) + CUT


def map_after(new: Diagram, old: Diagram, difference: Difference) -> Diagram:
    """The map ``new`` with its states and arrows marked by what came and what changed since ``old``."""
    rows = {row.row.id for row in difference.rows if row.own and row.new is not None}
    before = {(arrow.source, arrow.dest) for arrow in old.arrows}
    touched = {row.row.source for row in difference.rows if row.own}
    boxes = tuple(
        replace(
            box, mark="added" if box.state not in old.states else "changed" if box.state in touched else ""
        )
        for box in new.boxes
    )
    return replace(new, boxes=boxes, arrows=tuple(_arrow(arrow, before, rows) for arrow in new.arrows))


def _arrow(arrow: Arrow, before: set[tuple[str, str]], rows: set[str]) -> Arrow:
    if (arrow.source, arrow.dest) not in before:
        return replace(arrow, labels=(f"{SIGN['added']} {', '.join(arrow.labels)}",), mark="added")
    if rows.intersection(arrow.rows):
        return replace(arrow, labels=(f"{SIGN['changed']} {', '.join(arrow.labels)}",), mark="changed")
    return arrow


def _checks(proofs: ProofChange) -> Iterator[str]:
    cells = [(name, _verdict(before), _verdict(after)) for name, before, after in proofs.checks]
    yield from ("<details><summary>Proofs, before and after</summary>", "")
    yield from grid(("Check", "Before", "After"), cells)
    yield from ("", "</details>", "")


def _verdict(findings: tuple[str, ...] | None) -> str:
    if findings is None:
        return "–"
    if not findings:
        return "holds"
    return "known not to hold" if all(one.startswith(KNOWN) for one in findings) else "**fails**"


def _maps(old: Version, new: Version, difference: Difference) -> Iterator[str]:
    before, after = map_of(old.table)[0], map_of(new.table)[0]
    yield from _map(f"Map before ({old.name})", before)
    yield from _map(f"Map after ({new.name})", map_after(after, before, difference))


def _map(title: str, diagram: Diagram) -> Iterator[str]:
    yield from (f"<details><summary>{title}</summary>", "", "```mermaid", as_mermaid(diagram).rstrip("\n"))
    yield from ("```", "", "</details>", "")


def _whole_blocks(text: str) -> str:
    """``text`` up to its last whole line, with what is open there closed."""
    text = text.rpartition("\n")[0]
    return f"{text}\n```" if text.count("```") % 2 else text
