"""Mermaid text for README files and pull requests: arrows carry rungs, exits are lines inside their state.

Mermaid drops a label from ``<`` on and cuts it at ``;`` without a word, takes ``%%`` for a comment and
``direction LR`` for a statement also inside a label, and ``:::`` is a syntax error, so none of them is ever
written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from fsm_agent.diagram.model import Box, Diagram, Mark, StateEntry, words
from fsm_agent.diagram.textwidth import joined
from fsm_agent.diagram.theme import LIGHT, tone_names

WIDTH = (
    340  # pixels of the longest line inside a state; broken here, as versions of Mermaid break differently
)
RESERVED = frozenset({"state", "note", "end", "class", "classDef", "direction", "click", "default", "as"})
HARMLESS = str.maketrans({"<": "‹", ">": "›", ";": ",", ":": " –", '"': "'", "\n": " "})
BREAKS = re.compile(r"%(?=%)|&(?=[\w#])|\$(?=\$)|(?<=direction)\s+(?=(?:TB|BT|LR|RL)\b)")
"""Where a space of no width keeps words from meaning something, wherever they stand: comments, entities,
formulas, directions."""
QUIET: frozenset[Mark] = frozenset({"unused", "kept"})
MARKED: Mapping[str, str] = {
    "never": f"fill:#ffffff,stroke:{LIGHT.bad},color:{LIGHT.bad},stroke-dasharray:6",
    "added": f"fill:#dcfce7,stroke:{LIGHT.good},color:{LIGHT.ink},stroke-width:3px",
    "removed": f"fill:#fee2e2,stroke:{LIGHT.bad},color:{LIGHT.ink},stroke-dasharray:6",
    "changed": f"fill:#fef3c7,stroke:{LIGHT.warn},color:{LIGHT.ink},stroke-width:3px",
}
"""How a state with this mark looks."""


def as_mermaid(diagram: Diagram) -> str:
    """A ``stateDiagram-v2``; renders on GitHub as it is. Of a marked diagram only what a run used, or what
    changed."""
    lines = [
        "---",
        f"title: {json.dumps(clean(_title(diagram)), ensure_ascii=False)}",
        "config:",
        "  flowchart:",
        f"    wrappingWidth: {2 * WIDTH}",
        "  state:",
        "    nodeSpacing: 30",
        "    rankSpacing: 70",
        "---",
        "stateDiagram-v2",
        *(f"    {line}" for line in _body(diagram)),
        *(f"    {line}" for line in dict.fromkeys(_looks(diagram))),
    ]
    return "\n".join(lines) + "\n"


def _boxes(diagram: Diagram) -> list[Box]:
    """Those that are drawn."""
    arrows = [arrow for arrow in diagram.arrows if arrow.mark not in QUIET]
    ends = {end for arrow in arrows for end in (arrow.source, arrow.dest)}
    return [
        box
        for box in diagram.boxes
        if box.state in ends or not (box.mark in QUIET or (box.final and diagram.caption))
    ]


def _body(diagram: Diagram, prefix: str = "") -> Iterator[str]:
    """States and arrows; a nested table is a state that has them inside, and to which those lead that run it.
    ``prefix`` keeps states of different tables apart."""
    table, boxes = diagram.table, _boxes(diagram)
    shown = {box.state for box in boxes}
    if table.initial in shown:
        yield f"[*] --> {_id(table.initial, prefix)}"
    for box in boxes:
        yield from _state(box, prefix)
    for one in diagram.arrows:
        if one.mark not in QUIET:
            labels = clean(", ".join(one.labels))
            yield f"{_id(one.source, prefix)} --> {_id(one.dest, prefix)} : {labels}"
    if table.final in shown:
        yield f"{_id(table.final, prefix)} --> [*]"
    for inner in diagram.nested:
        name = f"{inner.table.name}__"
        yield f'state "{clean(inner.table.name)}" as {_id(name)} {{'
        yield from (f"    {line}" for line in _body(inner, name))
        yield "}"
    yield from (f"{_id(s, prefix)} --> {_id(f'{one.table.name}__')} : runs" for s, one in diagram.runs)


def _looks(diagram: Diagram, prefix: str = "") -> Iterator[str]:
    yield from _colours(diagram, _boxes(diagram), prefix)
    for inner in diagram.nested:
        yield from _looks(inner, f"{inner.table.name}__")


def _title(diagram: Diagram) -> str:
    return f"{diagram.table.name} – {diagram.caption[0]}" if diagram.caption else diagram.table.name


def _state(box: Box, prefix: str) -> Iterator[str]:
    yield f'state "{clean(box.state)}" as {_id(box.state, prefix)}'
    told = [box.badge, "" if box.final else box.intro, *_inside(box)]
    yield from (f"{_id(box.state, prefix)} : {clean(line)}" for line in told if line.strip())


def _inside(box: Box) -> Iterator[str]:
    """Each exit with the events that can end there, then the events that no exit and no arrow names. Of a box
    that is marked or drawn from near every line, but for those that a run did not use or that are as they
    were."""
    if (
        any(step.mark or step.kind == "note" for entry in box.entries for step in entry.steps)
        and not box.final
    ):
        yield from (
            f"{entry.label or words(entry.event)} – {entry.text}"
            for entry in box.entries
            if entry.mark not in QUIET
        )
        return
    if box.final:
        yield box.intro.removesuffix(":")
        yield from (f"{words(entry.event)} {entry.text}" for entry in box.entries if entry.mark not in QUIET)
        return
    by_exit: dict[str, list[str]] = {}
    for entry in box.entries:
        for step in entry.steps:
            if step.kind == "exit":
                by_exit.setdefault(step.text, []).append(entry.label)
    for reason, labels in by_exit.items():
        *others, last = dict.fromkeys(labels)
        yield from joined([*others, f"{last} {reason}"], WIDTH)
    yield from (f"{entry.label} {entry.text}" for entry in box.entries if _is_nameless(entry))


def _is_nameless(entry: StateEntry) -> bool:
    return all(step.kind == "rung" for step in entry.steps)


def _colours(diagram: Diagram, boxes: Sequence[Box], prefix: str) -> Iterator[str]:
    names = tone_names([*diagram.table.states, *diagram.states], diagram.table.final)
    tones = {**{f"t{number}": tone for number, tone in enumerate(LIGHT.tones)}, "final": LIGHT.final}
    drawn = {box.state: box.mark if box.mark in MARKED else names[box.state] for box in boxes}
    for name in dict.fromkeys(drawn.values()):
        look = MARKED.get(name) or f"fill:{tones[name].strip},stroke:{tones[name].line},color:{LIGHT.ink}"
        yield f"classDef {name} {look}"
    yield from (f"class {_id(state, prefix)} {name}" for state, name in drawn.items())


def _id(state: str, prefix: str = "") -> str:
    name = re.sub(r"\W", "_", prefix + state)
    return f"{name}_" if name in RESERVED else name


def clean(text: str) -> str:
    """Return a label as Mermaid's parser takes it: nothing in it is cut or read as a statement."""
    return BREAKS.sub(lambda found: f"{found[0]}\u200b", text.translate(HARMLESS)).strip()
