"""Mermaid text for README files and pull requests: arrows carry rungs, exits are lines inside their state.

Mermaid drops a label from ``<`` on and cuts it at ``;`` without a word, and a second ``:`` in a line is a syntax error,
so none of them is ever written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsm_agent.diagram.model import Box, Diagram, Entry, words
from fsm_agent.diagram.textwidth import joined
from fsm_agent.diagram.theme import LIGHT, tone_names

WIDTH = 340  # pixels of the longest line inside a state; broken here, as versions of Mermaid break differently
RESERVED = frozenset({"state", "note", "end", "class", "classDef", "direction", "click", "default", "as"})
HARMLESS = str.maketrans({"<": "‹", ">": "›", ";": ",", ":": " –", '"': "'", "\n": " "})


def as_mermaid(diagram: Diagram) -> str:
    """A ``stateDiagram-v2``; renders on GitHub as it is."""
    lines = [
        "---",
        f"title: {_clean(diagram.table.name)}",
        "config:",
        "  flowchart:",
        f"    wrappingWidth: {2 * WIDTH}",
        "  state:",
        "    nodeSpacing: 30",
        "    rankSpacing: 70",
        "---",
        "stateDiagram-v2",
        f"    [*] --> {_id(diagram.table.initial)}",
        *(f"    {line}" for box in diagram.boxes for line in _state(box)),
        *(f"    {_id(a.source)} --> {_id(a.dest)} : {_clean(', '.join(a.labels))}" for a in diagram.arrows),
        f"    {_id(diagram.table.final)} --> [*]",
        *(f"    {line}" for line in _colours(diagram)),
    ]
    return "\n".join(lines) + "\n"


def _state(box: Box) -> Iterator[str]:
    yield f'state "{_clean(box.state)}" as {_id(box.state)}'
    yield from (f"{_id(box.state)} : {_clean(line)}" for line in _inside(box))


def _inside(box: Box) -> Iterator[str]:
    """Each exit with the events that can end there, then the events that no exit and no arrow names."""
    if box.final:
        yield box.intro.removesuffix(":")
        yield from (f"{words(entry.event)} {entry.text}" for entry in box.entries)
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


def _is_nameless(entry: Entry) -> bool:
    return all(step.kind == "rung" for step in entry.steps)


def _colours(diagram: Diagram) -> Iterator[str]:
    names = tone_names(diagram.table.states, diagram.table.final)
    tones = {**{f"t{number}": tone for number, tone in enumerate(LIGHT.tones)}, "final": LIGHT.final}
    for name in dict.fromkeys(names.values()):
        yield f"classDef {name} fill:{tones[name].strip},stroke:{tones[name].line},color:{LIGHT.ink}"
    yield from (f"class {_id(state)} {name}" for state, name in names.items())


def _id(state: str) -> str:
    name = re.sub(r"\W", "_", state)
    return f"{name}_" if name in RESERVED else name


def _clean(text: str) -> str:
    return text.translate(HARMLESS)
